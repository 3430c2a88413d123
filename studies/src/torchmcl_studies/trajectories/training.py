"""Training of the networks of one scene: seeds and rules as fleets, and joint winners in a separate loop."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from torchmcl import AutoAnnealing
from torchmcl._progress import Progress
from torchmcl.costs import MixtureNLL, pairwise_gaussian_nll
from torchmcl.fleet import Adam, Fleet, SampledData
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine, JoinedSchedule, Linear, Schedule
from torchmcl.scoring import SoftmaxScores
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Predictions
from torchmcl_studies.common import own_random_numbers
from torchmcl_studies.trajectories.methods import Method, path_cost
from torchmcl_studies.trajectories.network import PathNetwork
from torchmcl_studies.trajectories.rows import Drawing

__all__ = ["GROUP_SIZE", "STEPS_PER_EPOCH", "train_fleet", "train_jointly"]

# Rows are drawn anew for every epoch, and rates and temperatures change with it.
STEPS_PER_EPOCH = 20
# Scenes of up to 32 people; larger crowds are cut. Most have three or four, so that a batch of scenes has room for four
# times as many people as a batch of windows.
GROUP_SIZE, _ROOM = 32, 4
_RATE, _DECAY, _BETA2 = 2e-3, 0.3, 0.98
# Of the training, in which the learning rate rises: 200 of 7400 steps.
_WARM_UP = 1 / 37
_SCORE_WEIGHT = 0.3


def train_fleet(
    models: Sequence[tuple[Method, int]],
    drawing: Drawing,
    n_epochs: int,
    *,
    batch_size: int,
    device: str,
    progress: str | bool,
) -> list[nn.Module]:
    """Train methods of one kind with their seeds side by side, and return a network for each.

    All networks see the same rows; seeds differ in their initial weights and in dropout.

    Args:
        models: pairs of a method and a seed.
        drawing: where rows come from.
        n_epochs: epochs of `STEPS_PER_EPOCH` steps.
        batch_size: windows of a batch; of scenes, a quarter of the room for people.
        device: to train on.
        progress: what stands in front of the bar; False shows none.
    """
    kind = models[0][0].kind
    mixture = kind == "mixture"
    batch_size = _ROOM * batch_size if kind == "scenes" else batch_size
    rules = {method.name: method.rule(n_epochs) for method, _ in models}
    fleet = Fleet(
        lambda: PathNetwork(scales=mixture),
        len(models),
        rule=[rules[method.name] for method, _ in models],
        optimizer=Adam(beta2=_BETA2),
        # AutoAnnealing lowers the rate itself at the end.
        learning_rate=[_rate(n_epochs, falls=not isinstance(rules[m.name], AutoAnnealing)) for m, _ in models],
        weight_decay=_DECAY,
        seeds=[seed for _, seed in models],
        cost_fn=MixtureNLL(pairwise_gaussian_nll) if mixture else path_cost,
        scores=SoftmaxScores(),
        score_weight=0.0 if mixture else _SCORE_WEIGHT,
        device=device,
    )
    rows = SampledData(drawing, STEPS_PER_EPOCH * batch_size, len(models))
    with own_random_numbers():
        fleet.fit(rows, n_epochs, batch_size=batch_size, progress=progress)
    return list(fleet.models)


def train_jointly(
    seeds: Sequence[int], drawing: Drawing, n_epochs: int, *, batch_size: int, device: str, progress: str | bool
) -> list[nn.Module]:
    """Train networks with winners shared by all people of a scene, by `Batch.scene`.

    A fleet has no scenes, so that this is the loop that one would write by hand, of `mcl_step` on stacked networks.
    """
    networks: list[nn.Module] = []
    n_rows = _ROOM * batch_size
    generator = torch.Generator(device).manual_seed(0)
    scene = drawing.scenes(n_rows, device)
    rate = _rate(n_epochs)
    what = progress if isinstance(progress, str) else "joint winners"
    with own_random_numbers(), Progress(n_epochs, what, show=bool(progress), unit="epoch") as bar:
        for seed in seeds:
            torch.manual_seed(seed)
            networks.append(PathNetwork().to(device))
        parameters, _ = stack_module_state(networks)
        model = _stacked(networks[0], parameters)
        matrices = [value for value in parameters.values() if value.ndim == 3]
        biases = [value for value in parameters.values() if value.ndim == 2]
        groups = [{"params": matrices, "weight_decay": _DECAY}, {"params": biases, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, _BETA2))
        for epoch in range(n_epochs):
            for group in optimizer.param_groups:
                group["lr"] = rate(epoch)
            for _ in range(STEPS_PER_EPOCH):
                drawn = (part for part in drawing(n_rows, generator) if part is not None)
                inputs, targets, mask = (part.expand(len(seeds), *part.shape) for part in drawn)
                batch = Batch(inputs, targets, mask, scene)
                output = mcl_step(
                    model,
                    batch,
                    WTA(),
                    cost_fn=path_cost,
                    scores=SoftmaxScores(),
                    score_weight=_SCORE_WEIGHT,
                    stacked=True,
                )
                optimizer.zero_grad()
                output.loss.sum().backward()
                optimizer.step()
            bar.step()
    for index, network in enumerate(networks):
        network.load_state_dict({name: value[index].detach() for name, value in parameters.items()})
    return networks


def _stacked(network: nn.Module, parameters: dict[str, Tensor]) -> Callable[[Tensor], Predictions]:
    """Return a model that runs each network on its own rows, [models, batch, ...]."""
    template = copy.deepcopy(network)

    def one(own: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        hypotheses, score_logits = functional_call(template, own, (inputs,))
        return hypotheses, score_logits

    every = torch.vmap(one, randomness="different")
    return lambda inputs: Predictions(*every(parameters, inputs))


def _rate(n_epochs: int, *, falls: bool = True) -> Schedule:
    """Return the learning rate: a warm-up, then half a cosine down to 0, or constant."""
    warm_up = max(1, round(_WARM_UP * n_epochs))
    n_left = max(1, n_epochs - warm_up)
    return JoinedSchedule(
        (Linear(_RATE / warm_up, _RATE, warm_up), Cosine(_RATE, 0.0 if falls else _RATE, n_left)), (warm_up,)
    )
