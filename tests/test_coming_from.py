"""The losses of the pages for newcomers: by hand and with torchmcl they have the same values and gradients."""

import inspect

import torch

from grids import for_each
from test_gallery import ROOT, python_blocks


def arguments_of_tasks():
    """Return a value for every argument that the functions of docs/coming_from.rst take."""
    torch.manual_seed(0)
    mask = torch.rand(7, 5) > 0.4
    mask[:, 0], mask[:3, -1] = True, True
    path = {"locations": torch.randn(7, 4, 5, 2), "scale": torch.rand(7, 4, 5, 2) + 0.3, "logits": torch.randn(7, 4)}
    floats = path | {"boxes": torch.rand(7, 4, 4)}
    trained = {name: value.double().requires_grad_() for name, value in floats.items()}
    target = {"target": torch.randn(7, 5, 2).double(), "targets": torch.rand(7, 2, 4).double()}
    return trained | target | {"mask": mask, "scene": torch.tensor([4, 4, 1, 9, 9, 9, 1])}


def arguments_of_repositories():
    """Return a value for every argument that the functions of docs/coming_from_repositories.rst take."""
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


PAGES = {
    "coming_from": (arguments_of_tasks, ["detr", "mixture", "mtr", "qcnet", "scene_variety", "variety"]),
    "coming_from_repositories": (
        arguments_of_repositories,
        ["lora_mcl", "manipose", "mf_awta", "npe", "sam", "timemcl"],
    ),
}
NAMESPACES: dict = {page: {} for page in PAGES}
for page, namespace in NAMESPACES.items():
    for block in python_blocks(ROOT / "docs" / f"{page}.rst"):
        exec(compile(block, f"{page}.rst", "exec"), namespace)


def value_and_gradients(page, name):
    arguments = PAGES[page][0]()
    function = NAMESPACES[page][name]
    names = [key for key, value in inspect.signature(function).parameters.items() if value.default is value.empty]
    taken = {key: arguments[key] for key in names}
    loss = function(**taken)
    leaves = [value for value in taken.values() if value.requires_grad]
    return loss.detach(), torch.autograd.grad(loss, leaves)


@for_each("page", PAGES)
def test_both_ways_give_the_same_loss_and_gradients(page):
    names = sorted(name.removesuffix("_by_hand") for name in NAMESPACES[page] if name.endswith("_by_hand"))
    assert names == PAGES[page][1]
    for name in names:
        ours, theirs = value_and_gradients(page, name), value_and_gradients(page, f"{name}_by_hand")
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_the_step_of_a_mixture_has_the_gradient_of_its_likelihood():
    arguments, namespace = arguments_of_tasks(), NAMESPACES["coming_from"]
    names = ("locations", "logits", "scale")
    mcl, model = namespace["mcl"], namespace["as_model"](*(arguments[name] for name in names))
    batch = mcl.Batch(arguments["target"], arguments["target"], arguments["mask"])
    cost_fn = mcl.MixtureNLL(mcl.pairwise_gaussian_nll)
    loss = mcl.mcl_step(model, batch, mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0).loss
    gradients = torch.autograd.grad(loss, [arguments[name] for name in names])
    torch.testing.assert_close(gradients, value_and_gradients("coming_from", "mixture_by_hand")[1])


def test_training_a_mixture_of_full_normals_has_the_gradient_of_its_likelihood():
    arguments, namespace = arguments_of_repositories(), NAMESPACES["coming_from_repositories"]
    mcl, costs = namespace["mcl"], namespace["costs"]
    places, logits, factors = (arguments[name] for name in ("places", "logits", "factors"))
    batch = mcl.Batch(None, arguments["parameters"])
    cost_fn = mcl.MixtureNLL(costs.FullNormal())
    model = mcl.Distributions(places, logits, factors)
    loss = mcl.mcl_step(lambda _: model, batch, mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0).loss
    gradients = torch.autograd.grad(loss, [places, factors, logits])
    torch.testing.assert_close(gradients, value_and_gradients("coming_from_repositories", "npe_by_hand")[1])
