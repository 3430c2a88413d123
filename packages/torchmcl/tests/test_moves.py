"""Moves of hypotheses: planned where they pay, and made in the weights of a head."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from grids import for_each
from torchmcl.annealing.moves import HeadTensors, Moves, Samples, head_of, planned_moves


def samples_of(hypotheses, modes, noise=0.05, n=600, seed=0):
    """Return samples of equal modes [modes, dim] and the same hypotheses [hypotheses, dim] for all of them."""
    random = torch.Generator().manual_seed(seed)
    modes, hypotheses = torch.as_tensor(modes), torch.as_tensor(hypotheses)
    targets = modes[torch.arange(n) % len(modes)] + noise * torch.randn(n, modes.shape[-1], generator=random)
    return Samples(hypotheses.expand(1, n, -1, -1), targets.unsqueeze(0), torch.ones(1, n, dtype=torch.bool))


def moved(samples, allowed=True):
    source, shift = planned_moves(samples, torch.tensor([allowed]))
    return samples.hypotheses[0, 0, source[0]] + shift[0], source[0].tolist()


def distortion(samples, hypotheses):
    return float(torch.cdist(samples.targets[0], hypotheses).square().amin(dim=-1).mean())


@for_each("dim", [1, 2, 32])
@for_each("scale", [1e-6, 1.0, 1e6])
def test_a_duplicate_goes_to_the_hypothesis_between_two_modes(dim, scale):
    modes = scale * torch.eye(3, dim).roll(1, 0) if dim > 1 else scale * torch.tensor([[-1.0], [0.0], [3.0]])
    straddling = (modes[0] + modes[1]) / 2
    samples = samples_of(torch.stack([straddling, modes[2], modes[2]]), modes, noise=0.05 * scale)
    new, source = moved(samples)
    assert sorted(source) == [0, 0, 1] or sorted(source) == [0, 0, 2]
    assert distortion(samples, new) < 1.1 * dim * (0.05 * scale) ** 2


def test_hypotheses_that_are_where_they_belong_stay():
    modes = torch.tensor([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert moved(samples_of(modes, modes))[1] == [0, 1, 2]
    assert moved(samples_of(modes, modes), allowed=False)[1] == [0, 1, 2]
    unimodal = torch.tensor([[-0.8], [0.8]])  # the best two points of a normal distribution
    assert moved(samples_of(unimodal, torch.zeros(1, 1), noise=1.0))[1] == [0, 1]


@for_each("seed", range(5))
def test_noise_in_many_dimensions_is_not_taken_for_modes(seed):
    hypotheses = 0.3 * torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
    assert moved(samples_of(hypotheses, torch.zeros(1, 32), noise=1.0, n=300, seed=seed))[1] == [0, 1, 2, 3]


@for_each("side, splits", [(torch.sign, False), (lambda x: torch.randn(x.shape).sign(), True)])
def test_a_hypothesis_is_split_only_for_two_answers_at_one_input(side, splits):
    torch.manual_seed(0)
    x = 2 * torch.rand(1, 600, 1) - 1
    hypotheses = torch.stack([0.1 * x, 5 + 0.1 * x], dim=2)  # the second one wins nothing
    samples = Samples(hypotheses, side(x), torch.ones(1, 600, dtype=torch.bool))
    assert moved(samples)[1] == ([0, 0] if splits else [0, 1])


@given(seed=st.integers(0, 10**6), n_modes=st.integers(1, 6), n=st.integers(2, 8), dim=st.integers(1, 3))
def test_moves_lower_the_distortion(seed, n_modes, n, dim):
    random = torch.Generator().manual_seed(seed)
    samples = samples_of(torch.randn(n, dim, generator=random), torch.randn(n_modes, dim, generator=random), seed=seed)
    before = samples.hypotheses[0, 0]
    new, source = moved(samples)
    assert source == list(range(n)) or distortion(samples, new) < distortion(samples, before)


def test_padding_does_not_count():
    modes = torch.tensor([[-1.0], [1.0], [5.0]])
    samples = samples_of(torch.tensor([[0.0], [5.0], [5.01]]), modes)
    padded = Samples(
        torch.cat([samples.hypotheses, torch.full((1, 300, 3, 1), 77.0)], dim=1),
        torch.cat([samples.targets, torch.full((1, 300, 1), -1e3)], dim=1),
        torch.cat([samples.real, torch.zeros(1, 300, dtype=torch.bool)], dim=1),
    )
    for mine, theirs in zip(*(planned_moves(s, torch.tensor([True])) for s in (samples, padded)), strict=True):
        torch.testing.assert_close(theirs, mine)


def test_targets_that_are_not_of_the_kind_of_the_hypotheses_have_no_samples():
    predictions = mcl.Predictions(torch.zeros(1, 5, 3, 4))
    assert Samples.of(predictions, mcl.Batch(torch.zeros(1, 5, 2), torch.zeros(1, 5, 2, dtype=torch.long))) is None
    several = mcl.Batch(torch.zeros(1, 5, 2), torch.zeros(1, 5, 2, 4), torch.ones(1, 5, 2, dtype=torch.bool))
    samples = Samples.of(predictions, several)
    assert samples.hypotheses.shape == (1, 10, 3, 4)
    assert Samples.of(predictions, mcl.Batch(torch.zeros(1, 5, 2), torch.zeros(1, 5, 4))).targets.shape == (1, 5, 4)


def test_drawn_constants_do_not_depend_on_the_default_device():
    head = mcl.MultiHypothesisHead(4, 2, 3)
    tensors = HeadTensors(head, head.linear.weight.detach()[None], head.linear.bias.detach()[None])
    with torch.device("meta"):
        elsewhere = tensors.random_constants([7])
    torch.testing.assert_close(elsewhere, tensors.random_constants([7]), rtol=0, atol=0)


@for_each("options", [{}, {"scales": True}, {"scores": False}])
def test_a_moved_hypothesis_has_the_outputs_of_its_source_shifted(options):
    head = mcl.MultiHypothesisHead(in_features=5, out_features=(2, 2), n_hypotheses=3, **options)
    features = torch.randn(7, 5)
    before = head(features)
    tensors = HeadTensors(head, head.linear.weight.detach()[None], head.linear.bias.detach()[None])
    shift = torch.arange(12.0).view(1, 3, 4)
    tensors.move(Moves(torch.tensor([[2, 1, 2]]), shift))
    after = head(features)
    source = torch.tensor([2, 1, 2])
    torch.testing.assert_close(after.hypotheses, before.hypotheses[:, source] + shift.view(3, 2, 2))
    for name in {"score_logits", "scale"} & set(before._fields):
        if getattr(before, name) is not None:
            torch.testing.assert_close(getattr(after, name), getattr(before, name)[:, source])


def test_only_one_plain_head_can_be_changed():
    model = mcl.MultiHypothesisMLP(2, 1, 3)
    assert head_of(model)[0] == "head"
    assert head_of(torch.nn.ModuleList([model, mcl.MultiHypothesisMLP(2, 1, 3)])) is None
    assert head_of(torch.nn.Linear(2, 3)) is None
    assert head_of(model.requires_grad_(False)) is None
