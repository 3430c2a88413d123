"""The losses of docs/coming_from_repositories.rst have the same values and gradients by hand and with torchmcl."""

import inspect

import torch

from grids import for_each
from test_gallery import ROOT, python_blocks

NAMESPACE: dict = {}
for block in python_blocks(ROOT / "docs" / "coming_from_repositories.rst"):
    exec(compile(block, "coming_from_repositories.rst", "exec"), NAMESPACE)
NAMES = sorted(name.removesuffix("_by_hand") for name in NAMESPACE if name.endswith("_by_hand"))


def random_arguments():
    """Return a value for every argument that the functions of the page take."""
    torch.manual_seed(0)
    mask = torch.rand(7, 5) > 0.4
    mask[:, 0] = True
    factors = torch.randn(7, 4, 3, 3).tril(-1) + torch.diag_embed(torch.rand(7, 4, 3) + 0.5)
    floats = {
        "locations": torch.randn(7, 4, 5, 2),
        "scale": torch.cat([torch.rand(7, 4, 5, 2) + 0.3, torch.rand(7, 4, 5, 1) - 0.5], dim=-1),
        "poses": torch.randn(7, 4, 5, 6, 3),
        "frame_logits": torch.randn(7, 4, 5),
        "masks": torch.randn(7, 3, 6, 5),
        "overlaps": torch.rand(7, 3),
        "places": torch.randn(7, 4, 3),
        "factors": factors,
        "logits": torch.randn(7, 4),
        "nll": 2 + torch.rand(7, 4),
    }
    given = {
        "target": torch.randn(7, 5, 2),
        "pose": torch.randn(7, 5, 6, 3),
        "joint_weights": torch.rand(6) + 0.5,
        "segment": torch.rand(7, 6, 5).round(),
        "parameters": torch.randn(7, 3),
    }
    trained = {name: value.double().requires_grad_() for name, value in floats.items()}
    return trained | {name: value.double() for name, value in given.items()} | {"mask": mask}


def value_and_gradients(name):
    arguments = random_arguments()
    function = NAMESPACE[name]
    names = [key for key, value in inspect.signature(function).parameters.items() if value.default is value.empty]
    taken = {key: arguments[key] for key in names}
    loss = function(**taken)
    leaves = [value for value in taken.values() if value.requires_grad]
    return loss.detach(), torch.autograd.grad(loss, leaves)


def test_the_page_has_all_pairs():
    assert NAMES == ["lora_mcl", "manipose", "mf_awta", "npe", "sam", "timemcl"]


@for_each("name", NAMES)
def test_both_ways_give_the_same_loss_and_gradients(name):
    ours, theirs = value_and_gradients(name), value_and_gradients(f"{name}_by_hand")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_training_a_mixture_of_full_normals_has_the_gradient_of_its_likelihood():
    arguments = random_arguments()
    mcl, costs = NAMESPACE["mcl"], NAMESPACE["costs"]
    places, logits, factors = (arguments[name] for name in ("places", "logits", "factors"))
    batch = mcl.Batch(None, arguments["parameters"])
    cost_fn = mcl.MixtureNLL(costs.FullNormal())
    model = mcl.Distributions(places, logits, factors)
    loss = mcl.mcl_step(lambda _: model, batch, mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0).loss
    gradients = torch.autograd.grad(loss, [places, factors, logits])
    torch.testing.assert_close(gradients, value_and_gradients("npe_by_hand")[1])
