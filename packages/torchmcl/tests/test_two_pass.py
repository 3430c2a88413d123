"""Two passes give the values and gradients of all hypotheses at once."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchmcl as mcl
from families import COST_CASES
from grids import for_each
from problems import score_labels
from torchmcl.nn import EmbeddedLatent, LatentHypotheses, NormalLatent
from torchmcl.scoring import PresenceScores
from torchmcl.two_pass import TwoPass, hypothesis_numbers

K, ROWS, DIM = 4, 6, 3
COSTS = {
    "squares": {},
    "two costs": {"cost_fn": mcl.pairwise_euclidean, "loss_fn": mcl.pairwise_gaussian_nll},
    "mixture": {"cost_fn": mcl.MixtureNLL(mcl.pairwise_laplace_nll), "score_weight": 0},
    "weights": {"cost_fn": mcl.pairwise_huber, "sample_weights": torch.linspace(0.5, 1.5, ROWS).double()},
}
SCORES = (mcl.SigmoidScores(), mcl.SoftmaxScores(None), PresenceScores(mcl.PIT()))
MASK = torch.tensor([[True, True], [True, False], [False, False], [True, True], [False, True], [True, True]])
RULES = [
    *(mcl.WTA(), mcl.RelaxedWTA(0.3), mcl.AnnealedWTA(0.5), mcl.TopK(2), mcl.PIT(), mcl.Sinkhorn(0.5, 5), mcl.EMD()),
]
WAYS = ({"chunk_size": 3}, {}, {"independent_rows": True})  # 3 does not divide the 4 hypotheses


class OneByOne(nn.Module):
    """Distributions of the hypotheses with given numbers: a shared trunk, one head per hypothesis."""

    def __init__(self, dropout=0.0, scores=True):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh())
        self.weight = nn.Parameter(torch.randn(K, 8, 2 * DIM + 1))
        self.scores = scores

    def forward(self, inputs, numbers):
        features = self.trunk(inputs)
        values = torch.einsum("bf,bkfo->bko", features, self.weight.to(features.dtype)[numbers])
        places, scale, logits = values.split([DIM, DIM, 1], dim=-1)
        return mcl.Distributions(places, logits.squeeze(-1) if self.scores else None, scale.exp())


def all_at_once(model):
    return lambda inputs: model(inputs, hypothesis_numbers(len(inputs), K))


def problem(dtype=torch.float64, **options):
    torch.manual_seed(1)
    model = OneByOne(**options).to(dtype)
    return model, mcl.Batch(torch.randn(ROWS, 2, dtype=dtype), torch.randn(ROWS, 2, DIM, dtype=dtype))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def compared(model, batch, rule, two_pass, **options):
    expected = mcl.mcl_step(all_at_once(model), batch, rule, **options)
    expected_gradients = gradients(model, expected.loss)
    output = mcl.mcl_step(two_pass, batch, rule, **options)
    torch.testing.assert_close(output.loss, expected.loss, rtol=0, atol=1e-10)
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-10)
    for name, gradient in gradients(model, output.loss).items():
        other = expected_gradients[name]
        close(torch.zeros_like(other) if gradient is None else gradient, other)


@for_each(
    "rule, cost, masked",
    [(rule, cost, n % 2 == 0) for n, (rule, cost) in enumerate(itertools.product(RULES, COSTS))],
)
def test_gradients_are_those_of_all_hypotheses_at_once(rule, cost, masked):
    model, batch = problem()
    batch = batch._replace(mask=MASK if masked else None)
    for scores, way in zip(SCORES, WAYS[masked:] + WAYS[:masked], strict=True):
        compared(model, batch, rule, TwoPass(model, K, **way), scores=scores, **COSTS[cost])


@for_each("case", COST_CASES)
def test_every_cost_has_the_gradients_of_all_hypotheses_at_once(case):
    torch.manual_seed(1)
    network = nn.Linear(2 + 3, case.dim).double()
    model = LatentHypotheses(network, K, EmbeddedLatent(K, 3).double())
    batch = mcl.Batch(torch.randn(ROWS, 2, dtype=torch.float64), case.inputs(ROWS, n_targets=2)[1])
    found = []
    for either in (model, TwoPass(model, K, latents=model.draw)):
        output = mcl.mcl_step(either, batch, mcl.AnnealedWTA(0.5), cost_fn=case.fn)
        found.append(gradients(model, output.loss))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@for_each("rule", [mcl.WTA(), mcl.AnnealedWTA(0.4), mcl.TopK(2)])
def test_scenes_share_their_winners_in_both_ways(rule):
    model, batch = problem()
    for independent_rows in (False, True):
        two_pass = TwoPass(model, K, independent_rows=independent_rows)
        compared(model, batch._replace(scene=torch.tensor([4, 4, 1, 9, 9, 1])), rule, two_pass)


@for_each("way", WAYS)
@for_each("n_rows", [0, ROWS])
@for_each("constant", ["scale", "score_logits", "a hypothesis"])
def test_outputs_without_gradients_are_constants(way, n_rows, constant):
    model, batch = problem()
    batch = mcl.Batch(batch.inputs[:n_rows], batch.targets[:n_rows])

    def detached(inputs, numbers):
        output = model(inputs, numbers)
        if constant == "a hypothesis":
            if n_rows and (numbers == 2).all():
                return mcl.Distributions(*(field.detach() for field in output))
            return output
        return output._replace(**{constant: getattr(output, constant).detach()})

    def one_by_one(inputs):
        parts = [detached(inputs, hypothesis_numbers(n_rows, K)[:, k : k + 1]) for k in range(K)]
        return mcl.Distributions(*(torch.cat(fields, dim=1) for fields in zip(*parts, strict=True)))

    way = {} if constant == "a hypothesis" else way  # hypothesis 2 is alone in its chunk
    options = {"loss_fn": mcl.pairwise_gaussian_nll}
    outputs = [
        mcl.mcl_step(m, batch, mcl.AnnealedWTA(0.5), **options) for m in (one_by_one, TwoPass(detached, K, **way))
    ]
    expected, found = (gradients(model, output.loss) for output in outputs)
    for name, gradient in found.items():
        torch.testing.assert_close(torch.zeros_like(expected[name]) if gradient is None else gradient, expected[name])


def test_inputs_changed_in_place_are_an_error():
    model, batch = problem()
    output = mcl.mcl_step(TwoPass(model, K), batch, mcl.WTA())
    batch.inputs.zero_()  # a loader that reuses its buffer
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.loss.backward()


class Counting(nn.Module):
    """Counts the calls with a graph, and the rows of each."""

    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, []

    def forward(self, inputs, latents):
        if torch.is_grad_enabled():
            self.rows.append(latents.shape[0] * latents.shape[1])
        return self.model(inputs, latents)


def test_only_hypotheses_with_weight_are_computed_again():
    model, batch = problem(scores=False)
    counting = Counting(model)
    winners = mcl.mcl_step(TwoPass(counting, K), batch, mcl.WTA()).matching.weights.sum(dim=(0, 1))
    mcl.mcl_step(TwoPass(counting, K), batch, mcl.WTA()).loss.backward()
    assert counting.rows == [ROWS] * int((winners > 0).sum())
    counting.rows.clear()
    first = batch._replace(targets=batch.targets[:, :1])
    mcl.mcl_step(TwoPass(counting, K, independent_rows=True), first, mcl.WTA()).loss.backward()
    assert counting.rows == [ROWS]  # one winner per row
    counting.rows.clear()
    with torch.no_grad():
        mcl.mcl_step(TwoPass(counting, K), batch, mcl.WTA())
    assert counting.rows == []


def test_scores_of_the_inputs_are_computed_once_and_trained():
    model, batch = problem(scores=False)
    scorer, counting = nn.Linear(2, K).double(), Counting(model)
    two_pass = TwoPass(counting, K, scorer=scorer, independent_rows=True)
    output = mcl.mcl_step(two_pass, batch._replace(targets=batch.targets[:, :1]), mcl.WTA())
    output.loss.backward()
    assert counting.rows == [ROWS]
    logits = scorer(batch.inputs)
    expected = torch.autograd.grad(mcl.SigmoidScores().loss(logits, score_labels(output.matching.cost)), scorer.weight)[
        0
    ]
    torch.testing.assert_close(scorer.weight.grad, expected)


def test_dropout_and_noise_are_repeated_exactly_and_later_random_numbers_do_not_change():
    model, batch = problem(dropout=0.5)
    two_pass = TwoPass(model, K)

    def loop(inputs):  # the same order of random numbers, with a graph
        parts = [model(inputs, hypothesis_numbers(ROWS, K)[:, k : k + 1]) for k in range(K)]
        return mcl.Distributions(*(torch.cat(fields, dim=1) for fields in zip(*parts, strict=True)))

    found = []
    for either in (two_pass, loop):
        torch.manual_seed(7)
        values = gradients(model, mcl.mcl_step(either, batch, mcl.AnnealedWTA(0.5)).loss)
        found.append((*values.values(), torch.rand(2)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
    noisy = LatentHypotheses(nn.Linear(2 + 5, DIM), K, NormalLatent(5))
    torch.manual_seed(3)
    batch = mcl.Batch(batch.inputs.float(), batch.targets.float())
    found = [gradients(noisy, mcl.mcl_step(either, batch, mcl.WTA()).loss) for either in (noisy,)]
    torch.manual_seed(3)
    found.append(gradients(noisy, mcl.mcl_step(TwoPass(noisy, K, latents=noisy.draw), batch, mcl.WTA()).loss))
    torch.testing.assert_close(*found)


def test_an_encoder_before_it_runs_once_and_is_trained():
    _, batch = problem()
    encoder, latent = nn.Linear(2, 2).double(), EmbeddedLatent(K, 2).double()
    decoder = LatentHypotheses(nn.Linear(4, DIM).double(), K, latent)
    together = nn.ModuleList([encoder, decoder])
    both = [
        decoder,
        TwoPass(decoder, K, latents=decoder.draw),
        TwoPass(decoder, K, latents=decoder.draw, chunk_size=3, independent_rows=True),
    ]
    found = [
        gradients(together, mcl.mcl_step(lambda x, m=m: m(encoder(x)), batch, mcl.AnnealedWTA(0.3)).loss) for m in both
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-10)


def test_autocast_and_gradient_checkpoints_give_the_same_gradients():
    model, batch = problem(torch.float32)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs, numbers):
            return mcl.Distributions(*checkpoint(self.model, inputs, numbers, use_reentrant=False))

    for either in (model, Checkpointed()):
        found = []
        for wrapped in (all_at_once(either), TwoPass(either, K)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = mcl.mcl_step(wrapped, batch, mcl.AnnealedWTA(0.5))
            found.append(gradients(model, output.loss))  # outside of autocast, as documented by torch
        with torch.autocast("cpu", dtype=torch.bfloat16):  # and inside, where casts of the first pass are cached
            found.append(gradients(model, mcl.mcl_step(TwoPass(either, K), batch, mcl.AnnealedWTA(0.5)).loss))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=0.02, atol=5e-3)
            assert all(gradient.abs().max() > 0 for gradient in other.values())


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_gradients():
    model, batch = problem()
    compiled = torch.compile(model, backend="aot_eager")
    compared(model, batch, mcl.AnnealedWTA(0.5), TwoPass(compiled, K))


def test_running_statistics_are_updated_once():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, inputs, numbers):
            return mcl.Predictions(self.norm(inputs).unsqueeze(1))

    batch = mcl.Batch(torch.randn(8, 2), torch.randn(8, 2))
    for name in ("__call__", "forward"):
        model = Model()
        function = getattr(model, name)
        mcl.mcl_step(TwoPass(function, 2), batch, mcl.AnnealedWTA(1.0)).loss.backward()
        assert int(model.norm.num_batches_tracked) == 2  # one call per hypothesis
        assert model.norm.weight.grad.abs().max() > 0
        with pytest.raises(ValueError, match=r"`independent_rows` must be False .* got BatchNorm1d"):
            TwoPass(function, 2, independent_rows=True)(batch.inputs)


@for_each(
    "make, error, words",
    [
        (lambda: TwoPass(None, 2), TypeError, "TwoPass: `model`"),
        (lambda: TwoPass(OneByOne(), 0), ValueError, "TwoPass: `n_hypotheses`"),
        (lambda: TwoPass(OneByOne(), 2, chunk_size=0), ValueError, "TwoPass: `chunk_size`"),
        (lambda: TwoPass(lambda x, k: x, 2)(torch.ones(3, 2)), TypeError, "TwoPass: `model`"),
        (lambda: TwoPass(lambda x, k: mcl.Predictions(x), 2)(torch.ones(3, 2)), ValueError, r"\(3, 1\) here"),
        (lambda: TwoPass(OneByOne(), 2)("text"), TypeError, "TwoPass: `inputs`"),
    ],
)
def test_bad_arguments_are_refused_in_words(make, error, words):
    with pytest.raises(error, match=words):
        make()
