"""An interrupted training resumes to the same bits; that of another training is refused."""

import os
import signal
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from signals import signal_when
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.io import TrainingInterrupted, read_checkpoint, stop_on_signals, write_checkpoint
from torchmcl_fleet import SGD, Checkpointing, Fleet, FleetData, SampledData, Validation, current_loss, native

COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 8))
SETS = [rows(13, seed=0), rows(8, seed=1)]
DATA = FleetData.of_sets(SETS, [0, 1, 0])
HELD_OUT = FleetData.shared(*rows(9, seed=2), 3)
OTHER_ROWS = FleetData.shared(*rows(9, seed=3), 3)


class PowerCutError(Exception):
    pass


@pytest.fixture
def threads():
    """Set the number of threads of torch for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def new_fleet(factory=small_mlp, **options):
    defaults = {
        "rule": [mcl.WTA(), COOLING, mcl.RelaxedWTA(0.1)],
        "learning_rate": [0.01, mcl.Linear(0.02, 0.0, 12), 0.005],
    }
    return Fleet(factory, 3, **(defaults | options))


def train(fleet, folder=None, cut=None, **options):
    """Train for 12 epochs; `cut` is the epoch and the first model of the chunk to be interrupted in."""

    def after_epoch(end):
        if (end.epoch, end.models.start) == cut:
            raise PowerCutError

    checkpoint = None if folder is None else Checkpointing(folder, every=3)
    options = {"data": DATA, "n_epochs": 12, "checkpoint": checkpoint} | options
    return fleet.fit(options.pop("data"), options.pop("n_epochs"), after_epoch=after_epoch, progress=False, **options)


CASES = {
    "full batch": ({}, {}, (7, 0)),
    "before the first save": ({}, {}, (1, 0)),
    "at a save": ({}, {}, (6, 0)),
    "validation": ({}, {"batch_size": 5, "validation": Validation(HELD_OUT, every=[1, 2, 3])}, (7, 0)),
    "second chunk": ({}, {"models_at_once": 2, "batch_size": 5, "validation": HELD_OUT}, (7, 2)),
    "momentum and decay": ({"optimizer": SGD(0.9), "weight_decay": 0.1}, {"batch_size": 5}, (7, 0)),
    "early stopping of all": ({"learning_rate": 0.0}, {"validation": Validation(HELD_OUT, patience=2)}, (1, 0)),
    "early stopping of one": (
        {"learning_rate": [0.0, 0.01, 0.02]},
        {"validation": Validation(HELD_OUT, patience=2)},
        (7, 0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_training_resumes_to_the_same_bits(case, tmp_path):
    fleet_options, options, cut = CASES[case]
    whole = new_fleet(**fleet_options)
    expected = train(whole, **options)
    with pytest.raises(PowerCutError):
        train(new_fleet(**fleet_options), tmp_path, cut, **options)
    resumed = new_fleet(**fleet_options)
    history = train(resumed, tmp_path, **options)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(expected, history)
    assert history.seconds > 0


def test_a_finished_training_is_not_repeated(tmp_path):
    first = new_fleet()
    expected = train(first, tmp_path, validation=HELD_OUT)
    again = new_fleet()
    history = train(again, tmp_path, cut=(0, 0), validation=HELD_OUT)  # would raise if an epoch were run
    assert_same_bits(first.state_dict(), again.state_dict())
    assert_same_bits(expected, history)
    assert history.seconds == expected.seconds


def test_a_second_training_resumes_only_after_the_same_first_one(tmp_path):
    def second(n_first, cut=None):
        fleet = new_fleet()
        train(fleet, n_epochs=n_first)
        train(fleet, tmp_path, cut)
        return fleet

    with pytest.raises(PowerCutError):
        second(2, (7, 0))
    with pytest.raises(ValueError, match="first weights"):
        second(3)
    fleet = second(2)
    with pytest.raises(ValueError, match="first weights"):  # not a third training, which would do nothing
        train(fleet, tmp_path)


class BatchNormNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.mlp = small_mlp()

    def forward(self, inputs):
        return self.mlp(self.norm(inputs))


def test_buffers_of_the_modules_are_saved_too(tmp_path):
    data = FleetData.shared(*SETS[0], 3)
    whole, resumed = new_fleet(BatchNormNet), new_fleet(BatchNormNet)
    train(whole, data=data)
    with pytest.raises(PowerCutError):
        train(new_fleet(BatchNormNet), tmp_path, (7, 0), data=data)
    train(resumed, tmp_path, data=data)
    for left, right in zip(whole.models, resumed.models, strict=True):
        assert_same_bits(dict(left.named_buffers()), dict(right.named_buffers()))


def one_hidden_layer_more():
    return mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8, 8))


FLIPPED = FleetData.of_sets([tuple(part.flip(0) for part in SETS[0]), SETS[1]], [0, 1, 0])
OTHERS = {
    "n_epochs": ({}, {"n_epochs": 13}),
    "batch_size": ({}, {"batch_size": 4}),
    "rule": ({"rule": mcl.WTA()}, {}),
    "schedule": ({"rule": mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 9))}, {}),
    "learning_rate": ({"learning_rate": 0.01}, {}),
    "weight_decay": ({"weight_decay": [0.0, 0.0, 0.1]}, {}),
    "seeds": ({"seeds": [0, 1, 3]}, {}),
    "optimizer": ({"optimizer": SGD()}, {}),
    "chunks": ({}, {"models_at_once": 1}),
    "patience": ({}, {"validation": Validation(HELD_OUT, patience=3)}),
    "data": ({}, {"data": FleetData.of_sets([SETS[1], SETS[0]], [0, 1, 0])}),
    "set of each model": ({}, {"data": FleetData.of_sets(SETS, [0, 1, 1])}),
    "order of the rows": ({}, {"data": FLIPPED}),
    "score_weight": ({"score_weight": 0.5}, {}),
    "cost_fn": ({"cost_fn": mcl.pairwise_l1}, {}),
    "no validation": ({}, {"validation": None}),
    "validation rows": ({}, {"validation": OTHER_ROWS}),
    "every": ({}, {"validation": Validation(HELD_OUT, every=2)}),
    "monitor": ({}, {"validation": Validation(HELD_OUT, monitor=current_loss)}),
    "module": ({"factory": one_hidden_layer_more}, {}),
}


def test_a_folder_of_another_training_is_refused(tmp_path):
    with pytest.raises(PowerCutError):
        train(new_fleet(), tmp_path, (7, 0), validation=HELD_OUT)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = "Fleet.fit: `checkpoint` must be empty or contain this training run, .* differs in .* different folder"
    for fleet_options, options in OTHERS.values():
        with pytest.raises(ValueError, match=words):
            train(new_fleet(**fleet_options), tmp_path, **({"validation": HELD_OUT} | options))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def rate(factor):
    return lambda epoch: factor * 0.01 / (1 + epoch)


def cooling_to(end):
    return lambda epoch: mcl.AnnealedWTA(max(end, 1.0 - epoch / 12))


@dataclass(frozen=True)
class ScaledCost:
    factor: float

    def __call__(self, *, hypotheses, targets):
        return self.factor * mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)


@dataclass(frozen=True)
class ScaledLoss:
    factor: float

    def __call__(self, output):
        return self.factor * current_loss(output)


def network(activation, **options):
    return lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,), activation=activation, **options)


def with_weights(seed):
    fleet = new_fleet()
    fleet.load_state_dict({"last": Fleet(small_mlp, 3, seeds=[seed] * 3).state_dict()["last"]})
    return fleet


LOOK_ALIKE = {
    "learning_rate": lambda n: (new_fleet(learning_rate=rate(n)), {}),
    "rule": lambda n: (new_fleet(rule=cooling_to(n / 10)), {}),
    "cost_fn": lambda n: (new_fleet(cost_fn=ScaledCost(n)), {}),
    "monitor": lambda n: (new_fleet(), {"validation": Validation(HELD_OUT, monitor=ScaledLoss(n))}),
    "modules": lambda n: (new_fleet(network((torch.nn.Tanh, torch.nn.GELU)[n])), {}),
    "first weights": lambda n: (with_weights(n), {}),
}


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_a_training_that_only_looks_alike_is_refused(name, tmp_path):
    for number, repeated in ((0, False), (0, True), (1, False)):
        fleet, options = LOOK_ALIKE[name](number)
        if number == 0:
            cut = (0, 0) if repeated else None  # the same again need not be trained
            train(fleet, tmp_path, cut, **({"validation": HELD_OUT} | options))
            continue
        with pytest.raises(ValueError, match=rf"contain this training run, got .* which differs in .*'{name}'"):
            train(fleet, tmp_path, **({"validation": HELD_OUT} | options))


def test_another_output_activation_is_another_training(tmp_path):
    train(new_fleet(network(torch.nn.ReLU, output_activation=torch.sigmoid)), tmp_path)
    for other in (torch.tanh, torch.nn.Softmax(dim=-1)):
        with pytest.raises(ValueError, match=r"which differs in \['modules'\]"):
            train(new_fleet(network(torch.nn.ReLU, output_activation=other)), tmp_path)


NAMELESS = {
    "cost_fn": lambda: (new_fleet(cost_fn=lambda **event: mcl.pairwise_sq_euclidean(**event)), {}),
    "monitor": lambda: (new_fleet(), {"validation": Validation(HELD_OUT, monitor=partial(current_loss))}),
    "modules": lambda: (new_fleet(network(torch.nn.ReLU, output_activation=lambda x: x)), {}),
    "rows": lambda: (new_fleet(), {"data": SampledData(lambda n_rows, _: mcl.Batch(*rows(n_rows)), 8, 3)}),
}


@pytest.mark.parametrize("name", NAMELESS)
def test_a_function_without_a_name_requires_a_key(name, tmp_path):
    fleet, options = NAMELESS[name]()
    with pytest.raises(ValueError, match=f"Fleet.fit: `checkpoint` requires a key for `{name}`"):
        train(fleet, tmp_path, **options)
    fleet, options = NAMELESS[name]()
    history = train(fleet, **options, checkpoint=Checkpointing(tmp_path, key="first"))
    again, options = NAMELESS[name]()
    assert_same_bits(history, train(again, cut=(0, 0), **options, checkpoint=Checkpointing(tmp_path, key="first")))
    with pytest.raises(ValueError, match=f"which differs in .*{name}"):
        train(again, **options, checkpoint=Checkpointing(tmp_path, key="second"))


def test_automatic_annealing_with_a_failed_model_resumes_too(tmp_path):
    broken = tuple(part.clone() for part in SETS[0])
    broken[0][2] = torch.nan
    options = {"data": FleetData.of_sets([*SETS, broken], [0, 2, 1]), "batch_size": 5, "validation": HELD_OUT}
    new = partial(new_fleet, rule=[AutoAnnealing(), AutoAnnealing(0.25), mcl.WTA()])
    whole, resumed = new(), new()
    with pytest.warns(RuntimeWarning, match="1 of 3 models is not finite"):
        expected = train(whole, **options)
    with pytest.raises(PowerCutError):
        train(new(), tmp_path, (7, 0), **options)
    with pytest.warns(RuntimeWarning, match="1 of 3 models is not finite"):
        history = train(resumed, tmp_path, **options)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


def test_nothing_but_finished_files_is_left(tmp_path):
    with pytest.raises(PowerCutError):
        train(new_fleet(), tmp_path / "deep" / "folder", (7, 2), models_at_once=2)
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    # the last two states of the finished chunk and of the other
    assert names == [
        "chunk-0000-epoch-00000009.safetensors",
        "chunk-0000-epoch-00000012.safetensors",
        "chunk-0001-epoch-00000003.safetensors",
        "chunk-0001-epoch-00000006.safetensors",
        "plan.json",
    ]


def test_a_full_disk_leaves_the_last_state_as_it_was(tmp_path, monkeypatch):
    expected = train(new_fleet())
    with pytest.raises(PowerCutError):
        train(new_fleet(), tmp_path, (4, 0))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(new_fleet(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_same_bits(expected, train(new_fleet(), tmp_path))


def newest(folder, chunk=0):
    return sorted(folder.glob(f"chunk-{chunk:04d}-*.safetensors"))[-1]


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_with_a_damaged_newest_state_the_one_before_leads_to_the_same_bits(damage, tmp_path):
    whole, resumed = new_fleet(), new_fleet()
    expected = train(whole)
    with pytest.raises(PowerCutError):
        train(new_fleet(), tmp_path, (10, 0))
    data = bytearray(newest(tmp_path).read_bytes())
    data[-100] ^= 8
    newest(tmp_path).write_bytes(data[:-200] if damage == "truncated" else data)
    with pytest.warns(RuntimeWarning, match=r"epoch-00000009.* the previous one, .*epoch-00000006"):
        history = train(resumed, tmp_path)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


def test_states_of_another_training_beside_the_plan_are_refused(tmp_path):
    for folder, n_epochs in ((tmp_path / "a", 12), (tmp_path / "b", 9)):
        train(new_fleet(), folder, n_epochs=n_epochs)
    (tmp_path / "b" / "plan.json").write_bytes((tmp_path / "a" / "plan.json").read_bytes())
    with pytest.raises(ValueError, match=r"`checkpoint` must contain states of .* plan.json, got chu"):
        train(new_fleet(), tmp_path / "b")


def dropout_net():
    return torch.nn.Sequential(torch.nn.Dropout(0.3), small_mlp())


@pytest.mark.parametrize("at_once", [2, None])
@pytest.mark.parametrize("cut", [(1, 0), (4, 0), (7, 0), (7, 2)])
def test_random_numbers_resume_where_they_were(cut, at_once, tmp_path):
    cut = cut if at_once else (cut[0], 0)
    options = {"data": FleetData.shared(*SETS[0], 3), "models_at_once": at_once}
    whole, resumed = new_fleet(dropout_net), new_fleet(dropout_net)
    torch.manual_seed(3)
    expected = train(whole, **options)
    torch.manual_seed(3)
    with pytest.raises(PowerCutError):
        train(new_fleet(dropout_net), tmp_path, cut, **options)
    torch.manual_seed(4 if cut[0] > 2 else 3)  # what was saved counts, and what one began with if there is nothing
    history = train(resumed, tmp_path, **options)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


def one_answer(n_models):
    """Return rows with one target each: the compiled step serves them, and uses a thread for 8 models."""
    inputs, targets = rows(13, n_targets=1)
    return FleetData.shared(inputs, targets, n_models)


@pytest.mark.parametrize("n_threads", [1, 4])
def test_the_chunks_of_a_saved_training_stay_with_another_number_of_threads(n_threads, tmp_path, threads):
    data = one_answer(32)
    threads(4)
    whole, resumed = Fleet(small_mlp, 32), Fleet(small_mlp, 32)
    expected = whole.fit(data, 6, models_at_once=8, progress=False)
    Fleet(small_mlp, 32).fit(data, 6, models_at_once=8, checkpoint=Checkpointing(tmp_path, every=2), progress=False)
    assert len(list(tmp_path.glob("chunk-*"))) == 8
    for path in tmp_path.glob("chunk-*6.safetensors"):
        path.unlink()
    threads(n_threads)
    history = resumed.fit(data, 6, checkpoint=Checkpointing(tmp_path, every=2), progress=False)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


def stopped_at(epoch, fleet, *folder):
    def after_epoch(end):
        if end.epoch == epoch:
            os.kill(os.getpid(), signal.SIGTERM)

    with stop_on_signals():
        fleet.fit(DATA, 12, after_epoch=after_epoch, progress=False, **({"checkpoint": folder[0]} if folder else {}))


def test_a_signal_saves_the_epoch_and_the_same_call_resumes_there(tmp_path):
    whole, resumed = new_fleet(), new_fleet()
    expected = train(whole)
    with pytest.raises(
        TrainingInterrupted, match=r"Stopped by SIGTERM. Saved in .*: run the same again to resume"
    ) as stopped:
        stopped_at(4, new_fleet(), tmp_path)
    assert stopped.value.code == 143
    assert newest(tmp_path).name == "chunk-0000-epoch-00000005.safetensors"
    history = train(resumed, tmp_path)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


def test_a_signal_without_a_checkpoint_says_that_nothing_was_saved():
    with pytest.raises(TrainingInterrupted, match="Nothing was saved"):
        stopped_at(4, new_fleet())


@pytest.mark.skipif(not native.available(), reason="autograd would train such small models on one thread")
def test_a_signal_saves_the_chunks_of_all_threads(tmp_path, threads):
    threads(2)
    data, n_epochs, checkpoint = one_answer(32), 2000, Checkpointing(tmp_path, every=50)
    whole, resumed = Fleet(small_mlp, 32), Fleet(small_mlp, 32)
    expected = whole.fit(data, n_epochs, progress=False)
    sent = signal_when(lambda: list(tmp_path.glob("chunk-*")), signal.SIGTERM)
    with pytest.raises(TrainingInterrupted, match="Saved in"), stop_on_signals():
        Fleet(small_mlp, 32).fit(data, n_epochs, checkpoint=checkpoint, progress=False)
    sent.join()
    assert {path.name[:10] for path in tmp_path.glob("chunk-*")} == {"chunk-0000", "chunk-0001"}
    history = resumed.fit(data, n_epochs, checkpoint=checkpoint, progress=False)
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (
            lambda state, tensors: tensors.update({"models.flat": tensors["models.flat"][:1]}),
            "`checkpoint` must contain 'models.flat'",
        ),
        (lambda state, tensors: state.pop("seconds"), "`checkpoint` must contain the seconds"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(forge, message, tmp_path):
    with pytest.raises(PowerCutError):
        train(new_fleet(), tmp_path, (7, 0))
    newest = sorted(tmp_path.glob("chunk-*"))[-1]
    whole = read_checkpoint(newest)
    state, tensors = dict(whole.state), dict(whole.tensors)
    forge(state, tensors)
    write_checkpoint(newest, whole.kind, state=state, tensors=tensors)
    with pytest.raises(ValueError, match=message):
        train(new_fleet(), tmp_path)
