"""Parsing and dispatch of the commands `torchmcl separation ...`."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from torchmcl import optional
from torchmcl.app import arguments
from torchmcl_speech.cli.data import PARTS

__all__ = ["DEFAULT_MODEL", "add_separation_command"]

# One of the names in `torchmcl_speech.shipped_models`, which cannot be called without torch.
DEFAULT_MODEL = "two-speakers"
MODEL_HELP = "name listed by `torchmcl separation models`, or folder of a saved model"


def add_separation_command(commands: Any) -> None:
    """Add `separation` to the commands."""
    separation = commands.add_parser(
        "separation",
        help="separate speakers: demo, separate, models, train, evaluate, calibrate",
        description="Train, evaluate and use networks that separate speakers.",
    )
    tasks = separation.add_subparsers(title="tasks", metavar="TASK", required=True)
    _add_train(tasks)
    _add_evaluate(tasks)
    _add_separate(tasks)
    _add_calibrate(tasks)
    _add_models(tasks)
    _add_demo(tasks)


def _add_train(tasks: Any) -> None:
    train = tasks.add_parser(
        "train",
        help="train a separator, or resume its training",
        description="Train a separator with the configuration in a YAML file. Rerun the same command to resume a run "
        "that ended early or was killed; the results are the same.",
        epilog="examples: torchmcl separation train quick --data FOLDER --out out/quick; "
        "torchmcl separation train --from two-speakers --data FOLDER, to fine-tune a bundled separator on "
        "FOLDER/<speaker>/<recordings>",
    )
    shipped = "paper-2spk, paper-3spk, quick, study, ship-2spk, ship-3spk, ship-any, ship-small, fine-tune"
    config = f"YAML file, or name of a bundled configuration: {shipped} (default with --from: fine-tune)"
    train.add_argument("config", nargs="?", help=config)
    train.add_argument("-o", "--out", type=Path, help="folder for models, records and logs (default: out/CONFIG)")
    train.add_argument("--data", type=Path, help="data folder, instead of data.root")
    train.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    train.add_argument("--skip-bad", action="store_true", help="skip unusable recordings and count them")
    train.add_argument(
        "--device", type=arguments.device_or_auto, default="auto", help="auto, cpu or cuda (default: %(default)s)"
    )
    train.add_argument(
        "--minutes",
        type=arguments.non_negative_number,
        default=math.inf,
        help="time limit in minutes; training stops at the end of an epoch (default: no limit)",
    )
    train.add_argument("--from", dest="start", metavar="MODEL", help=f"{MODEL_HELP} for the initial weights")
    train.add_argument(
        "--json", action="store_true", help="print the record of each epoch as JSON instead of a progress bar"
    )
    train.add_argument("--quiet", action="store_true", help="no progress bar")
    train.set_defaults(check=_check_train, run=_train)


def _add_evaluate(tasks: Any) -> None:
    evaluate = tasks.add_parser(
        "evaluate",
        help="evaluate a separator on unseen mixtures",
        description="Print PIT and MCL SI-SDR and the improvement over the mixture, overall and by combination of "
        "speakers.",
        epilog="example: torchmcl separation evaluate --model out/quick/model --data FOLDER",
    )
    evaluate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    evaluate.add_argument("--data", type=Path, help="data folder (default: data folder of the training run)")
    evaluate.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    evaluate.add_argument("--part", default="tt", choices=PARTS, help="part of the data (default: %(default)s)")
    evaluate.add_argument(
        "-o", "--out", type=Path, help="folder for the records (default: folder of the model; none for bundled models)"
    )
    evaluate.add_argument("--limit", type=arguments.positive, help="maximum number of mixtures (default: all)")
    evaluate.add_argument(
        "--all-pairs", action="store_true", help="show all combinations of speakers, not only the extremes"
    )
    evaluate.add_argument("--skip-bad", action="store_true", help="skip unusable recordings")
    evaluate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    evaluate.add_argument("--quiet", action="store_true", help="no progress bar")
    evaluate.set_defaults(run=_evaluate)


def _add_separate(tasks: Any) -> None:
    separate = tasks.add_parser(
        "separate",
        help="separate a recording into files",
        description="Write a WAV file for each voice, and an HTML report with players. A model with scores also "
        "estimates the number of speakers and writes that many files. Long recordings are processed in overlapping "
        "chunks, in which the voices keep their order.",
        epilog="examples: torchmcl separation separate in.wav; torchmcl separation separate in.wav --model any-number; "
        "torchmcl separation separate in.flac --model out/quick/model -o out/separated",
    )
    separate.add_argument("recording", type=Path, help="audio file of any format, sample rate and length")
    separate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    separate.add_argument("-o", "--out", type=Path, help="folder for the files (default: out/RECORDING)")
    voices = "number of outputs to write (default: most likely number of speakers; all for models without scores)"
    separate.add_argument("--voices", type=arguments.positive, help=voices)
    separate.add_argument(
        "--chunk",
        type=arguments.positive_number,
        default=10.0,
        help="maximum chunk length in seconds (default: %(default)s)",
    )
    separate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    separate.add_argument("--overwrite", action="store_true", help="replace files that another command wrote")
    separate.add_argument("--quiet", action="store_true", help="no progress bar")
    separate.set_defaults(run=_separate)


def _add_calibrate(tasks: Any) -> None:
    calibrate = tasks.add_parser(
        "calibrate",
        help="calibrate the probabilities of the number of speakers",
        description="Fit the temperature of the scores on mixtures outside of the training data, and save it with the "
        "model.",
        epilog="example: torchmcl separation calibrate --model out/ship-any/model --data FOLDER",
    )
    calibrate.add_argument("--model", type=Path, required=True, help="folder of a saved model with scores")
    calibrate.add_argument("--data", type=Path, help="data folder (default: data folder of the training run)")
    calibrate.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    calibrate.add_argument("--part", default="cv", choices=PARTS, help="part of the data (default: %(default)s)")
    calibrate.add_argument("--limit", type=arguments.positive, help="maximum number of mixtures (default: all)")
    calibrate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    calibrate.add_argument("--quiet", action="store_true", help="no progress bar")
    calibrate.set_defaults(run=_calibrate)


def _add_models(tasks: Any) -> None:
    models = tasks.add_parser(
        "models",
        help="list the bundled separators",
        description="List the bundled separators with their outputs, their size, and their mean improvement of the "
        "SI-SDR on test mixtures.",
    )
    models.add_argument("--json", action="store_true", help="print the model cards as JSON")
    models.set_defaults(run=_models)


def _add_demo(tasks: Any) -> None:
    demo = tasks.add_parser(
        "demo",
        help="separate two bundled speakers and write an HTML report with players",
        description="Mix two bundled recordings, separate them, and write a self-contained HTML report with players "
        "and spectrograms of the mixture, both outputs and both true voices, and with the improvement in dB.",
        epilog="example: torchmcl separation demo --out out/speech",
    )
    demo.add_argument(
        "-o", "--out", type=Path, default=Path("out/speech"), help="folder for the report (default: %(default)s)"
    )
    demo.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    demo.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    demo.add_argument("--overwrite", action="store_true", help="replace files that another command wrote")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(run=_demo)


def _check_train(options: argparse.Namespace) -> None:
    if options.config is None and options.start is None:
        raise ValueError("torchmcl separation train: `config` is required without --from. Try `quick`.")
    optional.check_extra("lightning", extra="train", needed_by="torchmcl separation train", package="torchmcl-speech")


def _train(options: argparse.Namespace) -> None:
    from torchmcl_speech.config import load_config
    from torchmcl_speech.pretrained import config_like
    from torchmcl_speech.train import train_separator

    name = options.config or "fine-tune"
    out = options.out or Path("out") / Path(name).stem
    config = load_config(name)
    config = config if options.start is None else config_like(config, options.start)
    config = config.changed([*options.set, *(["data.skip_bad=true"] if options.skip_bad else [])])
    config = config if options.data is None else config.with_root(options.data)
    model = train_separator(
        config,
        out,
        device=options.device,
        minutes=options.minutes,
        start=options.start,
        progress=not options.quiet and not options.json,
        show_records=options.json,
    )
    arguments.say(f"Records: {out / 'records.jsonl'}")
    arguments.say(f"Best model: {model}")


def _trained_with(options: argparse.Namespace, changes: list[str]) -> Any:
    """Return the configuration of a saved model with the requested changes."""
    from torchmcl_speech.config import SeparationConfig
    from torchmcl_speech.pretrained import load_separator

    trained = SeparationConfig.from_dict(load_separator(options.model)[1].get("configuration", {}))
    config = trained.changed([*options.set, *changes])
    return config if options.data is None else config.with_root(options.data)


def _evaluate(options: argparse.Namespace) -> None:
    from torchmcl_speech.evaluate import evaluate_separator, evaluation_table, speaker_genders
    from torchmcl_speech.pretrained import is_shipped

    config = _trained_with(options, ["data.skip_bad=true"] if options.skip_bad else [])
    records = evaluate_separator(
        options.model,
        config.data,
        part=options.part,
        out=options.out or (None if is_shipped(options.model) else options.model),
        limit=options.limit,
        device=options.device,
        progress=not options.quiet,
    )
    arguments.say(evaluation_table(records, speaker_genders(config.data.root), all_pairs=options.all_pairs))


def _separate(options: argparse.Namespace) -> None:
    from torchmcl_speech.reports.separation_page import write_separation_page
    from torchmcl_speech.separate import separate_recording

    out = options.out or Path("out") / options.recording.stem
    result = separate_recording(
        options.recording,
        out,
        options.model,
        n_voices=options.voices,
        chunk_seconds=options.chunk,
        device=options.device,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    for output in result["outputs"]:
        arguments.say(f"{out / output['file']}  {result['ordered_by']} {output['score']:.3f}")
    if result["silent"]:
        arguments.say("The recording is silent and contains no voices.")
    elif not result["outputs"]:
        arguments.say("No output is likely to be a voice. To write the most likely output anyway, use --voices 1.")
    if result["speakers"] is not None:
        shown = ", ".join(f"{count}: {100 * value:.0f} %" for count, value in enumerate(result["speakers"]))
        arguments.say(f"Number of speakers: {shown}")
    arguments.say(f"Open the report: {write_separation_page(out).resolve().as_uri()}")


def _calibrate(options: argparse.Namespace) -> None:
    from torchmcl_speech.evaluate import calibrate_counts

    result = calibrate_counts(
        options.model,
        _trained_with(options, []).data,
        part=options.part,
        limit=options.limit,
        device=options.device,
        progress=not options.quiet,
    )
    arguments.say(
        f"Temperature {result['temperature']:.2f}, saved in {options.model}. The number of voices is correct for "
        f"{100 * result['accuracy']:.0f} % of {result['mixtures']} mixtures. Log-loss: {result['log_loss_before']:.3f} "
        f"before, {result['log_loss']:.3f} after the calibration."
    )


def _models(options: argparse.Namespace) -> None:
    from torchmcl_speech.evaluate import models_table
    from torchmcl_speech.pretrained import model_card, shipped_models

    cards = [model_card(name) for name in shipped_models()]
    arguments.say(json.dumps(cards, indent=1) if options.json else models_table(cards))


def _demo(options: argparse.Namespace) -> None:
    from torchmcl_speech.demo import run_speech_demo
    from torchmcl_speech.reports.separation_page import write_separation_page

    result = run_speech_demo(
        options.out,
        options.model,
        device=options.device,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    for voice in result["references"]:
        arguments.say(
            f"{voice['name']}: SI-SDR {voice['before']:.1f} dB in the mixture, {voice['after']:.1f} dB separated"
        )
    arguments.say(f"Open the report: {write_separation_page(options.out).resolve().as_uri()}")
