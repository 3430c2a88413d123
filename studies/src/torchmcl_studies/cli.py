"""Commands that reproduce the paper's studies, `torchmcl reproduce ...`: parsing and dispatch only."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchmcl.app.arguments import Commands, counts, device, names, positive, say
from torchmcl.app.report import check_report_folder

if TYPE_CHECKING:
    from torchmcl_studies.uci.study import UciStudy

__all__ = ["add_reproduce_commands"]


def add_reproduce_commands(commands: Commands) -> None:
    """Add `reproduce` with its studies to the commands."""
    reproduce = commands.add_parser("reproduce", help="reproduce the paper's studies", description=_REPRODUCE)
    studies = reproduce.add_subparsers(title="studies", metavar="STUDY", required=True)
    _add_uci(studies, "uci", "tables 1, 2, 4 and 5: UCI regression")
    _add_uci(studies, "year", "row of YearPredictionMSD in tables 1, 2, 4 and 5")
    _add_separation(studies)
    _add_trajectories(studies)
    for name, text in _FIGURES.items():
        _add_figure(studies, name, text)


def _add_common(
    command: argparse.ArgumentParser,
    study: str,
    run: Callable[[argparse.Namespace], None],
    *,
    folder: str | None = None,
    seeds: str | None = None,
) -> None:
    """Add the options common to all studies."""
    out = Path("out") / (folder or study)
    command.add_argument("-o", "--out", type=Path, default=out, help="folder for the results (default: %(default)s)")
    command.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    command.add_argument("--quiet", action="store_true", help="hide the progress bars")
    if seeds is not None:
        command.add_argument("--seeds", type=positive, default=1, help=f"{seeds} (default: %(default)s)")
    command.set_defaults(check=_check, run=run, study=study)


def _add_uci(studies: Commands, study: str, text: str) -> None:
    uci = studies.add_parser(
        study,
        help=text,
        description="Train the methods of the UCI study on the official folds, all methods of a data set at once, and "
        "write records.jsonl and index.html. Rerun the same command to resume. YearPredictionMSD is not downloaded: "
        "get YearPredictionMSD.txt, or its zip file, from https://archive.ics.uci.edu/dataset/203.",
        epilog=f"examples: torchmcl reproduce {study} --quick --out out/{study} --data FOLDER; torchmcl reproduce "
        f"{study} --data FOLDER --device cuda --methods mcl,amcl-exponential --protocol last",
    )
    uci.add_argument("--data", type=Path, help="folder of the data sets (default: TORCHMCL_DATA, cache, or download)")
    uci.add_argument("--methods", type=names, help="methods, separated by commas (default: all)")
    uci.add_argument(
        "--protocol", type=names, help="last, validation, test-selected (as published, biased) (default: all three)"
    )
    uci.add_argument("--epochs", type=positive, help="number of epochs (default: 1000, as in the paper)")
    small = "two epochs" if study == "year" else "the four smallest data sets"
    uci.add_argument("--quick", action="store_true", help=f"{small}, six methods, protocols last and test-selected")
    _add_common(uci, study, _reproduce_uci, seeds="seeds of each fold")
    if study == "year":
        uci.set_defaults(sets=["year"], folds=None, cluster=None)
        return
    uci.add_argument("--sets", type=names, help="data sets, separated by commas (default: all but year)")
    uci.add_argument("--folds", type=counts, help="folds, separated by commas (default: all)")
    uci.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="train on the workers of a dask cluster, such as tcp://host:8786; --device applies to the workers",
    )


def _add_separation(studies: Commands) -> None:
    separation = studies.add_parser(
        "separation",
        help="table 3: speech separation with PIT, MCL, Relaxed-WTA and annealed MCL",
        description="Train separators, evaluate them on whole mixtures of unseen speakers, and write records and "
        "index.html. --preset paper has the settings of the paper and its 24 training runs on WSJ0-mix, "
        "DATA/{2,3}speakers/wav8k/min/{tr,cv,tt}/{mix,s1,s2[,s3]}. --preset study is a shorter study on excerpts of "
        "LibriSpeech, DATA/metadata/mix_<n>_spk_<part>.csv. A plan with the estimated time is printed first. Rerun the "
        "same command to resume: a killed run continues after its last saved epoch. Processes with the same --out "
        "train different runs, and the last one to finish writes the whole report. Both presets require a GPU; --quick "
        "takes two minutes on two CPU cores and tests the commands, not the methods.",
        epilog="examples: torchmcl reproduce separation --preset paper --data WSJ0-MIX --out OUT --plan; "
        "torchmcl reproduce separation --preset paper --data WSJ0-MIX --out OUT --device cuda:1 (at the same time on "
        "other devices); torchmcl reproduce separation --data FOLDER --device cuda --parts methods --seeds 3",
    )
    separation.add_argument("--data", type=Path, required=True, help="folder of the recordings, as above")
    separation.add_argument("--preset", choices=("study", "paper"), default="study", help="settings (default: study)")
    separation.add_argument("--plan", action="store_true", help="print the plan, and do nothing else")
    typed: list[tuple[str, Callable[[str], object], str]] = [
        ("--speakers", counts, "paper: numbers of speakers (default: 2,3)"),
        ("--seeds", positive, "seeds of each method (default: study 1; paper 3, with --quick 1)"),
        ("--parts", names, "study: methods, hypotheses, transition, automatic (default: all)"),
        ("--pack", Path, "study: file written by `torchmcl data pack`, used instead of the recordings"),
        ("--limit", positive, "number of test mixtures to evaluate (default: all)"),
        ("--only", _part, "every M-th run from the N-th on, as N/M, if processes have no folder with file locks"),
    ]
    for option, kind, text in typed:
        separation.add_argument(option, type=kind, help=text)
    change = "change PART.OPTION=VALUE of all runs, such as training.precision=bf16-mixed; the table names it"
    separation.add_argument("--set", action="append", default=[], metavar="CHANGE", help=change)
    separation.add_argument("--quick", action="store_true", help="tiny networks, few steps and ten test mixtures")
    _add_common(separation, "separation", _reproduce_separation)


def _part(text: str) -> slice:
    """Return the slice of "N/M"."""
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise argparse.ArgumentTypeError(f"must be N/M with 1 <= N <= M, got {text[:80]!r}")
    return slice(int(number) - 1, None, int(total))


def _add_trajectories(studies: Commands) -> None:
    trajectories = studies.add_parser(
        "trajectories",
        help="pedestrian trajectories (ETH/UCY): every rule with 20 hypotheses, mixtures, joint winners",
        description="Train every method once without each scene of ETH/UCY, all seeds at once, evaluate it on that "
        "scene by every protocol, and write records.jsonl and index.html. Rerun the same command to resume. The whole "
        "study requires a GPU; --quick takes about a minute on two CPU cores and tests the commands, not the methods.",
        epilog="examples: torchmcl reproduce trajectories --quick --out out/quick; "
        "torchmcl reproduce trajectories --data FOLDER --device cuda --seeds 6 --scenes zara1,zara2",
    )
    trajectories.add_argument(
        "--data", type=Path, help="folder with all/ and train/ (default: TORCHMCL_DATA, the cache, or a download)"
    )
    trajectories.add_argument("--scenes", type=names, help="eth, hotel, univ, zara1, zara2 (default: all)")
    trajectories.add_argument("--methods", type=names, help="methods, separated by commas (default: all)")
    trajectories.add_argument(
        "--epochs", type=positive, help="number of epochs of 20 steps (default: 370; with --quick 5)"
    )
    trajectories.add_argument("--quick", action="store_true", help="one scene, few steps, small batches")
    _add_common(trajectories, "trajectories", _reproduce_trajectories, seeds="seeds of each method")


def _add_figure(studies: Commands, name: str, text: str) -> None:
    figure = studies.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}: train, write the records as CSV, draw PNG and SVG with a caption "
        "whose claims are checked against the records, and write an HTML report.",
        epilog=f"example: torchmcl reproduce {name} --preset quick --out out/figures",
    )
    figure.add_argument(
        "--preset",
        choices=("quick", "paper"),
        default="quick",
        help="quick: two to six minutes on two cores; paper: as in the appendix, for a GPU (default: %(default)s)",
    )
    figure.add_argument("--epochs", type=positive, help="number of epochs per training run (default: from the preset)")
    if name == "all":
        figure.add_argument("--data", type=Path, help="folder of the UCI data sets (default: as for `reproduce uci`)")
        sets = "UCI data sets, separated by commas (default: quick: the four smallest; paper: all but year)"
        figure.add_argument("--sets", type=names, help=sets)
    _add_common(figure, name, _reproduce_figures, folder="figures")


_FIGURES = {
    "figure1": "figure 1: MCL, Relaxed-WTA and annealed MCL with 49 hypotheses",
    "rate-distortion": "trajectories of MCL and annealed MCL in the rate-distortion plane",
    "distortion-vs-temperature": "distortion against temperature, with the critical temperatures",
    "phase-transitions": "hypotheses of three inputs at four temperatures",
    "annealed-epsilon": "Relaxed-WTA with an annealed epsilon",
    "all": "all of these figures in one report with the animation, the UCI study with tables and figure 6, and the "
    "separation study from its records",
}
# Test mixtures of the separation study, and epochs of the year set, with --quick.
_QUICK_LIMIT, _QUICK_YEAR_EPOCHS = 10, 2
_REPRODUCE = "Reproduce the paper's studies, with resumable records and an HTML report."


def _check(options: argparse.Namespace) -> None:
    check_report_folder(f"torchmcl reproduce {options.study}", options.out)


def _reproduce_uci(options: argparse.Namespace) -> None:
    from torchmcl_studies.reports.uci import write_uci_page
    from torchmcl_studies.uci.run import run_study
    from torchmcl_studies.uci.study import PROTOCOLS, QUICK_METHODS, QUICK_SETS, UciStudy

    defaults = UciStudy()
    protocols = PROTOCOLS if not options.quick else ("last", "test-selected")
    study = UciStudy(
        sets=options.sets or (QUICK_SETS if options.quick else defaults.sets),
        methods=options.methods or (QUICK_METHODS if options.quick else defaults.methods),
        protocols=options.protocol or protocols,
        n_seeds=options.seeds,
        n_epochs=options.epochs or (_QUICK_YEAR_EPOCHS if options.quick and options.study == "year" else 1000),
        folds=options.folds,
        data=options.data,
        device=options.device,
    )
    if options.cluster is None:
        run_study(study, options.out, progress=not options.quiet)
    else:
        from torchmcl_studies.uci.distributed import run_study_on_cluster

        run_study_on_cluster(study, options.out, options.cluster, progress=not options.quiet)
    _say_results(options.out / "records.jsonl", write_uci_page(options.out))


def _reproduce_separation(options: argparse.Namespace) -> None:
    from torchmcl.checks import available_device
    from torchmcl.io.files import single_writer
    from torchmcl_studies.reports.separation_study import paper_text, write_separation_study_page
    from torchmcl_studies.separation import study
    from torchmcl_studies.separation.plan import plan_of
    from torchmcl_studies.separation_records import PARTS, read_study

    available_device("separation study", options.device)
    others = ("parts", "pack") if options.preset == "paper" else ("speakers",)
    if unused := [f"--{name}" for name in others if getattr(options, name)]:
        raise ValueError(f"reproduce separation: `{unused[0]}` is not an option of --preset {options.preset}.")
    # Values are YAML, which includes JSON strings without escaped surrogates, so quoted names stay names.
    paths = {"root": options.data, "pack": options.pack}
    quoted = {name: json.dumps(str(path), ensure_ascii=False) for name, path in paths.items() if path is not None}
    changes = [f"data.{name}={text}" for name, text in quoted.items()]
    runs = study.study_runs(options.seeds or 1, parts=options.parts or PARTS, quick=options.quick)
    if options.preset == "paper":
        n_seeds, speakers = options.seeds or (1 if options.quick else 3), options.speakers or (2, 3)
        runs, changes = study.paper_runs(options.data, speakers, n_seeds=n_seeds, quick=options.quick), []
    limit = _QUICK_LIMIT if options.quick and options.limit is None else options.limit
    configs = [(run, run.configured([*changes, *options.set])) for run in runs[options.only or slice(None)]]
    trainings = [study.Training(run, config, options.out / run.name, limit) for run, config in configs]
    if options.plan or not options.quiet:
        say(plan_of(trainings, options.device))
    if options.plan:
        return
    finished = study.run_trainings(trainings, device=options.device, progress=not options.quiet)
    if len(finished) < len(trainings):
        say(f"{len(trainings) - len(finished)} training runs are in progress in other processes.")
    if finished:
        with single_writer(options.out):  # the last process to finish reads the records of all
            page = write_separation_study_page(options.out)
        records = read_study(options.out)
        if text := paper_text(records):
            say(text)
        _say_results(f"{len(records.runs)} training runs in {options.out}", page)


def _reproduce_trajectories(options: argparse.Namespace) -> None:
    from torchmcl_studies.reports.trajectories import write_trajectories_page
    from torchmcl_studies.trajectories import study as studies

    defaults = studies.TrajectoryStudy()
    study = studies.TrajectoryStudy(
        scenes=options.scenes or (studies.QUICK_SCENES if options.quick else defaults.scenes),
        methods=options.methods or defaults.methods,
        n_seeds=options.seeds,
        n_epochs=options.epochs or (studies.QUICK_EPOCHS if options.quick else defaults.n_epochs),
        batch_size=studies.QUICK_BATCH if options.quick else defaults.batch_size,
        data=options.data,
        device=options.device,
    )
    studies.run_study(study, options.out, progress=not options.quiet)
    _say_results(options.out / "records.jsonl", write_trajectories_page(options.out))


def _reproduce_figures(options: argparse.Namespace) -> None:
    from torchmcl_studies.figures import FIGURES, run_figure
    from torchmcl_studies.reports.figures import write_figure, write_figures_page

    study = _study_beside_figures(options) if options.study == "all" else None
    for name in FIGURES if options.study == "all" else [options.study]:
        claims = run_figure(
            name,
            options.out,
            preset=options.preset,
            n_epochs=options.epochs,
            device=options.device,
            progress=not options.quiet,
        )
        say(f"{name}: {write_figure(name, options.out)}")
        for claim in claims:
            say(f"  {'' if claim.holds else 'NOT CONFIRMED: '}{claim.text}")
    say(f"Open the report: {write_figures_page(options.out).resolve().as_uri()}")
    if study is not None:
        from torchmcl_studies.reports.separation_study import write_separation_study_page
        from torchmcl_studies.reports.uci import write_uci_page
        from torchmcl_studies.separation_records import recorded_study
        from torchmcl_studies.uci.run import run_study

        page = write_separation_study_page(options.out / "separation", recorded_study())
        _say_results("separation, as recorded on one H200", page)
        run_study(study, options.out / "uci", progress=not options.quiet)
        _say_results(options.out / "uci" / "records.jsonl", write_uci_page(options.out / "uci"))


def _study_beside_figures(options: argparse.Namespace) -> "UciStudy":
    """Return the UCI study of `reproduce all`; its data sets are read first, because the figures take hours."""
    from torchmcl_studies.data.uci import load_uci
    from torchmcl_studies.uci.study import QUICK_METHODS, QUICK_SETS, UciStudy

    study = UciStudy(n_epochs=options.epochs or 1000, data=options.data, device=options.device)
    if options.preset == "quick":
        study = replace(study, sets=QUICK_SETS, methods=QUICK_METHODS, protocols=("last", "test-selected"))
    study = replace(study, sets=options.sets or study.sets)
    for name in study.sets:
        load_uci(name, study.data, [0])
    return study


def _say_results(records: Path | str, report: Path) -> None:
    say(f"Records: {records}")
    say(f"Open the report: {report.resolve().as_uri()}")
