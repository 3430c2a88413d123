"""Every flag of every command, and every choice it offers, has a run: a new one without a run fails here.

The commands about speech are run in the tests about speech.
"""

import argparse
from itertools import pairwise

import numpy as np
import pytest

from grids import for_each
from house_tables import houses, write_csv
from places import ROOT
from torchmcl.app import _parser, main
from voices import tables as speech_tables
from walkers import write_walkers

SPEECH = {"separation", "data"}
SMALL = "--epochs 1 --hidden 4 --restarts 1 --quiet"
FIT = f"fit houses.csv --target price {SMALL}"
# In this order: the later ones use what the earlier ones wrote.
RUNS = [
    f"{FIT} -o model --drop days --categorical rooms --hypotheses 2 --bins 3 --batch-size 16 --learning-rate 0.01 "
    "--weight-decay 0.1 --validation 0.3 --test 0.2 --seed 7 --device cpu",
    f"{FIT} --out model --overwrite --restart --rule mcl",
    f"{FIT} -o relaxed --rule relaxed --split random --private",
    f"{FIT} -o annealed --rule annealed --split group --split-column city",
    f"{FIT} -o auto --rule auto --split time --split-column sold",
    f"{FIT} -o searched --search",
    f"fit --example -o example {SMALL}",
    f"fit houses.csv --target price -o chosen --numeric area --date sold --keep-column country --decimal . {SMALL}",
    f"fit houses.csv --target rooms -o classes --task classes --decimal , {SMALL}",
    f"fit houses.csv --target rooms -o numbers --task numbers {SMALL}",
    "predict classes houses.csv -o classes.csv --interval 0.9 --decimal ,",
    "report classes --decimal ,",
    "describe houses.csv --target rooms --task classes --decimal ,",
    "describe houses.csv --target rooms --task numbers",
    "describe houses.csv --target price --drop days --categorical rooms --numeric area --date sold "
    "--keep-column country --decimal .",
    "predict model houses.csv -o answers.csv --interval 0.9 --keep city --strict --escape-formulas --quiet",
    "predict model houses.csv --out answers.csv --decimal .",
    "report model --data houses.csv -o page.html --quiet --decimal .",
    "report model --out page.html",
    "diagnose predictions.npz -o diagnosis.html --softmax",
    "diagnose predictions.npz --out diagnosis.html",
    "forecast --example -o forecast --steps 5 --futures 2 --coverage 0.8 --seed 3 --device cpu --quiet --decimal ,",
    "forecast sales.csv --time date --value sold --series shop --horizon 7 --decimal . --out together --joint "
    "--steps 5 --restart",
    "demo --out demo --seeds 1 --epochs 2 --quiet",
    "play --out play.html",
    "reproduce uci --out uci --data uci-data --sets yacht --methods mcl --protocol last --folds 0 --seeds 1 --epochs 2 "
    "--device cpu --quick --quiet",
    "reproduce trajectories --out walks --data walkers --scenes eth --methods mcl --seeds 1 --epochs 1 --device cpu "
    "--quick --quiet",
    "reproduce all --out figures --data uci-data --sets yacht --epochs 3 --preset quick --device cpu --quiet",
]
SPEECH_RUNS = [
    "data pack {speech} --out {out}/speech.npz --quiet",
    "separation demo --out {out}/demo --model two-speakers --device cpu --overwrite --quiet",
    "reproduce separation --data {speech} --pack {out}/speech.npz --out {out}/study --parts automatic --seeds 1 "
    "--device cpu --quick --limit 1 --quiet --preset study --only 1/1 --set training.max_skipped=1",
]
# What needs more than a folder, with the test that has the run.
ELSEWHERE = {
    "forecast": dict.fromkeys(
        ("--known", "--past", "--future"), "packages/torchmcl-forecast/tests/test_forecast_cli.py"
    ),
    "reproduce uci": {"--cluster": "studies/tests/test_cluster.py"},
    "reproduce separation": dict.fromkeys(("--plan", "--speakers"), "studies/tests/test_wsj0_study.py"),
    "play": {"--open": "packages/torchmcl/tests/app/test_play.py"},
}


def commands(parser=None, words=()):
    """Return each command that can be run, as its words, with its parser."""
    parser = parser or _parser()
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    itself = {" ".join(words): parser} if (words and parser.get_default("run") is not None) or not groups else {}
    below = groups[0].choices if groups else {}
    return itself | {k: v for name, child in below.items() for k, v in commands(child, (*words, name)).items()}


def flags(parser):
    """Return every option string of a parser except `-o`, the short form of `--out`."""
    named = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return {flag for action in named for flag in action.option_strings if flag != "-o"}


def choices(parser):
    """Return every choice that its options offer, as they are written."""
    named = [action for action in parser._actions if action.option_strings]
    return {f"{action.option_strings[-1]} {choice}" for action in named for choice in action.choices or ()}


def words_of_runs(*names):
    """Return the words of the runs of commands, and neighbors among them."""
    runs = [run.split() for run in [*RUNS, *SPEECH_RUNS] if run.startswith(tuple(f"{name} " for name in names))]
    return {word for run in runs for word in run} | {" ".join(pair) for run in runs for pair in pairwise(run)}


OURS = {name: parser for name, parser in commands().items() if name.split()[0] not in SPEECH}


def test_the_walk_sees_the_commands():
    assert {"fit", "predict", "report", "demo", "reproduce uci", "reproduce all", "reproduce separation"} <= OURS.keys()
    assert {"--seed", "--out", "--example"} <= flags(OURS["fit"])
    assert {"--rule mcl", "--rule auto"} <= choices(OURS["fit"])


def alike(command):
    """Return the names of the commands that run the same function, as those of all figures do."""
    return [name for name, parser in OURS.items() if parser.get_default("run") == OURS[command].get_default("run")]


@for_each("command", OURS)
def test_every_flag_has_a_run(command):
    missing = flags(OURS[command]) - words_of_runs(*alike(command))
    for flag in missing & ELSEWHERE.get(command, {}).keys():
        there = ROOT / ELSEWHERE[command][flag]
        assert f'"{flag}"' in there.read_text(encoding="utf-8")
        missing.discard(flag)
    assert not missing, "give these a run in RUNS"


@for_each("command", OURS)
def test_every_choice_has_a_run(command):
    missing = choices(OURS[command]) - words_of_runs(*alike(command))
    on_gpus = (" cuda", "--preset paper")  # test_figures.py trains with the settings of the paper for three epochs
    assert not {choice for choice in missing if not choice.endswith(on_gpus)}, "give these a run in RUNS"


@for_each("command", ["", *OURS])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    assert f"usage: torchmcl {command}".strip() in capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    rows = [row | {"sold": f"202401{i % 28 + 1:02d}", "country": "Germany"} for i, row in enumerate(houses(60))]
    write_csv(made / "houses.csv", rows)
    (made / "uci-data" / "yacht").mkdir(parents=True)
    np.savez(made / "uci-data" / "yacht" / "data.npz", data=np.random.default_rng(0).normal(size=(308, 7)))
    rng = np.random.default_rng(0)
    arrays = {"hypotheses": rng.normal(size=(50, 4, 2)), "score_logits": rng.normal(size=(50, 4))}
    np.savez(made / "predictions.npz", targets=rng.normal(size=(50, 2)), **arrays)
    write_walkers(made / "walkers")
    return made


@pytest.mark.parametrize("run", RUNS)
def test_the_run_ends_well(run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(run.split()) == 0


def test_the_study_of_separation_runs_from_a_pack(tmp_path):
    speech = speech_tables(tmp_path / "speech")
    for run in SPEECH_RUNS:
        assert main(run.format(speech=speech, out=tmp_path).split()) == 0
