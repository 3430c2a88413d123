"""The losses of docs/coming_from.rst: by hand and with torchmcl they have the same values and gradients."""

import inspect

import torch

from grids import for_each
from test_gallery import ROOT, python_blocks

NAMESPACE: dict = {}
for block in python_blocks(ROOT / "docs" / "coming_from.rst"):
    exec(compile(block, "coming_from.rst", "exec"), NAMESPACE)
NAMES = sorted(name.removesuffix("_by_hand") for name in NAMESPACE if name.endswith("_by_hand"))


def random_arguments():
    """Return a value for every argument that the functions of the page take."""
    torch.manual_seed(0)
    mask = torch.rand(7, 5) > 0.4
    mask[:, 0], mask[:3, -1] = True, True
    path = {"locations": torch.randn(7, 4, 5, 2), "scale": torch.rand(7, 4, 5, 2) + 0.3, "logits": torch.randn(7, 4)}
    floats = path | {"boxes": torch.rand(7, 4, 4)}
    trained = {name: value.double().requires_grad_() for name, value in floats.items()}
    target = {"target": torch.randn(7, 5, 2).double(), "targets": torch.rand(7, 2, 4).double()}
    return trained | target | {"mask": mask, "scene": torch.tensor([4, 4, 1, 9, 9, 9, 1])}


def value_and_gradients(name):
    arguments = random_arguments()
    taken = {key: arguments[key] for key in inspect.signature(NAMESPACE[name]).parameters}
    loss = NAMESPACE[name](**taken)
    leaves = [value for value in taken.values() if value.requires_grad]
    return loss.detach(), torch.autograd.grad(loss, leaves)


def test_the_page_has_all_pairs():
    assert NAMES == ["detr", "mixture", "mtr", "qcnet", "scene_variety", "variety"]


@for_each("name", NAMES)
def test_both_ways_give_the_same_loss_and_gradients(name):
    torch.testing.assert_close(value_and_gradients(name), value_and_gradients(f"{name}_by_hand"))


def test_the_step_of_a_mixture_has_the_gradient_of_its_likelihood():
    arguments = random_arguments()
    names = ("locations", "logits", "scale")
    mcl, model = NAMESPACE["mcl"], NAMESPACE["as_model"](*(arguments[name] for name in names))
    batch = mcl.Batch(arguments["target"], arguments["target"], arguments["mask"])
    cost_fn = mcl.MixtureNLL(mcl.pairwise_gaussian_nll)
    loss = mcl.mcl_step(model, batch, mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0).loss
    gradients = torch.autograd.grad(loss, [arguments[name] for name in names])
    torch.testing.assert_close(gradients, value_and_gradients("mixture_by_hand")[1])
