"""How members share a blend, how wide their kernels are, and what few values make of it; on simulated densities."""

import numpy as np
import pytest
import torch

from tables import QUICK, forked, noisy
from torchmcl_tables.estimators import MCLRegressor
from torchmcl_tables.estimators._atoms import at_atoms, atoms_of
from torchmcl_tables.estimators._blend import Blend, forest_kernels, ignorant, known, mixed
from torchmcl_tables.estimators._judging import blended, fitted_stretch, fitted_trim, fitted_widths, log_density
from torchmcl_tables.estimators._kernels import Kernels

SHORT = {**QUICK, "n_epochs": 4, "n_restarts": 1, "n_knots": 0}


def normal(means, width=1.0):
    """Return one kernel for each row."""
    means = torch.as_tensor(means, dtype=torch.float64).reshape(-1, 1, 1)
    return Kernels(means, torch.ones(len(means), 1, dtype=torch.float64), torch.full_like(means, width))


def drawn(n=200, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=n)
    return centres, torch.from_numpy(centres + 0.3 * rng.normal(size=n))[:, None]


def loss_of(shares, members, targets, weights):
    """Return what shares minimise, from the definition: by integrals, without the formulas of `blended`."""
    mixed = Kernels.joined([member.times(float(share)) for member, share in zip(members, shares, strict=True)])
    grid = torch.linspace(-12, 12, 1501, dtype=torch.float64)
    cdf = (mixed.probabilities[..., None] * torch.special.ndtr((grid - mixed.values) / mixed.widths)).sum(dim=1)
    scores = torch.trapezoid((cdf - (grid >= targets).double()).square(), grid)
    counts = weights / weights.sum()
    doubt = 4.0 / len(members) / len(targets)
    unlikely = float(-(counts * log_density(mixed, targets)).sum())
    return float((counts * scores).sum().log()) + unlikely - doubt * np.log(shares).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_shares_minimise_log_score_and_crps(weighted):
    centres, targets = drawn(30)
    members = [normal(centres + 0.4, 0.3), normal(centres - 0.2, 0.6), ignorant(normal(centres))]
    weights = torch.linspace(0.1, 2, 30, dtype=torch.float64) if weighted else torch.ones(30, dtype=torch.float64)
    found = blended(members, targets, weights)
    assert found.sum() == pytest.approx(1)
    best = loss_of(found, members, targets, weights)
    steps = np.linspace(0.02, 0.96, 11)
    for one in steps:
        for two in steps[one + steps < 0.99]:
            assert best <= loss_of(np.array([one, two, 1 - one - two]), members, targets, weights) + 1e-3


def test_shares_do_not_depend_on_how_easily_targets_are_foreseen():
    centres, targets = drawn(60)
    members = [normal(centres + 0.1, 0.4), normal(centres, 0.9)]
    small = [member.moved(torch.tensor(1e-3), torch.tensor(0.0)) for member in members]
    ones = torch.ones(60, dtype=torch.float64)
    np.testing.assert_allclose(blended(small, 1e-3 * targets, ones), blended(members, targets, ones), atol=1e-4)


def test_a_member_that_is_far_better_gets_nearly_everything():
    centres, targets = drawn(500)
    shares = blended(
        [normal(np.zeros(500), 0.3), normal(centres, 0.3), ignorant(normal(centres))], targets, torch.ones(500)
    )
    assert shares[1] > 0.95


def test_shares_of_alike_members_are_alike_and_no_share_is_zero():
    centres, targets = drawn(100)
    shares = blended([normal(centres, 0.3)] * 3, targets, torch.ones(100, dtype=torch.float64))
    np.testing.assert_allclose(shares, 1 / 3, atol=1e-6)
    lost = blended([normal(centres, 0.3), normal(centres + 50, 0.01)], targets, torch.ones(100, dtype=torch.float64))
    assert 0 < lost[1] < 0.05
    assert np.isfinite(lost).all()


def test_weights_are_copies_for_shares():
    centres, targets = drawn(40)
    members = [normal(centres + 0.3, 0.3), normal(centres, 0.8)]
    counts = np.random.default_rng(0).integers(1, 4, size=40)
    # Of a thousand times as many rows, so that the doubt, which counts rows and not weights, is nothing.
    some, many = np.tile(np.arange(40), 100), np.tile(np.arange(40).repeat(counts), 100)

    def shares(rows, weights):
        chosen = [Kernels(*(part[rows] for part in member)) for member in members]
        return blended(chosen, targets[rows], torch.as_tensor(weights, dtype=torch.float64))

    np.testing.assert_allclose(shares(some, np.tile(counts, 100)), shares(many, np.ones(len(many))), atol=2e-3)


def test_ignorance_gets_nearly_everything_where_the_others_are_wrong():
    rng = np.random.default_rng(0)
    wrong = [normal(rng.normal(size=300), 0.2), normal(rng.normal(size=300), 0.5)]
    targets = torch.from_numpy(rng.normal(size=(300, 1)))
    assert blended([*wrong, ignorant(wrong[0])], targets, torch.ones(300, dtype=torch.float64))[-1] > 0.85


def test_where_there_is_nothing_to_learn_answers_are_not_worse_than_the_mean():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 5)), rng.normal(size=600)
    model = MCLRegressor(n_epochs=60, n_restarts=2, random_state=0).fit(X, y)
    fresh, truth = rng.normal(size=(2000, 5)), rng.normal(size=2000)
    of_mean = np.mean((truth - y.mean()) ** 2)
    assert np.mean((truth - model.predict(fresh)) ** 2) < 1.05 * of_mean
    best_possible = -0.5 * np.log(2 * np.pi * np.e)
    assert model.log_prob(fresh, truth).mean() > best_possible - 0.1


def test_what_knows_nothing_is_left_out_of_answers_only_where_its_share_is_small():
    knowing = normal(np.linspace(1, 2, 5), 0.1)

    class Fixed(Blend):
        def members(self, networks, X, device):
            return [knowing, ignorant(knowing)]

    blend = Fixed([], [], np.array([0.8, 0.2]))
    assert blend.kernels([], np.zeros((5, 1)), "cpu").values.shape == (5, 3, 1)
    alone = blend.kernels([], np.zeros((5, 1)), "cpu", knowing=True)
    torch.testing.assert_close(alone.values, knowing.values)
    torch.testing.assert_close(alone.probabilities.sum(dim=1), torch.ones(5, dtype=torch.float64))
    assert Fixed([], [], np.array([0.5, 0.5])).kernels([], np.zeros((5, 1)), "cpu", knowing=True).values.shape == (
        5,
        3,
        1,
    )


@pytest.mark.parametrize("said", [0.1, 0.3, 0.6])
def test_widths_are_stretched_to_what_held_out_rows_show(said):
    centres, targets = drawn(2000)
    assert said * fitted_stretch(normal(centres, said), targets, torch.ones(2000)) == pytest.approx(0.3, rel=0.4)
    assert fitted_stretch(normal(centres, 0.3), targets, torch.ones(2000)) == 1.0


def test_few_rows_stretch_little():
    centres, targets = drawn(3)
    few = fitted_stretch(normal(centres, 3.0), targets, torch.ones(3))
    many = fitted_stretch(normal(centres.repeat(100), 3.0), targets.repeat_interleave(100, dim=0), torch.ones(300))
    assert many == 0.2
    assert many < few < 1
    for factor in (1e-3, 1e3):  # weights alike are no weights
        assert fitted_stretch(normal(centres, 3.0), targets, torch.full((3,), factor)) == few


def test_the_width_of_the_forest_is_that_of_rows_its_trees_have_not_seen():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(300, 1, 1))
    targets = torch.from_numpy(centres[:, 0] + 0.2 * rng.normal(size=(300, 1)))
    # The second tree has seen all rows and knows them by heart.
    values = np.concatenate([centres, targets.numpy()[:, None]], axis=1)
    unseen = np.zeros((300, 2), dtype=bool)
    unseen[:, 0] = True
    _, floor, kernels = fitted_widths(values, np.zeros((300, 2)), unseen, targets, torch.ones(300))
    assert floor == 0.2
    torch.testing.assert_close(kernels.probabilities[:, 0], torch.ones(300, dtype=torch.float64))
    by_heart = fitted_widths(values, np.zeros((300, 2)), ~unseen, targets, torch.ones(300))
    assert by_heart[1] == 0.001
    nobody = fitted_widths(values, np.zeros((300, 2)), np.zeros_like(unseen), targets, torch.ones(300))
    torch.testing.assert_close(nobody[2].probabilities, torch.full((300, 2), 0.5, dtype=torch.float64))
    wide = forest_kernels(values, np.full((300, 2), 3.0), factor=0.5, floor=2.0)
    torch.testing.assert_close(wide.widths, torch.full_like(wide.widths, 2.5))


# ---------------------------------------------------------------------- few values


def test_values_that_come_again_are_atoms():
    counts = np.random.default_rng(0).integers(0, 6, size=(100, 1)).astype(float)
    np.testing.assert_array_equal(atoms_of(counts, counts[:10]), np.arange(6.0))
    assert atoms_of(counts, np.array([[0.5]])) is None  # held out, and another value
    assert atoms_of(np.random.default_rng(0).normal(size=(100, 1)), counts[:0]) is None
    assert atoms_of(counts.repeat(2, axis=1), counts[:0].repeat(2, axis=1)) is None  # several outputs
    assert atoms_of(np.zeros((20, 1)), counts[:0]) is None
    assert atoms_of(np.arange(4.0)[:, None].repeat(3, axis=0), counts[:0]) is None  # too few rows of each


def test_atoms_have_the_mass_of_what_is_nearest():
    kernels = normal([0.1, 0.5, 5.0], 0.3)
    masses = at_atoms(kernels, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(masses.probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64))
    expected = torch.special.ndtr(torch.tensor([(0.5 - 0.1) / 0.3, 0.0, (0.5 - 5) / 0.3], dtype=torch.float64))
    torch.testing.assert_close(masses.probabilities[:, 0], expected)
    assert masses.widths.max() <= 1e-3
    near = at_atoms(kernels, torch.tensor([0.0, 1e-4], dtype=torch.float64))
    assert near.widths.max() <= 1e-5


@pytest.mark.parametrize("n_hypotheses", [5, 7])
def test_integer_targets_are_answered_by_integers(n_hypotheses):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    y = rng.binomial(4, X[:, 0]).astype(float)
    model = MCLRegressor(n_hypotheses=n_hypotheses, **SHORT).fit(X, y)
    values, probabilities = model.predict_hypotheses(X)
    likely = values[probabilities > 1e-3]
    np.testing.assert_allclose(likely, likely.round(), atol=0.02)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    density = model.predict_distribution(X[:5])
    np.testing.assert_allclose(np.unique(density.hypotheses.numpy().round(9)), np.arange(5), atol=1e-6)
    samples = model.sample(X, 20, random_state=0)
    np.testing.assert_allclose(samples, samples.round(), atol=0.05)
    assert model.predict_interval(X).contains(y).mean() > 0.85
    assert model.score(X, y) > 0.3


def test_a_value_between_that_comes_later_ends_the_atoms():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(200, 2)), rng.integers(0, 3, size=200).astype(float)
    model = MCLRegressor(**SHORT).fit(X, y)
    assert model._blend.atoms is not None
    assert model.partial_fit(X, y)._blend.atoms is not None
    assert model.partial_fit(X[:5], y[:5] + 0.5)._blend.atoms is None
    assert np.isfinite(model.predict(X)).all()


# ---------------------------------------------------------------------- the estimator


def test_kinds_shares_and_numbers_of_networks():
    X, y = forked(100)
    quick = {**SHORT, "n_restarts": 2}
    every = MCLRegressor(**{**quick, "n_knots": None}).fit(X, y)
    assert list(every.shares_) == ["networks", "networks with knots", "forest", "ignorance"]
    assert sum(every.shares_.values()) == pytest.approx(1)
    assert len(every.modules_) == 4
    assert every.predict_distribution(X).probabilities.shape == (100, 4 * 5 + 50 + 2)
    for n_knots in (0, 10):
        one_kind = MCLRegressor(**{**quick, "n_knots": n_knots}).fit(X, y)
        assert list(one_kind.shares_) == ["networks", "forest", "ignorance"]
        assert one_kind._inputs.has_knots == (n_knots > 0)
    single = MCLRegressor(**{**quick, "n_knots": None}, ensemble=False).fit(X, y)
    assert list(single.shares_) == ["networks", "ignorance"]
    assert len(single.modules_) == 1


@pytest.mark.parametrize("integers", [False, True])
def test_order_copies_and_equal_weights_do_not_matter_to_the_last_bit(integers):
    X, y = forked(80)
    y = np.maximum(np.round(2 * y), -3) if integers else np.maximum(y, -1.8)  # piled up at an end
    quick = {**SHORT, "n_knots": None}
    counts = np.random.default_rng(0).integers(0, 4, size=80)
    order = np.random.default_rng(1).permutation(int(counts.sum()))
    weighted = MCLRegressor(**quick).fit(X, y, sample_weight=0.7 * counts)
    repeated = MCLRegressor(**quick).fit(X.repeat(counts, axis=0)[order], y.repeat(counts)[order])
    for one, two in [
        (weighted, repeated),
        (MCLRegressor(**quick).fit(X, y), MCLRegressor(**quick).fit(X, y, np.full(80, 3))),
    ]:
        assert one.shares_ == two.shares_
        np.testing.assert_array_equal(one._limits, two._limits)
        np.testing.assert_array_equal(one.transform(X), two.transform(X))
        for left, right in zip(one.predict_interval(X), two.predict_interval(X), strict=True):
            np.testing.assert_array_equal(left, right)


def test_without_held_out_rows_all_members_count_alike():
    model = MCLRegressor(**SHORT, validation_fraction=0.0).fit(*forked(60))
    assert model.shares_ == pytest.approx({"networks": 0.475, "forest": 0.475, "ignorance": 0.05})
    assert np.isinf(model.predict_interval([[0.5, 0.5]]).lower).all()


def test_large_tables_have_one_network_and_no_forest(monkeypatch):
    monkeypatch.setattr("torchmcl_tables.estimators._blending.MANY_ROWS", 50)
    monkeypatch.setattr("torchmcl_tables.estimators._base.MANY_ROWS", 50)
    model = MCLRegressor(hidden=(4,), n_epochs=2, random_state=0).fit(*noisy(100))
    assert list(model.shares_) == ["networks", "ignorance"]
    assert len(model.modules_) == 1
    assert model.modules_[0].head.n_hypotheses == 8


def test_partial_fit_chooses_shares_again_and_keeps_the_forest(tmp_path):
    X, y = forked(300)
    model = MCLRegressor(**SHORT).fit(X, y)
    before, forest = model.shares_, model._blend.forest
    model.partial_fit(*forked(300, seed=1))
    assert model.shares_.keys() == before.keys()
    assert model.shares_ != before
    assert list(model.shares_.values()) == model._blend.shares.tolist()
    assert model._blend.forest is forest
    fresh = MCLRegressor(**SHORT).partial_fit(X[:1], y[:1])
    assert fresh.shares_ == {"networks": 0.95, "ignorance": 0.05}
    fresh.save(tmp_path / "model")
    assert MCLRegressor.load(tmp_path / "model").partial_fit(X, y).shares_ == fresh.partial_fit(X, y).shares_


@pytest.mark.parametrize(("first", "then"), [(None, "annealed"), ("annealed", None)])
def test_more_rows_are_learned_in_the_way_of_the_first(first, then):
    X, y = forked(60)
    for begin in ("fit", "partial_fit"):
        model = getattr(MCLRegressor(**SHORT, rule=first), begin)(X, y)
        with pytest.raises(ValueError, match=r"MCLRegressor: `rule` must be as in the first fit: .* Clone the model"):
            model.set_params(rule=then).partial_fit(X, y)


@pytest.mark.parametrize("n_rows", [*range(2, 8), 12, 20])
def test_a_handful_of_rows_is_enough_for_answers(n_rows):
    X, y = forked(n_rows)
    model = MCLRegressor(**{**SHORT, "n_knots": None}).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite(model.log_prob(X, y)).all()
    assert not np.isnan(model.predict_interval(X).hull).any()


def test_forks_keep_two_pieces_and_one_peak_keeps_one():
    X, y = forked(800)
    quick = {"n_restarts": 1, "n_epochs": 60, "n_knots": 0, "random_state": 0}
    two = MCLRegressor(**quick).fit(X, y).predict_interval(X)
    assert (two.n_pieces == 2).mean() > 0.9
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    one = MCLRegressor(**quick).fit(X, X @ [1, 2, 3] + rng.normal(size=800)).predict_interval(X)
    assert (one.n_pieces > 1).mean() < 0.05
    X, y = noisy(800)
    assert (MCLRegressor(**quick).fit(X, y).predict_interval(X).n_pieces > 1).mean() < 0.05


def test_any_number_of_answers_comes_of_one_fit():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, 2))
    model = MCLRegressor(n_epochs=5, n_restarts=1, random_state=0).fit(inputs, inputs[:, 0] + rng.normal(size=80))
    for n in (1, 2, 9):
        values, probabilities = model.predict_hypotheses(inputs[:4], n)
        assert values.shape == (4, n, 1)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict_hypotheses(inputs, 5).values, model.predict_hypotheses(inputs).values)
    alone = MCLRegressor(rule="mcl", n_epochs=2, n_restarts=1, random_state=0).fit(inputs, inputs[:, 0])
    with pytest.raises(ValueError, match=r"n_hypotheses.*be 5, got 3.*The one network has been trained"):
        alone.predict_hypotheses(inputs, 3)
    with pytest.raises(ValueError, match=r"n_hypotheses.*must be"):
        model.predict_hypotheses(inputs, 0)


# ---------------------------------------------------------------------- what answers leave out


def test_trimming_takes_the_same_probability_from_both_ends():
    kernels = Kernels(
        torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=torch.float64).reshape(1, 4, 1),
        torch.tensor([[0.1, 0.05, 0.5, 0.35]], dtype=torch.float64),
        torch.ones(1, 4, 1, dtype=torch.float64),
    )
    left = kernels.trimmed(0.1).probabilities
    torch.testing.assert_close(left, torch.tensor([[0.0, 0.0, 0.45, 0.35]], dtype=torch.float64) / 0.8)
    torch.testing.assert_close(kernels.trimmed(0.0), kernels)


def stray(n_rows):
    """Return rows with a narrow kernel at 0 and a few percent of the probability far away, to either side."""
    values = torch.tensor([0.0, 8.0, -8.0], dtype=torch.float64).reshape(1, 3, 1).expand(n_rows, 3, 1)
    probabilities = torch.tensor([0.96, 0.02, 0.02], dtype=torch.float64).expand(n_rows, 3)
    return Kernels(values, probabilities, torch.full_like(values, 0.5))


def test_answers_leave_out_kernels_that_no_target_is_near_to():
    targets = 0.5 * torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(400, dtype=torch.float64)
    assert fitted_trim(stray(400), targets, weights, 3) >= 0.02
    targets[::25] = 8.0
    assert fitted_trim(stray(400), targets, weights, 3) < 0.02


def test_a_few_rows_do_not_decide_what_answers_leave_out():
    targets = torch.tensor([[0.1], [-0.2]], dtype=torch.float64)
    assert fitted_trim(stray(2), targets, torch.ones(2, dtype=torch.float64), 3) == 0.01


def test_what_knows_nothing_is_left_out_unless_the_others_learned_little():
    members = [normal([0.0, 1.0]), ignorant(normal([0.0, 1.0]))]
    torch.testing.assert_close(known(members, np.array([0.9, 0.1])), members[0])
    torch.testing.assert_close(known(members, np.array([0.5, 0.5])), mixed(members, np.array([0.5, 0.5])))


def test_the_mean_leaves_out_what_the_answers_leave_out():
    model = MCLRegressor(**SHORT).fit(*noisy(200))
    assert model._blend.trim > 0
    X = noisy(20)[0]
    values, probabilities = model.predict_hypotheses(X)
    np.testing.assert_allclose((values[..., 0] * probabilities).sum(axis=1), model.predict(X), atol=1e-4)
