"""Pictures of a hypothesis tree, drawn with matplotlib."""

from typing import Any

from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl._optional import optional_import
from torchmcl.annealing.tree import HypothesisTree

_DATA_COLOUR = "#9fb8a0"


def draw_tree(tree: HypothesisTree, axis: Any = None, data: Tensor | None = None) -> Any:
    """Draw a tree over its data: a point per node, sized by its mass, and a line to each child.

    Targets in the plane are drawn in the plane, colors giving the temperature at which a node appears; targets on
    a line against the temperature.

    Args:
        tree: of one input.
        axis: a matplotlib axis; a new one by default.
        data: [points, dim], samples of the targets of that input.

    Returns:
        The axis.

    Raises:
        ValueError: if the targets have more than two dimensions.
    """
    dim = len(tree.root.position)
    if dim > 2:
        rule = "have positions of one or two dimensions"
        raise ValueError(bad_value("draw_tree", "tree", rule, dim, "draw_dendrogram needs no positions."))
    axis = _axis(axis, "draw_tree")
    births = [node.birth_temperature for node in tree.nodes]
    coldest = min(birth for birth in births if birth > 0)
    if dim == 2:
        places = [tuple(node.position.tolist()) for node in tree.nodes]
    else:
        places = [(float(node.position), max(node.birth_temperature, coldest / 2)) for node in tree.nodes]
    if data is not None:
        y = data[:, 1] if dim == 2 else [coldest / 3] * len(data)
        axis.scatter(data[:, 0], y, s=4, c=_DATA_COLOUR, alpha=0.5, linewidths=0, zorder=0)
    for node, place in zip(tree.nodes, places, strict=True):
        for child in node.children:
            axis.plot(*zip(place, places[child], strict=True), color="#44546a", lw=0.9, zorder=1)
    colours = optional_import("matplotlib.colors", extra="demo", needed_by="draw_tree")
    points = axis.scatter(
        [place[0] for place in places],
        [place[1] for place in places],
        s=[20 + 220 * node.mass for node in tree.nodes],
        c=[max(birth, coldest / 2) for birth in births],
        cmap="plasma",
        norm=colours.LogNorm(vmin=coldest / 2, vmax=max(births)),
        edgecolors="#222",
        linewidths=0.5,
        zorder=2,
    )
    if dim == 1:
        axis.set(yscale="log", ylabel="temperature of birth", xlabel="target")
    axis.figure.colorbar(points, ax=axis, label="temperature of birth", fraction=0.046, pad=0.03)
    return axis


def draw_dendrogram(tree: HypothesisTree, axis: Any = None) -> Any:
    """Draw a tree as a dendrogram: temperature upwards, a branch per group, as wide as its mass.

    Args:
        tree: of one input.
        axis: a matplotlib axis; a new one by default.

    Returns:
        The axis.
    """
    axis = _axis(axis, "draw_dendrogram")
    # Leaves side by side in the order of a walk through the tree; a parent above the middle of its children.
    column: dict[int, float] = {}
    order: list[int] = []

    def walk(number: int) -> None:
        for child in tree.nodes[number].children:
            walk(child)
        children = tree.nodes[number].children
        if children:
            column[number] = sum(column[child] for child in children) / len(children)
        else:
            column[number] = len(order)
            order.append(number)

    walk(0)
    floor = min(node.birth_temperature for node in tree.nodes if node.birth_temperature > 0) / 2
    for number, node in enumerate(tree.nodes):
        top = max(node.birth_temperature, floor)
        births = [max(tree.nodes[child].birth_temperature, floor) for child in node.children]
        bottom = min(births) if births else floor
        axis.plot([column[number]] * 2, [top, bottom], color="#0072B2", lw=0.8 + 5 * node.mass, solid_capstyle="butt")
        for child, birth in zip(node.children, births, strict=True):
            axis.plot([column[number], column[child]], [birth, birth], color="#44546a", lw=0.8)
    axis.set(yscale="log", ylabel="temperature", xlabel="hypotheses", xticks=[])
    return axis


def _axis(axis: Any, needed_by: str) -> Any:
    if axis is not None:
        return axis
    pyplot = optional_import("matplotlib.pyplot", extra="demo", needed_by=needed_by)
    return pyplot.subplots(figsize=(6, 5))[1]
