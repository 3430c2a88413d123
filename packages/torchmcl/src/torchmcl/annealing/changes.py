"""Changes of hypotheses under any rule, as made by `AutoAnnealing`.

Under a schedule, part hypotheses before the cooling if they were trained at a high temperature, where they merge, and
move them a few times after it, when the temperature is 0 or nearly so.
"""

import torch
from torch import nn

from torchmcl._checks import bad_value, check_positive
from torchmcl.annealing.course import OptimizerWeights
from torchmcl.annealing.moves import Samples, head_of, planned_moves
from torchmcl.nn import MultiHypothesisHead
from torchmcl.types import Batch, Predictions, StepOutput


def move_hypotheses(model: nn.Module, optimizer: torch.optim.Optimizer, output: StepOutput) -> int:
    """Move redundant hypotheses to modes that share one hypothesis, and return the number of moves.

    A move is made only if the gain, measured on one half of the batch after it was planned on the other, exceeds the
    loss; see `torchmcl.annealing.moves`. Distances are squared Euclidean under every cost.

    Args:
        model: trained, ending in a `MultiHypothesisHead`.
        optimizer: of the model; a moved hypothesis takes its moments along.
        output: of `mcl_step` on a batch of some hundred samples, several for each hypothesis.

    Raises:
        ValueError: if the model has no such head, or the targets are not of the kind of the hypotheses.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=3, hidden=())
        >>> _ = model.head.linear.weight.data.zero_()
        >>> model.head.linear.bias.data[:3] = torch.tensor([0.0, 5.0, 5.01])  # the first serves two modes
        >>> batch = mcl.Batch(torch.zeros(300, 1), torch.tensor([-1.0, 1.0, 5.0]).repeat(100).view(300, 1, 1))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> move_hypotheses(model, optimizer, mcl.mcl_step(model, batch, mcl.WTA()))
        1
        >>> model.head.linear.bias.data[:3].sort().values
        tensor([-1.,  1.,  5.])
    """
    head = _head("move_hypotheses", model)
    matching = output.matching
    samples = None
    if output.targets is not None and matching.cost.ndim == 3:
        stacked = Predictions(output.predictions.hypotheses.unsqueeze(0), None)
        mask = matching.mask
        samples = Samples.of(stacked, Batch(mask, output.targets.unsqueeze(0), mask.unsqueeze(0)))
    if samples is None:
        rule = "have targets of the shape of a hypothesis, without masks of steps"
        advice = "Hypotheses cannot be moved under this cost."
        raise ValueError(bad_value("move_hypotheses", "output", rule, "others", advice))
    moves = planned_moves(samples, torch.ones(1, dtype=torch.bool, device=samples.targets.device))
    OptimizerWeights(optimizer, head, None).move(moves)
    places = torch.arange(head.n_hypotheses, device=moves.source.device)
    return int((moves.source != places).sum())


def part_hypotheses(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.4) -> None:
    """Set the hypotheses to their mean plus a random constant each, drawn as initial biases are, times a factor.

    Hypotheses that a high temperature has merged get the same gradients: nothing else parts them again. Differences
    that do not depend on the input part them in the same way everywhere, so that none of them has to jump from one mode
    to another between two inputs.

    Args:
        model: ending in a `MultiHypothesisHead`.
        optimizer: of the model.
        factor: size of the constants relative to initial biases. After a training at a high temperature, multiply it by
            the square root of the share of the cost that is left.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(8,))
        >>> for parameter in model.head.linear.parameters():
        ...     _ = parameter.data.fill_(0.1)
        >>> part_hypotheses(model, torch.optim.Adam(model.parameters()))
        >>> bool(model(torch.ones(1, 1)).hypotheses.std() > 0)
        True
    """
    check_positive("part_hypotheses", "factor", factor)
    head = _head("part_hypotheses", model)
    OptimizerWeights(optimizer, head, None).part(torch.full((1,), float(factor), device=head.linear.weight.device))


def _head(owner: str, model: nn.Module) -> MultiHypothesisHead:
    found = head_of(model)
    if found is None:
        rule, got = "have one MultiHypothesisHead with trained weights", type(model).__name__
        raise ValueError(bad_value(owner, "model", rule, got, "Replace its last layer by `MultiHypothesisHead`."))
    return found[1]
