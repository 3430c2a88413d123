"""The names that users rely on: adding or removing one must be a decision, seen in this file."""

import subprocess
import sys
from pathlib import Path

import pytest

import torchmcl
from torchmcl import metrics

SOURCE = Path(torchmcl.__file__).parent
PUBLIC = {
    *("AnnealedWTA", "AssignmentRule", "EMD", "PIT", "RelaxedWTA", "Sinkhorn", "TopK", "WTA", "AutoAnnealing"),
    *("Constant", "Cosine", "Exponential", "Linear", "RuleScheduler", "CutoffAt", "annealed"),
    *("Pairwise", "pairwise_cosine", "pairwise_cross_entropy", "pairwise_euclidean", "pairwise_huber", "pairwise_l1"),
    *("pairwise_neg_si_sdr", "pairwise_neg_snr", "pairwise_sq_euclidean"),
    *("pairwise_ade", "pairwise_fde", "pairwise_sq_ade"),
    *("MixtureNLL", "pairwise_dice", "pairwise_gaussian_nll", "pairwise_laplace_nll"),
    *("SigmoidScores", "SoftmaxScores"),
    *("assign", "mcl_loss", "mcl_step", "normalized_scores"),
    *("Batch", "Distributions", "Matching", "Predictions", "StepOutput"),
    *("MultiHypothesisHead", "MultiHypothesisMLP"),
    "export",
}
PUBLIC_METRICS = {
    *("distortion", "energy_score", "hypothesis_usage", "n_dead_hypotheses", "oracle_rmse"),
    *("rmse_of_mean", "score_calibration_error", "usage_entropy"),
    *("brier_min_fde", "collision_rate", "joint_min_ade", "joint_min_fde", "min_ade", "min_fde", "miss_rate"),
    *("average_pairwise_distance", "crps", "generalized_energy_distance", "matched_dice", "mode_coverage", "mpjpe"),
    *("pa_mpjpe", "variogram_score"),
}


def test_public_names_are_these():
    assert sorted(torchmcl.__all__) == sorted(PUBLIC)
    assert len(torchmcl.__all__) <= 50, "special costs and rules are public in torchmcl.costs and torchmcl.rules only"
    assert set(torchmcl.__all__) == PUBLIC


def test_names_are_found_by_star_by_dir_and_as_modules():
    namespace = {}
    exec("from torchmcl import *", namespace)
    assert namespace.keys() >= PUBLIC
    assert set(dir(torchmcl)) >= PUBLIC
    assert torchmcl.schedules.Linear is torchmcl.Linear
    with pytest.raises(AttributeError, match="module 'torchmcl' has no attribute 'WTAs'"):
        torchmcl.WTAs  # noqa: B018


@pytest.mark.slow
def test_importing_the_package_loads_neither_torch_nor_an_optional_package_and_gives_no_warning():
    program = (
        "import sys, warnings; warnings.simplefilter('error');"
        "import torchmcl, torchmcl.app; assert 'torch' not in sys.modules;"
        "warnings.simplefilter('ignore'); import torch; warnings.simplefilter('error');"
        "before = set(sys.modules); torchmcl.WTA;"
        "heavy = 'scipy sklearn lightning pytorch_lightning torchmetrics matplotlib tqdm pandas ot'.split();"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} & set(heavy)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_metrics_are_these():
    assert sorted(metrics.__all__) == sorted(PUBLIC_METRICS)


def test_every_public_name_exists_and_is_documented():
    for module in (torchmcl, metrics):
        assert module.__doc__
        for name in module.__all__:
            value = getattr(module, name)
            assert value.__doc__, name


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert torchmcl.__version__ == version("torchmcl")
