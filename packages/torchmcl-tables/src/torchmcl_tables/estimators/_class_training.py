"""The engine of the classifier: mixtures over classes, trained as a fleet in which each network has its own rows."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl.costs import MixtureNLL, pairwise_cross_entropy
from torchmcl.fleet import Checkpointing, Fleet, FleetData, MixtureLogLoss, Validation, even_batch_size
from torchmcl.types import Predictions
from torchmcl_tables.estimators._networks import Examples, Trained, Training, mean_one

__all__ = ["CLASS_COST", "ClassTraining", "best_temperature", "log_shares"]

#: -log(score p(class)) of each hypothesis.
CLASS_COST = MixtureNLL(pairwise_cross_entropy)
# Evaluations on held-out rows in a training, and saves.
_N_LOOKS, _N_SAVES = 100, 5
_ROWS_AT_ONCE = 65_536
# Temperatures of the probabilities that are tried; few rows are not believed to ask for one far from 1.
_TEMPERATURES = np.exp(np.linspace(-1.5, 1.5, 61))
_ROWS_OF_DOUBT = 20.0


@dataclass(frozen=True)
class ClassTraining(Training):
    """How to train: everything of a fleet but its data."""

    def run(
        self,
        factory: Callable[[], nn.Module],
        train: Examples | Sequence[Examples],
        watched: Examples | Sequence[Examples] | None = None,
    ) -> Trained:
        """Train; with `keep_best` the epoch with the lowest log-loss of all networks together is kept, else the last.

        Args:
            factory: makes an untrained network.
            train: rows for all networks, or for each.
            watched: held-out rows, the same way.
        """
        fleet = Fleet(
            factory,
            len(self.seeds),
            rule=self.rule,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            seeds=self.seeds,
            cost_fn=CLASS_COST,
            score_weight=0,
            device=self.device,
        )
        fleet.optimizer_state = self.moments
        data = _data(train, len(self.seeds))
        validation = None if watched is None else self._watching(watched)
        history = fleet.fit(
            data,
            self.n_epochs,
            batch_size=even_batch_size(data.inputs.shape[1], self.batch_size),
            validation=validation,
            checkpoint=self._checkpointing(),
            models_at_once=len(self.seeds),  # they are compared with each other
            continued=True,
            progress=self.progress,
        )
        keeps = validation is not None and self.keep_best
        modules = fleet.best_models if keeps else fleet.models
        assert fleet.optimizer_state is not None  # a continued training leaves it
        best_epochs = history.best_epoch if keeps else torch.full_like(history.best_epoch, -1)
        made = [module.eval() for module in modules]
        return Trained(made, history, history.best_value, best_epochs, fleet.optimizer_state)

    def _watching(self, watched: Examples | Sequence[Examples]) -> Validation:
        rows = _data(watched, len(self.seeds))
        shape = len(self.seeds), rows.inputs.shape[1]
        weights = torch.ones(shape) if rows.weights is None else rows.weights[rows.set_of_model]
        return Validation(
            rows._replace(weights=None),
            monitor=MixtureLogLoss(weights, together=True),
            every=max(1, self.n_epochs // _N_LOOKS),
            patience=self.patience,
        )

    def _checkpointing(self) -> Checkpointing | None:
        return (
            None if self.checkpoint is None else Checkpointing(self.checkpoint, every=max(1, self.n_epochs // _N_SAVES))
        )


def _data(examples: Examples | Sequence[Examples], n_networks: int) -> FleetData:
    """Return the rows of all networks, or of each: shorter sets are filled up with rows of weight 0."""
    if isinstance(examples, Examples):
        return FleetData.shared(examples.inputs, examples.targets, n_networks, weights=mean_one(examples.weights))
    sets = list({id(each): each for each in examples}.values())
    places = {id(each): place for place, each in enumerate(sets)}
    longest = max(len(each.weights) for each in sets)
    filled = [_filled(each, longest) for each in sets]
    data = FleetData.of_sets([(each.inputs, each.targets) for each in filled], [places[id(each)] for each in examples])
    weights = np.stack([each.weights for each in filled])
    if (weights == weights[0, 0]).all():
        return data
    means = np.maximum(weights.mean(axis=1, keepdims=True), 1e-300)
    return data._replace(weights=torch.from_numpy(weights / means).float())


def _filled(examples: Examples, n_rows: int) -> Examples:
    inputs, targets, weights = examples
    n_more = n_rows - len(weights)
    if not n_more:
        return examples
    inputs, targets = (torch.cat([part, part.new_zeros(n_more, *part.shape[1:])]) for part in (inputs, targets))
    return Examples(inputs, targets, np.concatenate([weights, np.zeros(n_more)]))


@torch.no_grad()
def log_shares(modules: Sequence[nn.Module], inputs: Tensor, device: str | torch.device) -> Tensor:
    """Return the log-probabilities of the classes by each network, [networks, rows, classes], in float64."""
    at = torch.device(device)
    movable = [copy.deepcopy(module).to(at, inputs.dtype) for module in modules]  # others may be predicting, in threads
    parts = []
    for rows in inputs.split(_ROWS_AT_ONCE):
        given: list[Predictions] = [module(rows.to(at)) for module in movable]
        parts.append(torch.stack([_mixed(one) for one in given]))
    return torch.cat(parts, dim=1)


def _mixed(answers: Predictions) -> Tensor:
    """Return the log-probabilities of the mixture, [rows, classes]."""
    assert answers.score_logits is not None
    scores = answers.score_logits.cpu().double().log_softmax(dim=-1)
    return torch.logsumexp(answers.hypotheses.cpu().double().log_softmax(dim=-1) + scores.unsqueeze(-1), dim=-2)


def best_temperature(log_shares: Tensor, classes: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the temperature of probabilities with the lowest log-loss on rows [rows, classes] that did not train.

    It is held near 1 as if by some more rows, whose log-loss is the squared logarithm of the temperature: on a few
    rows that are all right the lowest log-loss would be that of certainty.
    """
    ids, counts = torch.from_numpy(classes), torch.from_numpy(weights / weights.mean())
    losses = []
    for temperature in _TEMPERATURES:
        chosen = (log_shares / temperature).log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
        losses.append(float(-(counts * chosen).sum()) + _ROWS_OF_DOUBT * float(np.log(temperature)) ** 2)
    return float(_TEMPERATURES[int(np.argmin(losses))])
