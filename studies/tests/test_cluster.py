"""A dask cluster of two worker processes, one of which is killed: nothing is lost, nothing is computed twice."""

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmcl.app import main
from torchmcl_studies.uci import distributed as on_cluster
from torchmcl_studies.uci.distributed import run_study_on_cluster
from torchmcl_studies.uci.run import forget_unit, run_study, saved_training
from torchmcl_studies.uci.study import KEYS, UciStudy, units_of

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

N_EPOCHS, SAVED_EVERY = 130, 100
METHODS = ("mcl", "amcl-exponential", "mc-dropout")


class Watched(distributed.WorkerPlugin):
    """Writes a line for every epoch that a worker trains: who, which unit, which epoch."""

    def __init__(self, log):
        self.log = str(log)

    def setup(self, worker):
        from torchmcl_fleet import Fleet

        fit, log = Fleet.fit, self.log

        def watched(fleet, data, n_epochs, **settings):
            saved = settings.get("checkpoint")
            name = (
                f"models-{fleet.seeds[0]}-{fleet.n_models}"
                if saved is None
                else Path(getattr(saved, "folder", saved)).name
            )

            def note(end):
                with open(log, "a") as file:
                    file.write(f"{os.getpid()} {name} {end.epoch}\n")

            return fit(fleet, data, n_epochs, **settings | {"after_epoch": note})

        Fleet.fit = watched


def epochs_in(log):
    """Return (process, unit, epoch) of every epoch that was trained."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), unit, int(epoch)) for pid, unit, epoch in map(str.split, lines)]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "epochs"


@pytest.fixture(scope="module")
def cluster(log):
    import cloudpickle
    import test_cluster

    cloudpickle.register_pickle_by_value(test_cluster)  # the workers do not know this file
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as workers, distributed.Client(workers, set_as_default=False) as client:
        client.register_plugin(Watched(log))
        yield workers
    cloudpickle.unregister_pickle_by_value(test_cluster)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data of the shape of yacht."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(308, 6))
    targets = 500 + 30 * (np.sin(inputs[:, 0]) * inputs[:, 1] + 0.5 * random.normal(size=308))
    root = tmp_path_factory.mktemp("data")
    (root / "yacht").mkdir()
    np.savez(root / "yacht/data.npz", data=np.column_stack([inputs, targets]))
    return root


def a_study(folder, **changes):
    settings = {"methods": METHODS, "n_epochs": N_EPOCHS, "folds": (0, 3)} | changes
    return UciStudy(sets=("yacht",), data=folder, **settings)


def rows_of(out):
    """Return the records without their seconds, in the order of the file."""
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class Killer(threading.Thread):
    """Kills the first worker process of which `is_time` is true; `victim` has its number."""

    def __init__(self, log, is_time):
        super().__init__(daemon=True)
        self.log, self.is_time, self.victim, self.unit = log, is_time, None, None
        self.start()

    def run(self):
        deadline = time.monotonic() + 120
        n_before = len(epochs_in(self.log))
        while time.monotonic() < deadline:
            for pid, unit, epoch in epochs_in(self.log)[n_before:]:
                if self.is_time(epoch):
                    os.kill(pid, signal.SIGKILL)
                    self.victim, self.unit = pid, unit
                    return
            time.sleep(0.01)


def on_one_core(work):
    """Return `work()` with the threads that a worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work()
    finally:
        torch.set_num_threads(before)


def test_a_study_loses_nothing_and_repeats_nothing_when_a_worker_is_killed(cluster, log, folder, tmp_path):
    alone, out = tmp_path / "alone", tmp_path / "shared"
    killer = Killer(log, lambda epoch: epoch > SAVED_EVERY)
    command = f"reproduce uci --sets yacht --methods {','.join(METHODS)} --folds 0,3 --epochs {N_EPOCHS} --quiet"
    places = ["--data", str(folder), "--out", str(out), "--cluster", cluster.scheduler_address]
    code = main([*command.split(), *places])
    assert code == 0
    on_one_core(lambda: run_study(a_study(folder), alone, progress=False))
    assert rows_of(out) == rows_of(alone)
    assert killer.victim is not None
    seen = epochs_in(log)
    times = Counter((unit, epoch) for _, unit, epoch in seen)
    assert len({unit for unit, _ in times}) == 4
    assert {epoch for _, epoch in times} == set(range(N_EPOCHS))
    assert len(times) == 4 * N_EPOCHS, "an epoch is missing"
    again = {key for key, n in times.items() if n > 1}
    # Only what the victim had trained since its last save, and nobody else's work.
    assert all(unit == killer.unit and epoch >= SAVED_EVERY for unit, epoch in again)
    assert max(times.values()) <= 2
    assert killer.victim not in {pid for pid, unit, epoch in seen if unit == killer.unit and epoch == N_EPOCHS - 1}
    assert not (out / "checkpoints").exists()
    assert not list(out.glob(".shared*"))
    n_lines = len(seen)
    run_study_on_cluster(a_study(folder), out, cluster.scheduler_address, progress=False)
    assert len(epochs_in(log)) == n_lines, "a finished study was trained again"


def test_what_a_lost_worker_had_finished_is_not_trained_again(folder, tmp_path):
    study = a_study(folder, methods=("mcl",), protocols=("last",), n_epochs=3)
    (unit,) = units_of(study, "yacht", on_cluster.open_records(study, tmp_path))
    token = tmp_path / "token"
    token.touch()
    work = on_cluster._Work(study, str(token), on_cluster.__version__)
    first = work(unit)
    assert (saved_training(unit, tmp_path) / "records.json").exists()
    assert work(unit) == first  # seconds included: they would differ
    token.unlink()
    forget_unit(unit, tmp_path)
    elsewhere = work(unit)
    assert not list(tmp_path.iterdir()), "a worker wrote into a folder that is not that of the study"
    assert [row["rmse"] for row in elsewhere] == [row["rmse"] for row in first]


def test_many_models_are_cut_into_parts_that_keep_ensembles_and_dropout_whole(folder, tmp_path):
    study = a_study(folder, methods=(*METHODS, "deep-ensemble"), n_seeds=5)
    units = list(units_of(study, "yacht", on_cluster.open_records(study, tmp_path)))
    for unit in units:
        parts = unit.parts(12)
        assert [task for part in parts for task in part.tasks] == list(unit.tasks)
        assert sorted(key for part in parts for key in part.keys) == sorted(unit.keys)
        assert len({part.name for part in parts}) == len(parts)
        sizes = [len(part.tasks) for part in parts]
        if unit.tasks[0].method == "mc-dropout":
            assert sizes == [10]
        elif unit.tasks[0].method == "deep-ensemble":
            assert sizes == [10] * 5
        else:
            assert sizes == [12, 8]
    assert {len(key) for unit in units for key in unit.keys} == {len(KEYS)}
