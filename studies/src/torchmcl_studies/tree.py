"""Hypothesis tree of an input: how its hypotheses split as the temperature falls, from a history of weights.

`draw_tree` and `draw_dendrogram` draw it with matplotlib.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib.colors import LogNorm
from torch import Tensor, nn

from torchmcl import Predictions, normalized_scores
from torchmcl.annealing import network_tolerance
from torchmcl.checks import check_non_negative, check_positive_int, check_tensor
from torchmcl.costs import pairwise_euclidean
from torchmcl.errors import bad_value

__all__ = ["HypothesisTree", "Node", "WeightHistory", "draw_dendrogram", "draw_tree"]


@dataclass(frozen=True)
class Node:
    """A group of hypotheses that stay together over a range of temperatures.

    Attributes:
        position: Weighted mean of the group just before it splits, or at the end for a leaf, [dim].
        mass: Probability that one of its hypotheses is the best one.
        birth_temperature: Highest temperature at which the group is separate from other hypotheses.
        death_temperature: Lowest temperature at which the group is whole; 0 for a leaf.
        members: Indices of its hypotheses.
        parent: Index of the parent node; None for the root.
        children: Indices of the nodes into which the group splits.
    """

    position: Tensor
    mass: float
    birth_temperature: float
    death_temperature: float
    members: tuple[int, ...]
    parent: int | None
    children: tuple[int, ...]


@dataclass(frozen=True)
class HypothesisTree:
    """The hierarchy of the modes of one input: node 0 is the root, parents come before their children.

    Example:
        >>> places = torch.tensor([[[0.0], [0.0], [0.0]], [[-1.0], [1.0], [1.0]], [[-1.0], [0.9], [1.1]]])
        >>> tree = HypothesisTree.of(torch.tensor([3.0, 1.0, 0.01]), places)
        >>> [(node.members, round(node.birth_temperature, 2)) for node in tree.nodes]
        [((0, 1, 2), 3.0), ((0,), 1.0), ((1, 2), 1.0), ((1,), 0.01), ((2,), 0.01)]
        >>> [round(node.position.item(), 2) for node in tree.cut(temperature=0.5)]
        [-1.0, 1.0]
    """

    nodes: tuple[Node, ...]

    @classmethod
    def for_inputs(
        cls, inputs: Tensor, history: "WeightHistory", *, persistence: float = 1.2
    ) -> "list[HypothesisTree]":
        """Return the tree of each input [inputs, ...], from the weights of a model along its cooling.

        Args:
            inputs: Inputs of the model, [inputs, ...].
            history: Weights at two or more temperatures; a finer grid locates the splits more precisely.
            persistence: Smallest ratio of temperatures over which a group must stay whole, see `of`.

        Reference:
            "Annealing at inference time" in the appendix.
        """
        hypotheses, logits, *_ = history.predict(inputs)
        temperatures = torch.tensor(history.temperatures)
        masses = None if logits is None else normalized_scores(logits[-1])
        return [
            cls.of(temperatures, hypotheses[:, i], None if masses is None else masses[i], persistence=persistence)
            for i in range(len(inputs))
        ]

    @classmethod
    def of(
        cls, temperatures: Tensor, hypotheses: Tensor, masses: Tensor | None = None, *, persistence: float = 1.2
    ) -> "HypothesisTree":
        """Return the tree of hypotheses that were recorded while the temperature fell.

        Hypotheses are linked at a temperature if they are within `network_tolerance` of each other. Two hypotheses are
        in the same group at T if links at T or below connect them, so that groups can only split as T falls.

        Args:
            temperatures: Temperatures, [snapshots], non-increasing.
            hypotheses: Hypotheses, [snapshots, hypotheses, dim]; hypothesis k is the same output of the network in all
                snapshots.
            masses: Probabilities of the hypotheses, [hypotheses], summing to 1; equal by default.
            persistence: Smallest ratio of temperatures over which a group must stay whole. A group that splits earlier
                is an intermediate step and not a mode: its children become children of its parent. 1 keeps every group.

        Raises:
            ValueError: If there are fewer than two temperatures, temperatures increase, or shapes are inconsistent.
        """
        _check("HypothesisTree", temperatures, hypotheses, persistence)
        n_hypotheses = hypotheses.shape[-2]
        masses = hypotheses.new_full((n_hypotheses,), 1 / n_hypotheses) if masses is None else masses
        groups = _groups(temperatures, hypotheses)
        return cls(tuple(_nodes(groups, temperatures, hypotheses, masses, persistence)))

    @property
    def root(self) -> Node:
        """Node of all hypotheses."""
        return self.nodes[0]

    @property
    def leaves(self) -> list[Node]:
        """Nodes that do not split."""
        return [node for node in self.nodes if not node.children]

    def children(self, node: Node) -> list[Node]:
        """Return the nodes that a node splits into."""
        return [self.nodes[i] for i in node.children]

    def cut(self, *, temperature: float | None = None, n_clusters: int | None = None) -> list[Node]:
        """Return the groups at a temperature, or the finest cut with at most `n_clusters` groups.

        Several groups can appear at one temperature, so some numbers of clusters have no cut.

        Raises:
            ValueError: Unless exactly one argument is passed, or if there are fewer leaves than clusters.
        """
        if (temperature is None) == (n_clusters is None):
            rule, got = "be passed without `n_clusters`", f"{temperature!r} and n_clusters={n_clusters!r}"
            raise ValueError(bad_value("HypothesisTree.cut", "temperature", rule, got, "Choose one of the two."))
        if temperature is not None:
            check_non_negative("HypothesisTree.cut", "temperature", temperature)
            return self._alive(temperature)
        assert n_clusters is not None
        check_positive_int("HypothesisTree.cut", "n_clusters", n_clusters)
        if n_clusters > len(self.leaves):
            rule = f"be at most the number of leaves, {len(self.leaves)}"
            raise ValueError(bad_value("HypothesisTree.cut", "n_clusters", rule, n_clusters))
        cuts = [self._alive(t) for t in sorted({node.birth_temperature for node in self.nodes}, reverse=True)]
        return [cut for cut in cuts if len(cut) <= n_clusters][-1]

    def _alive(self, temperature: float) -> list[Node]:
        """Return the nodes that exist at a temperature: born, but with at least one child that is not born yet."""
        alive: list[Node] = []
        waiting = [self.root]
        while waiting:
            node = waiting.pop(0)
            children = self.children(node)
            if children and all(child.birth_temperature >= temperature for child in children):
                waiting = children + waiting
            else:
                alive.append(node)
        return alive


def _check(owner: str, temperatures: Tensor, hypotheses: Tensor, persistence: float) -> None:
    check_tensor(owner, "temperatures", temperatures)
    check_tensor(owner, "hypotheses", hypotheses)
    if temperatures.ndim != 1 or len(temperatures.unique()) < 2:
        advice = "A split is detected between two temperatures."
        got = f"{len(temperatures.unique())} of shape {tuple(temperatures.shape)}"
        raise ValueError(bad_value(owner, "temperatures", "have at least two distinct values [snapshots]", got, advice))
    if bool((temperatures.diff() > 0).any()) or bool((temperatures < 0).any()):
        raise ValueError(bad_value(owner, "temperatures", "be >= 0 and never increase", temperatures.tolist()))
    if hypotheses.ndim != 3 or len(hypotheses) != len(temperatures):
        rule = f"have shape [snapshots, hypotheses, dim] with {len(temperatures)} snapshots"
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape)))
    if persistence < 1:
        raise ValueError(bad_value(owner, "persistence", "be >= 1", repr(persistence), "1 keeps every group."))


def _groups(temperatures: Tensor, hypotheses: Tensor) -> list[list[frozenset[int]]]:
    """Return the partition of the hypotheses at each snapshot, each a refinement of the one before it."""
    n_hypotheses = hypotheses.shape[-2]
    distance = pairwise_euclidean(hypotheses=hypotheses, targets=hypotheses)  # exact for equal points
    linked = distance <= network_tolerance(temperatures)[:, None, None]
    # From cold to hot: hypotheses that are linked at a temperature stay connected above it.
    joined = torch.eye(n_hypotheses, dtype=torch.bool)
    partitions = []
    for links in linked.flip(0):
        joined = _closure(joined | links)
        partitions.append([frozenset(row.nonzero().flatten().tolist()) for row in joined.unique(dim=0)])
    return partitions[::-1]


def _closure(linked: Tensor) -> Tensor:
    """Return which hypotheses are connected by a chain of links."""
    reach = linked | linked.mT
    while True:
        further = (reach.float() @ reach.float()) > 0
        if torch.equal(further, reach):
            return reach
        reach = further


def _nodes(
    partitions: Sequence[list[frozenset[int]]],
    temperatures: Tensor,
    hypotheses: Tensor,
    masses: Tensor,
    persistence: float,
) -> list[Node]:
    everything = frozenset(range(hypotheses.shape[-2]))
    # Snapshots at which each group exists. If the hypotheses are already split in the hottest snapshot, the root has
    # no snapshots.
    life: dict[frozenset[int], list[int]] = {everything: []}
    for number, partition in enumerate(partitions):
        for group in partition:
            life.setdefault(group, []).append(number)
    # Larger groups first: a parent comes before its children, and siblings in the order of their members.
    groups = sorted(life, key=lambda group: (-len(group), sorted(group)))
    parent: dict[frozenset[int], frozenset[int]] = {}
    for group in groups[1:]:
        parent[group] = min((other for other in groups if group < other), key=len)
    split = set(parent.values())

    def heat(group: frozenset[int], end: int) -> float:
        return float(temperatures[life[group][end]]) if life[group] else float(temperatures[0])

    def is_passing(group: frozenset[int]) -> bool:
        if group == everything or group not in split:
            return False
        return heat(group, 0) < persistence * float(temperatures[life[group][-1] + 1])  # where it is first seen split

    kept = [group for group in groups if not is_passing(group)]
    for group in kept[1:]:
        while parent[group] not in kept:
            parent[group] = parent[parent[group]]
    kept.sort(key=lambda group: (-_depth_temperature(heat(group, 0), group == everything), sorted(group)))
    number_of = {group: number for number, group in enumerate(kept)}
    nodes = []
    for group in kept:
        members = sorted(group)
        children = tuple(number_of[other] for other in kept if other != everything and parent[other] == group)
        position = hypotheses[life[group][-1] if life[group] else 0, members]
        mass = masses[members]
        weights = mass / mass.sum() if float(mass.sum()) > 0 else torch.full_like(mass, 1 / len(members))
        nodes.append(
            Node(
                position=(weights[:, None] * position).sum(dim=0),
                mass=float(mass.sum()),
                birth_temperature=heat(group, 0),
                death_temperature=heat(group, -1) if children else 0.0,
                members=tuple(members),
                parent=None if group == everything else number_of[parent[group]],
                children=children,
            )
        )
    return nodes


def _depth_temperature(birth: float, is_root: bool) -> float:
    """Return the key that sorts nodes from the root down: hot before cold, the root before all."""
    return float("inf") if is_root else birth


class WeightHistory:
    """Weights of one model at falling temperatures.

    Args:
        model: Module that returns Predictions; its structure is copied.

    Example:
        >>> from torchmcl import MultiHypothesisMLP
        >>> model = MultiHypothesisMLP(1, 2, n_hypotheses=3, hidden=(4,))
        >>> history = WeightHistory(model)
        >>> for temperature in (1.0, 0.5):
        ...     history.add(temperature, model)  # after some training at this temperature
        >>> history.predict(torch.zeros(5, 1)).hypotheses.shape
        torch.Size([2, 5, 3, 2])

    Reference:
        "Annealing at inference time" in the appendix.
    """

    def __init__(self, model: nn.Module) -> None:
        self._template = copy.deepcopy(model).cpu()
        self.temperatures: list[float] = []
        self.states: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        """Return the number of temperatures."""
        return len(self.temperatures)

    def add(self, temperature: float, model: nn.Module) -> None:
        """Store a copy of the weights of `model` at a temperature; temperatures must not increase.

        Raises:
            ValueError: If the temperature is above the previous one.
        """
        check_non_negative("WeightHistory.add", "temperature", temperature)
        if self.temperatures and temperature > self.temperatures[-1]:
            rule = f"not exceed the previous temperature {self.temperatures[-1]:g}"
            raise ValueError(bad_value("WeightHistory.add", "temperature", rule, f"{temperature:g}"))
        self.temperatures.append(float(temperature))
        self.states.append({name: value.detach().cpu().clone() for name, value in model.state_dict().items()})

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Predictions:
        """Return the predictions for inputs [inputs, ...] at each temperature, [temperatures, inputs, ...].

        Raises:
            ValueError: If there are fewer than two temperatures.
        """
        if len(self) < 2:
            advice = "Call add(temperature, model) repeatedly during training."
            rule = "contain at least two temperatures"
            raise ValueError(bad_value("WeightHistory.predict", "temperatures", rule, len(self), advice))
        model = copy.deepcopy(self._template).eval()
        predictions: list[Predictions] = []
        for state in self.states:
            model.load_state_dict(state)
            predictions.append(model(inputs))
        logits = [part.score_logits for part in predictions if part.score_logits is not None]
        return Predictions(
            torch.stack([part.hypotheses for part in predictions]), torch.stack(logits) if logits else None
        )


_DATA_COLOR = "#9fb8a0"


def draw_tree(tree: HypothesisTree, axis: Any = None, data: Tensor | None = None) -> Any:
    """Draw a tree over its data: a point per node, whose size is its mass, and a line to each child.

    Nodes with two-dimensional positions are drawn in the plane, and colors show the temperature at which they appear;
    nodes with one-dimensional positions are drawn against the temperature.

    Args:
        tree: Tree of one input.
        axis: Axis of matplotlib; a new one by default.
        data: Samples of the targets of the input, [points, dim].

    Returns:
        The axis.

    Raises:
        ValueError: If the positions have more than two dimensions.
    """
    dim = len(tree.root.position)
    if dim > 2:
        rule = "have positions of one or two dimensions"
        raise ValueError(bad_value("draw_tree", "tree", rule, dim, "Use draw_dendrogram instead."))
    axis = pyplot.subplots(figsize=(6, 5))[1] if axis is None else axis
    births = [node.birth_temperature for node in tree.nodes]
    coldest = min(birth for birth in births if birth > 0)
    if dim == 2:
        places = [tuple(node.position.tolist()) for node in tree.nodes]
    else:
        places = [(float(node.position), max(node.birth_temperature, coldest / 2)) for node in tree.nodes]
    if data is not None:
        y = data[:, 1] if dim == 2 else [coldest / 3] * len(data)
        axis.scatter(data[:, 0], y, s=4, c=_DATA_COLOR, alpha=0.5, linewidths=0, zorder=0)
    for node, place in zip(tree.nodes, places, strict=True):
        for child in node.children:
            axis.plot(*zip(place, places[child], strict=True), color="#44546a", lw=0.9, zorder=1)
    points = axis.scatter(
        [place[0] for place in places],
        [place[1] for place in places],
        s=[20 + 220 * node.mass for node in tree.nodes],
        c=[max(birth, coldest / 2) for birth in births],
        cmap="plasma",
        norm=LogNorm(vmin=coldest / 2, vmax=max(births)),
        edgecolors="#222",
        linewidths=0.5,
        zorder=2,
    )
    if dim == 1:
        axis.set(yscale="log", ylabel="temperature of birth", xlabel="target")
    axis.figure.colorbar(points, ax=axis, label="temperature of birth", fraction=0.046, pad=0.03)
    return axis


def draw_dendrogram(tree: HypothesisTree, axis: Any = None) -> Any:
    """Draw a tree as a dendrogram over the temperature, with a branch per group whose width is its mass.

    Args:
        tree: Tree of one input.
        axis: Axis of matplotlib; a new one by default.

    Returns:
        The axis.
    """
    axis = pyplot.subplots(figsize=(6, 5))[1] if axis is None else axis
    # Leaves are placed side by side in depth-first order, a parent above the center of its children.
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
