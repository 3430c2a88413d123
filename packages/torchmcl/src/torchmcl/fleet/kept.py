"""The models of a fleet between trainings: their weights, and each of them as an ordinary module."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.fleet.stacked import StackedModules

__all__ = ["FleetModels", "KeptModels"]


class FleetModels:
    """The models of a fleet as a sequence of ordinary modules."""

    def __init__(self, stacked: StackedModules) -> None:
        self._stacked = stacked

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._stacked)

    def __getitem__(self, index: int) -> nn.Module:
        """Return model `index` as a module of its own."""
        if not -len(self) <= index < len(self):
            raise IndexError(bad_value("Fleet.models", "index", f"lie below {len(self)}", index))
        return self._stacked.module(index % len(self))

    def __iter__(self) -> Iterator[nn.Module]:
        """Go through the models."""
        return (self[index] for index in range(len(self)))


class KeptModels:
    """The models of a fleet between trainings, on the CPU: the last ones, and the best of a validation.

    Args:
        last: the models.
    """

    def __init__(self, last: StackedModules) -> None:
        self.last = last
        self._best: StackedModules | None = None

    def chosen(self, *, best: bool) -> StackedModules:
        """Return the last models, or the best ones.

        Raises:
            ValueError: if there are no best ones.
        """
        if not best:
            return self.last
        if self._best is None:
            rule = "be asked for after fit(..., validation=...)"
            raise ValueError(bad_value("Fleet", "best", rule, "a fleet that was not validated"))
        return self._best

    def keep_best(self) -> None:
        """Make room for the best models, which are the last ones until there are better ones."""
        self._best = self.last.subset(slice(0, len(self.last)), torch.device("cpu"), copy_rows=True)

    @torch.no_grad()
    def take(self, rows: slice, last: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Keep the trained weights and buffers of some of the models."""
        for models, trained in ((self.last, last), (self._best, best)):
            if models is not None and trained is not None:
                for name, kept in models.state.items():
                    kept[rows] = trained[name].to(kept.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the last models, and of the best ones where there are any."""
        kept = {"last": self.last} | ({} if self._best is None else {"best": self._best})
        return {
            name if part == "flat" else f"{name}.{part}": value
            for name, models in kept.items()
            for part, value in models.state.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take weights and buffers from `state_dict`.

        Raises:
            ValueError: if they are not those of such a fleet.
        """
        given = _states_of(state, self.last)
        if "best" in given:
            self.keep_best()
        self.take(slice(0, len(self.last)), given["last"], given.get("best"))


def _states_of(state: dict[str, Tensor], models: StackedModules) -> dict[str, dict[str, Tensor]]:
    """Return the parts of a fleet's `state_dict`, "last" and maybe "best", each like `models.state`.

    Raises:
        ValueError: if something is missing, of another shape, or too much.
    """
    wanted = {name: tuple(value.shape) for name, value in models.state.items()}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        name, _, part = key.partition(".")
        parts.setdefault(name, {})[part or "flat"] = value
    shapes = [{name: tuple(value.shape) for name, value in part.items()} for part in parts.values()]
    if not {"last"} <= parts.keys() <= {"last", "best"} or any(each != wanted for each in shapes):
        rule = f"hold 'last' and maybe 'best' of shape {wanted.pop('flat')}"
        rule += f", and for each the buffers {wanted}" if wanted else ""
        raise ValueError(bad_value("Fleet", "state", rule, {name: tuple(value.shape) for name, value in state.items()}))
    return parts
