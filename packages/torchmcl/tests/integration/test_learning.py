"""The parts together: a model learns a quantiser, a run resumes, and models on a leading axis train alike."""

import copy

import torch

import torchmcl as mcl
from grids import for_each
from problems import score_labels

CENTERS = torch.tensor([[-0.5, -0.4], [0.5, -0.3], [0.0, 0.5]])


def three_gaussians(n, generator):
    """Three equally likely clusters, each of standard deviation 0.05 in two dimensions."""
    which = torch.randint(0, 3, (n,), generator=generator)
    return CENTERS[which] + 0.05 * torch.randn(n, 2, generator=generator)


def test_annealed_training_on_three_gaussians_ends_near_the_best_quantiser():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(1, 2, 3, hidden=(32,), detach_scores=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.CutoffAt(mcl.Linear(0.5, 0.0, 150), 150))
    first = None
    for step in range(250):
        batch = mcl.Batch(torch.zeros(256, 1), three_gaussians(256, generator).unsqueeze(1))
        output = mcl.mcl_step(model, batch, rule(step))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        first = output if first is None else first

    with torch.no_grad():
        batch = mcl.Batch(torch.zeros(4000, 1), three_gaussians(4000, generator).unsqueeze(1))
        output = mcl.mcl_step(model, batch, mcl.WTA())
    best = 2 * 0.05**2  # one hypothesis on each center leaves the variance within a cluster
    assert mcl.metrics.distortion(output.matching) < 1.1 * best
    assert mcl.metrics.distortion(first.matching) > 10 * best
    assert mcl.metrics.n_dead_hypotheses(output.matching) == 0
    torch.testing.assert_close(
        mcl.normalized_scores(output.predictions.score_logits[0]), torch.full((3,), 1 / 3), rtol=0, atol=0.05
    )
    assert mcl.metrics.score_calibration_error(output.predictions, output.matching) < 0.05


@for_each(
    "rule",
    [
        mcl.WTA(),
        mcl.RelaxedWTA(0.1),
        mcl.AnnealedWTA(0.05),
        mcl.TopK(2),
        mcl.Sinkhorn(0.1, n_iters=5),
        mcl.PIT(),
        mcl.EMD(),
    ],
)
def test_the_loss_falls_under_every_rule(rule):
    generator = torch.Generator().manual_seed(0)
    targets = three_gaussians(16 * 3, generator).view(16, 3, 2)
    model = mcl.MultiHypothesisMLP(1, 2, 4, hidden=(8,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        output = mcl.mcl_step(model, mcl.Batch(torch.ones(16, 1), targets), rule)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < 0.8 * losses[0]


def make_run():
    torch.manual_seed(3)
    model = mcl.MultiHypothesisMLP(2, 1, 4, hidden=(8,))
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, 0.7, cutoff=0.1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01), mcl.RuleScheduler(rule)


def train(model, optimizer, scheduler, n_epochs):
    for _ in range(n_epochs):
        generator = torch.Generator().manual_seed(scheduler.n_steps)
        inputs = torch.randn(32, 2, generator=generator)
        output = mcl.mcl_step(model, mcl.Batch(inputs, inputs.sum(-1).view(-1, 1, 1).sign()), scheduler.rule)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        scheduler.step()


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = make_run()
    train(*whole, n_epochs=10)

    first = make_run()
    train(*first, n_epochs=4)
    torch.save([part.state_dict() for part in first], tmp_path / "checkpoint.pt")
    second = make_run()
    for part, state in zip(second, torch.load(tmp_path / "checkpoint.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*second, n_epochs=6)

    assert second[2].rule == whole[2].rule
    for name, value in whole[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], value), name


def test_models_on_a_leading_axis_train_like_models_one_by_one():
    torch.manual_seed(0)
    temperatures = [0.0, 0.2, 1.0]
    models = [mcl.MultiHypothesisMLP(2, 1, 4, hidden=(8,)).double() for _ in temperatures]
    skeleton = copy.deepcopy(models[0])
    weights, _ = torch.func.stack_module_state(models)
    weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
    inputs = torch.randn(16, 2, dtype=torch.float64)
    targets = torch.randn(16, 2, 1, dtype=torch.float64)
    mask = torch.rand(16, 2) < 0.8
    together = mcl.AnnealedWTA(torch.tensor(temperatures, dtype=torch.float64).view(3, 1, 1, 1))

    for _ in range(5):
        answers = torch.vmap(lambda w: torch.func.functional_call(skeleton, w, (inputs,)))(weights)
        cost = mcl.pairwise_sq_euclidean(hypotheses=answers.hypotheses, targets=targets)  # [models, batch, 2, 4]
        matching = mcl.assign(cost, together, mask)
        labels = score_labels(cost, mask)
        # The mean over all models is a third of the sum of each model's own mean.
        loss = 3 * (mcl.mcl_loss(matching) + mcl.SigmoidScores().loss(answers.score_logits, labels, mask))
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (value - 0.1 * gradient).detach().requires_grad_()
            for (name, value), gradient in zip(weights.items(), gradients, strict=True)
        }

    for index, (model, temperature) in enumerate(zip(models, temperatures, strict=True)):
        for _ in range(5):
            model.zero_grad()
            mcl.mcl_step(model, mcl.Batch(inputs, targets, mask), mcl.AnnealedWTA(temperature)).loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(weights[name][index], parameter)
