"""The UCI study: records, resuming, protocols, metrics in original units, the method table."""

import json
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from grids import for_each
from torchmcl import WTA, AnnealedWTA, RelaxedWTA, dispatch
from torchmcl_fleet import Fleet
from torchmcl_studies.data.uci import UCI_SETS, load_uci, official_splits
from torchmcl_studies.uci import run
from torchmcl_studies.uci.methods import METHODS
from torchmcl_studies.uci.run import run_study
from torchmcl_studies.uci.study import KEYS, PROTOCOLS, UciStudy, units_of

SEVERAL = ("mcl", "relaxed-0.1", "amcl-exponential")
SINGLE = ("mc-dropout", "deep-ensemble")
FOLDS = (0, 3)
N_EPOCHS = 4


@pytest.fixture(scope="module")
def table():
    """A file of the shape of yacht: a nonlinear signal and some noise, in units far from 1."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(308, 6))
    targets = 500 + 30 * (np.sin(inputs[:, 0]) * inputs[:, 1] + 0.5 * random.normal(size=308))
    return np.column_stack([inputs, targets])


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    (root / "yacht").mkdir()
    np.savez(root / "yacht/data.npz", data=table)
    return root


def a_study(folder, **changes):
    settings = {"methods": SEVERAL + SINGLE, "n_epochs": N_EPOCHS, "folds": FOLDS} | changes
    return UciStudy(sets=("yacht",), data=folder, **settings)


def rows_of(out):
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def numbers(row):
    """The measured values of a row; seconds are a matter of the day."""
    return [value for value in (row["distortion"], row["rmse"], *(row["usage"] or [])) if value is not None]


def by_key(rows):
    return {tuple(row[name] for name in KEYS): row for row in rows}


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    """The lines of a finished study."""
    out = tmp_path_factory.mktemp("out")
    run_study(a_study(folder), out, progress=False)
    return (out / "records.jsonl").read_text().splitlines()


@pytest.fixture
def out(tmp_path, finished):
    """A folder of its own with the finished study."""
    (tmp_path / "records.jsonl").write_text("".join(line + "\n" for line in finished))
    return tmp_path


class Fit:
    """One call of Fleet.fit that was seen."""

    def __init__(self, fleet, data, validation, settings):
        self.fleet, self.data, self.validation, self.settings = fleet, data, validation, settings
        self.weights = []


@pytest.fixture
def fits(monkeypatch):
    """All calls of Fleet.fit, with the weights after every epoch."""
    seen, fit = [], Fleet.fit

    def spied(self, data, n_epochs, **settings):
        validation = settings.get("validation")
        call = Fit(self, data, None if validation is None else validation.rows, settings)
        seen.append(call)
        settings["after_epoch"] = lambda end: call.weights.append(end.stacked.flat.detach().clone())
        return fit(self, data, n_epochs, **settings)

    monkeypatch.setattr(Fleet, "fit", spied)
    return seen


# ---- records ----


def test_there_is_one_record_for_each_set_fold_method_protocol_and_seed(finished):
    rows = [json.loads(line) for line in finished]
    wanted = {("yacht", f, m, p, 0) for f in FOLDS for m in SEVERAL + SINGLE for p in PROTOCOLS}
    assert len(rows) == len(wanted)
    assert set(by_key(rows)) == wanted


def test_records_have_exactly_the_promised_fields_in_order(finished):
    promised = ["set", "fold", "method", "protocol", "seed", "distortion", "rmse", "usage", "seconds", "epochs"]
    promised += ["patience", "score_weight"]
    for line in finished:
        row = json.loads(line, parse_constant=pytest.fail)
        assert list(row) == promised
        assert row["epochs"] == N_EPOCHS
        assert row["seconds"] > 0


def test_every_seed_gets_its_own_record_and_its_own_result(folder, tmp_path):
    run_study(a_study(folder, methods=("mcl",), protocols=("last",), n_seeds=2), tmp_path, progress=False)
    found = by_key(rows_of(tmp_path))
    assert set(found) == {("yacht", fold, "mcl", "last", seed) for fold in FOLDS for seed in (0, 1)}
    for fold in FOLDS:
        assert found["yacht", fold, "mcl", "last", 0]["rmse"] != found["yacht", fold, "mcl", "last", 1]["rmse"]


def test_a_fold_that_does_not_exist_is_refused_and_nothing_is_written(folder, tmp_path):
    with pytest.raises(ValueError, match="must lie from 0 to 19 for yacht, got 20"):
        run_study(a_study(folder, folds=(0, 20)), tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


# ---- resuming ----


def test_a_rerun_trains_nothing_and_leaves_the_file_alone(out, folder, finished):
    before = (out / "records.jsonl").stat()
    records = run_study(a_study(folder), out, progress=False)
    after = (out / "records.jsonl").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert (out / "records.jsonl").read_text().splitlines() == finished
    assert len(records.rows) == len(finished)


def without(out, lost):
    """Remove the records for which lost(row) holds; return them and the lines that stay."""
    lines = (out / "records.jsonl").read_text().splitlines()
    stay = [line for line in lines if not lost(json.loads(line))]
    (out / "records.jsonl").write_text("".join(line + "\n" for line in stay))
    return [json.loads(line) for line in lines if lost(json.loads(line))], stay


def check_same_again(out, lost, stay):
    lines = (out / "records.jsonl").read_text().splitlines()
    assert set(stay) <= set(lines)
    found = by_key(map(json.loads, lines))
    assert len(found) == len(lines) == len(stay) + len(lost)
    for row in lost:
        again = found[tuple(row[name] for name in KEYS)]
        np.testing.assert_allclose(numbers(again), numbers(row), rtol=1e-5, atol=1e-6)


def test_lost_records_alone_are_trained_again_to_the_same_numbers(out, folder):
    # Of one training two protocols, of which one is lost; of dropout, whose numbers do not depend on earlier draws.
    pairs = {("amcl-exponential", 3, "validation"), ("mcl", 0, "last"), ("deep-ensemble", 3, "validation")}
    pairs |= {("mc-dropout", 3, protocol) for protocol in PROTOCOLS}
    lost, stay = without(out, lambda row: (row["method"], row["fold"], row["protocol"]) in pairs)
    assert len(lost) == 6
    torch.manual_seed(12345)
    run_study(a_study(folder), out, progress=False)
    check_same_again(out, lost, stay)


def test_an_interrupted_study_keeps_what_is_done_and_goes_on_from_there(folder, tmp_path, finished, monkeypatch):
    study, fit, n_calls = a_study(folder, methods=(*SEVERAL, "deep-ensemble")), Fleet.fit, 0

    def failing(self, *arguments, **settings):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise KeyboardInterrupt
        return fit(self, *arguments, **settings)

    monkeypatch.setattr(Fleet, "fit", failing)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, progress=False)
    done = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
    assert {json.loads(line)["method"] for line in done} == set(SEVERAL)
    run_study(study, tmp_path, progress=False)
    assert n_calls == 3 + 2  # the one that was broken off, and the one after it
    assert (tmp_path / "records.jsonl").read_text().splitlines()[: len(done)] == done
    expected = {key: row for key, row in by_key(map(json.loads, finished)).items() if key[2] != "mc-dropout"}
    found = by_key(rows_of(tmp_path))
    assert set(found) == set(expected)
    for key, row in found.items():
        np.testing.assert_allclose(numbers(row), numbers(expected[key]), rtol=1e-5, atol=1e-6)


# ---- units side by side, as on a GPU ----


def test_units_trained_side_by_side_leave_the_same_records_in_the_same_order(folder, tmp_path, finished, monkeypatch):
    monkeypatch.setattr(run, "trains_side_by_side", lambda study: True)
    run_study(a_study(folder, methods=(*SEVERAL, "deep-ensemble")), tmp_path, progress=False)
    expected = [row for row in map(json.loads, finished) if row["method"] != "mc-dropout"]
    found = rows_of(tmp_path)
    assert list(by_key(found)) == list(by_key(expected))
    for row, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(numbers(row), numbers(right), rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_units_share_a_gpu_only_where_kernels_draw_their_own_numbers(folder):
    assert not run.trains_side_by_side(UciStudy(sets=("yacht",)))
    assert run.trains_side_by_side(UciStudy(sets=("yacht",), device="cuda")) == dispatch.has_triton()
    assert not run.trains_side_by_side(UciStudy(sets=("yacht", "year"), device="cuda"))


# ---- protocols ----


def same_rows(data, model, inputs, targets):
    """Whether model's rows in FleetData are these, in this order."""
    own = int(data.set_of_model[model])
    n = int(data.n_rows[own])
    return (
        n == len(inputs) and torch.equal(data.inputs[own, :n], inputs) and torch.equal(data.targets[own, :n], targets)
    )


def test_last_and_test_selected_come_from_one_training_and_validation_from_another(folder, tmp_path, fits):
    run_study(a_study(folder), tmp_path, progress=False)
    assert [fit.fleet.n_models for fit in fits] == [6, 6, 2, 2, 10, 10]


def rows_of_units(folder, tmp_path, **changes):
    """The folds, and the rows of each unit of a study: to train on and to watch, and the fold of each model."""
    study, folds = a_study(folder, **changes), load_uci("yacht", folder, FOLDS)
    for unit in units_of(study, "yacht", run.open_records(study, tmp_path)):
        own_fold = [FOLDS.index(task.fold) for task in unit.tasks]
        yield *run.unit_rows(unit, folds, own_fold), [folds[place] for place in own_fold]


def test_test_selected_watches_the_test_fold_and_trains_on_the_whole_training_fold(folder, tmp_path):
    units = list(rows_of_units(folder, tmp_path, protocols=("test-selected",)))
    assert len(units) == 3
    for train, validation, folds in units:
        for model, fold in enumerate(folds):
            assert same_rows(train, model, fold.train_inputs, fold.train_targets)
            assert same_rows(validation.rows, model, fold.test_inputs, fold.test_targets)


def test_validation_never_sees_a_test_row_and_holds_out_a_tenth_of_the_training_fold(folder, tmp_path):
    units = list(rows_of_units(folder, tmp_path, protocols=("validation",)))
    assert len(units) == 3
    for train, validation, folds in units:
        for model, fold in enumerate(folds):
            n_kept = round(0.9 * len(fold.train_inputs))
            assert same_rows(train, model, fold.train_inputs[:n_kept], fold.train_targets[:n_kept])
            assert same_rows(validation.rows, model, fold.train_inputs[n_kept:], fold.train_targets[n_kept:])
            seen = torch.cat([data.inputs[data.set_of_model[model]] for data in (train, validation.rows)])
            assert not (fold.test_inputs[:, None] == seen).all(dim=-1).any()


def test_authors_looks_are_used_under_test_selected_and_every_epoch_under_validation(folder, tmp_path):
    units = rows_of_units(folder, tmp_path, methods=SEVERAL, protocols=("test-selected", "validation"))
    assert [validation.every for _, validation, _ in units] == [[1, 1, 10, 10, 10, 10], [1] * 6]


def loss_under_wta(predictions, targets):
    """The authors' criterion for MCL: the winner's squared error plus the scores' cross-entropy, by hand."""
    cost = (predictions.hypotheses - targets).square().sum(dim=-1)  # [rows, hypotheses]
    labels = torch.nn.functional.one_hot(cost.argmin(dim=-1), cost.shape[-1]).float()
    scores = binary_cross_entropy_with_logits(predictions.score_logits, labels)
    return float(cost.amin(dim=-1).mean() + scores)


def distortion_of(predictions, targets):
    return float((predictions.hypotheses - targets).square().sum(dim=-1).amin(dim=-1).mean())


@pytest.mark.parametrize(("protocol", "criterion"), [("test-selected", loss_under_wta), ("validation", distortion_of)])
def test_reported_epoch_is_the_one_with_the_lowest_value_on_the_watched_rows(
    folder, tmp_path, fits, protocol, criterion
):
    # Long enough for the best epoch to lie before the last one.
    run_study(a_study(folder, methods=("mcl",), protocols=(protocol,), n_epochs=200), tmp_path, progress=False)
    (fit,) = fits
    fold = load_uci("yacht", folder, FOLDS)[1]
    watched = fit.validation.inputs[1], fit.validation.targets[1]
    values, distortions = [], []
    for flat in fit.weights:
        fit.fleet.load_state_dict({"last": flat})
        module = fit.fleet.models[1].eval()
        with torch.no_grad():
            values.append(criterion(module(watched[0]), watched[1]))
            distortions.append(distortion_of(module(fold.test_inputs), fold.test_targets))
    best = int(np.argmin(values))
    assert best < 199
    row = by_key(rows_of(tmp_path))["yacht", FOLDS[1], "mcl", protocol, 0]
    assert row["distortion"] == pytest.approx(distortions[best] * fold.target_std**2, rel=1e-4)
    assert row["distortion"] != pytest.approx(distortions[-1] * fold.target_std**2, rel=1e-4)


# ---- metrics ----


def in_original_units(module, fold, table, number):
    """Answers [rows, hypotheses], scores and targets [rows] in the units of the file."""
    train, test = official_splits(UCI_SETS["yacht"])[number]
    mean, std = table[train, 6].mean(), table[train, 6].std()
    with torch.no_grad():
        predictions = module.eval()(fold.test_inputs)
    answers = predictions.hypotheses[..., 0].double().numpy() * std + mean
    logits = predictions.score_logits
    return answers, None if logits is None else logits.double().sigmoid().numpy(), table[test, 6]


@pytest.mark.parametrize(("protocol", "best"), [("last", False), ("test-selected", True), ("validation", True)])
def test_distortion_rmse_and_usage_are_those_computed_by_hand_in_original_units(
    folder, table, tmp_path, fits, protocol, best
):
    run_study(a_study(folder, methods=SEVERAL, protocols=(protocol,), n_epochs=12), tmp_path, progress=False)
    found, folds = by_key(rows_of(tmp_path)), load_uci("yacht", folder, FOLDS)
    models = fits[0].fleet.best_models if best else fits[0].fleet.models
    for index, (method, position) in enumerate((m, p) for m in SEVERAL for p in (0, 1)):
        answers, scores, targets = in_original_units(models[index], folds[position], table, FOLDS[position])
        errors = (answers - targets[:, None]) ** 2
        mean = (answers * scores / scores.sum(axis=1, keepdims=True)).sum(axis=1)
        row = found["yacht", FOLDS[position], method, protocol, 0]
        assert row["distortion"] == pytest.approx(errors.min(axis=1).mean(), rel=1e-4)
        assert row["rmse"] == pytest.approx(np.sqrt(((mean - targets) ** 2).mean()), rel=1e-4)
        usage = np.bincount(errors.argmin(axis=1), minlength=5) / len(targets)
        np.testing.assert_allclose(row["usage"], usage, atol=1e-5)


def test_a_deep_ensemble_answers_with_the_mean_of_its_five_networks(folder, table, tmp_path, fits):
    run_study(a_study(folder, methods=("deep-ensemble",), protocols=("last",)), tmp_path, progress=False)
    found, folds = by_key(rows_of(tmp_path)), load_uci("yacht", folder, FOLDS)
    models = fits[0].fleet.models
    for position in (0, 1):
        parts = [
            in_original_units(models[5 * position + member], folds[position], table, FOLDS[position])
            for member in range(5)
        ]
        assert not np.allclose(parts[0][0], parts[1][0])
        mean, targets = np.mean([answers[:, 0] for answers, _, _ in parts], axis=0), parts[0][2]
        row = found["yacht", FOLDS[position], "deep-ensemble", "last", 0]
        assert row["rmse"] == pytest.approx(np.sqrt(((mean - targets) ** 2).mean()), rel=1e-4)


def test_mc_dropout_answers_with_a_mean_near_that_of_the_network_without_dropout(folder, table, tmp_path, fits):
    run_study(a_study(folder, methods=("mc-dropout",), protocols=("last",)), tmp_path, progress=False)
    fold = load_uci("yacht", folder, FOLDS)[0]
    answers, _, targets = in_original_units(fits[0].fleet.models[0], fold, table, FOLDS[0])
    exact = np.sqrt(((answers[:, 0] - targets) ** 2).mean())
    row = by_key(rows_of(tmp_path))["yacht", FOLDS[0], "mc-dropout", "last", 0]
    assert row["rmse"] == pytest.approx(exact, rel=0.05)
    assert row["rmse"] != pytest.approx(exact, rel=1e-9)


# ---- bad input ----


def test_records_of_another_number_of_epochs_are_refused_and_kept(out, folder, finished):
    with pytest.raises(ValueError, match=r"records\.jsonl was made with 4 epochs, not 5.*--out"):
        run_study(a_study(folder, n_epochs=5), out, progress=False)
    assert (out / "records.jsonl").read_text().splitlines() == finished


# ---- methods ----


def test_the_weight_of_the_scores_and_the_patience_reach_the_training(folder, tmp_path, fits):
    study = a_study(folder, methods=("mcl",), folds=(0,), protocols=("test-selected",), n_epochs=60)
    trained = [study, replace(study, score_weight=5.0), replace(study, patience=1)]
    for place, one in enumerate(trained):
        run_study(one, tmp_path / str(place), progress=False)
    plain, summed, stopped = (fit.weights[-1] for fit in fits)
    assert not torch.equal(plain, summed)
    assert not torch.equal(plain, stopped)
    with pytest.raises(ValueError, match=r"made with None patience, not 1"):
        run_study(trained[2], tmp_path / "0", progress=False)


def test_the_study_has_all_methods_and_by_default_runs_them_on_the_nine_sets():
    epsilons = ["relaxed-0.05", "relaxed-0.1", "relaxed-0.2", "relaxed-0.5", "relaxed-annealed"]
    expected = ["mcl", *epsilons, "amcl-exponential", "amcl-linear", "mc-dropout", "deep-ensemble"]
    assert sorted(METHODS) == sorted(expected)
    study = UciStudy()
    assert sorted(study.methods) == sorted(expected)
    assert list(study.sets) == [name for name in UCI_SETS if name != "year"]
    assert study.n_epochs == 1000
    assert set(study.protocols) == {"last", "test-selected", "validation"}


@for_each("name", METHODS)
@for_each("set_name", ["yacht", "protein"])
def test_networks_have_one_hidden_layer_of_the_published_width_and_five_or_one_answers(name, set_name):
    entry, method = UCI_SETS[set_name], METHODS[name]
    module = method.build(entry.n_features, entry.hidden)
    predictions = module(torch.zeros(7, entry.n_features))
    single = name in SINGLE
    assert predictions.hypotheses.shape == (7, 1 if single else 5, 1)
    assert (predictions.score_logits is None) == single
    n_outputs = 1 if single else 10
    n_hidden = 100 if set_name == "protein" else 50
    n_parameters = (entry.n_features + 1) * n_hidden + (n_hidden + 1) * n_outputs
    assert sum(parameter.numel() for parameter in module.parameters()) == n_parameters


def test_training_uses_adam_at_a_constant_rate_of_001_and_batches_of_1024(folder, tmp_path, fits):
    run_study(a_study(folder, methods=SEVERAL, protocols=("last",)), tmp_path, progress=False)
    (fit,) = fits
    assert type(fit.fleet.optimizer).__name__ == "Adam"
    assert fit.fleet.learning_rates == [0.01] * 6
    assert fit.fleet.weight_decay == [0.0] * 6
    assert fit.settings["batch_size"] == 1024


@for_each(
    "name, rule_of, values",
    [
        ("relaxed-annealed", RelaxedWTA, [0.5 * (1 - t / 1000) for t in range(1001)]),
        ("amcl-linear", AnnealedWTA, [0.5 * (1 - t / 1000) for t in range(1001)]),
        ("amcl-exponential", AnnealedWTA, [0.5 * 0.95**t if t < 135 else 0.0 for t in range(1001)]),
    ],
)
def test_rules_are_those_of_the_paper(name, rule_of, values):
    assert METHODS["mcl"].rule(1000) == WTA()
    assert METHODS["relaxed-0.2"].rule(1000) == RelaxedWTA(0.2)
    rule_at = METHODS[name].rule(1000)
    for epoch, value in enumerate(values):
        assert type(rule_at(epoch)) is rule_of
        assert astuple(rule_at(epoch)) == pytest.approx((value,), rel=1e-9)
