"""Shared set-up: every test starts from the same random state, property tests are repeatable, whole files are slow."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "torchmcl", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=False
)
hypothesis.settings.load_profile("torchmcl")

# Files and folders that only `make test-all` runs; single slow tests of other files have the marker themselves.
SLOW = (
    *("contracts/test_compiled_schedules.py", "estimators/test_combinations.py", "estimators/test_coverage.py"),
    *(
        "estimators/test_sklearn.py",
        "fleet/test_awkward_modules.py",
        "fleet/test_fleet_combinations.py",
        "integration/",
    ),
    *(
        "kernels/",
        "security/test_fuzz.py",
        "security/test_guided.py",
        "test_bilstm.py",
        "test_cluster.py",
        "test_demo.py",
    ),
    *("test_fine_tuning.py", "test_speech_demo.py"),
    *("test_every_flag.py", "test_extras.py", "test_figures.py", "test_gallery.py", "test_kernels.py"),
    *("test_lightning.py", "test_lightning_annealing.py", "test_lightning_faults.py", "test_lightning_nodes.py"),
    *("test_numerical_soak.py", "test_separation.py", "test_separation_study.py", "test_soak.py"),
    *("test_speech_commands.py", "test_table_report.py", "test_tabular_benchmark.py", "test_trajectory_study.py"),
    *("theory/test_critical.py", "theory/test_quantizers.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.as_posix()
        if any(f"/tests/{name}" in place for name in SLOW) or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)
