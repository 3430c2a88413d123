"""Metrics over many batches and processes, with torchmetrics."""

from typing import Any

import torch
import torchmetrics
from torch import Tensor

from torchmcl.errors import bad_value
from torchmcl.metrics.inputs import MetricFunction, Sums

__all__ = ["Metric"]


class Metric(torchmetrics.Metric):
    """A metric of this package as a torchmetrics class: its sums are added up over batches and processes.

    Args:
        function: Function of `torchmcl.metrics`.
        **options: Options of the function, the same for all batches.

    Example:
        >>> import torch, torchmcl as mcl
        >>> usage = mcl.metrics.Metric(mcl.metrics.hypothesis_usage)
        >>> for cost in (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[2.0, 1.0], [3.0, 4.0]])):
        ...     usage.update(mcl.assign(cost, mcl.WTA()))
        >>> usage.compute()
        tensor([0.7500, 0.2500])
    """

    full_state_update = False
    total: Tensor
    n: Tensor

    def __init__(self, function: MetricFunction[Any], **options: Any) -> None:
        super().__init__()
        if not callable(getattr(function, "sums", None)):
            rule = "be a function of torchmcl.metrics"
            raise TypeError(bad_value("Metric", "function", rule, repr(function), "metrics.distortion for example."))
        self.function, self.options = function, options
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("n", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch: the arguments of the function, without the options."""
        total, n = self.function.sums(*args, **kwargs, **self.options)
        self.total = self.total + total.detach()
        self.n = self.n + n

    def compute(self) -> Tensor:
        """Return the metric of all batches so far."""
        return self.function.result(Sums(self.total, self.n)).float()
