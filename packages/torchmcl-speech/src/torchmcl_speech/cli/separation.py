"""The commands about separation, `torchmcl separation ...`: parsing and dispatch only."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from torchmcl import optional
from torchmcl.app import arguments
from torchmcl_speech.cli.data import PARTS

__all__ = ["DEFAULT_MODEL", "add_separation_command"]

# A name in `torchmcl_speech.shipped_models`, which cannot be called without torch.
DEFAULT_MODEL = "two-speakers"
MODEL_HELP = "a name that `torchmcl separation models` lists, or folder of a saved model"


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
        description="Train from a small YAML file. Rerun the same command to resume a run that ended early or was "
        "killed; the results are the same.",
        epilog="examples: torchmcl separation train quick --data FOLDER --out out/quick; "
        "torchmcl separation train --from two-speakers --data FOLDER, to fine-tune a bundled separator on "
        "FOLDER/<speaker>/<recordings>",
    )
    shipped = "paper-2spk, paper-3spk, quick, study, ship-2spk, ship-3spk, ship-any, ship-small, fine-tune"
    config = f"a YAML file, or a bundled one: {shipped} (default with --from: fine-tune)"
    train.add_argument("config", nargs="?", help=config)
    train.add_argument("--out", type=Path, help="folder for models, records and logs (default: out/CONFIG)")
    train.add_argument("--data", type=Path, help="folder of the speech, instead of data.root")
    train.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    train.add_argument("--skip-bad", action="store_true", help="skip unusable recordings, with a count")
    train.add_argument(
        "--device", type=arguments.device_or_auto, default="auto", help="auto, cpu or cuda (default: %(default)s)"
    )
    train.add_argument(
        "--minutes",
        type=arguments.non_negative_number,
        default=math.inf,
        help="stop at the end of an epoch after this many minutes (default: no limit)",
    )
    train.add_argument("--from", dest="start", metavar="MODEL", help=f"{MODEL_HELP} for the initial weights")
    train.add_argument("--json", action="store_true", help="print the record of each epoch as JSON instead of a bar")
    train.add_argument("--compile", action="store_true", help="compile the blocks with torch.compile")
    train.add_argument("--quiet", action="store_true", help="no progress bar")
    train.set_defaults(check=_check_train, run=_train)


def _add_evaluate(tasks: Any) -> None:
    evaluate = tasks.add_parser(
        "evaluate",
        help="evaluate a separator on unseen mixtures",
        description="Print PIT and MCL SI-SDR, the improvement over the mixture, and both by pair of speakers.",
        epilog="example: torchmcl separation evaluate --model out/quick/model --data FOLDER",
    )
    evaluate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    evaluate.add_argument("--data", type=Path, help="folder of the speech (default: that of the training run)")
    evaluate.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    evaluate.add_argument("--part", default="tt", choices=PARTS, help="part of the data (default: %(default)s)")
    evaluate.add_argument(
        "--out", type=Path, help="folder for the records (default: that of the model; none for a name)"
    )
    evaluate.add_argument("--limit", type=arguments.positive, help="evaluate the first mixtures only (default: all)")
    evaluate.add_argument("--all-pairs", action="store_true", help="show every pair of speakers, not only the extremes")
    evaluate.add_argument("--skip-bad", action="store_true", help="skip unusable recordings")
    evaluate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    evaluate.add_argument("--quiet", action="store_true", help="no progress bar")
    evaluate.set_defaults(run=_evaluate)


def _add_separate(tasks: Any) -> None:
    separate = tasks.add_parser(
        "separate",
        help="separate a recording into files",
        description="Write one WAV file for each voice and a page to view and play them. A model with scores also "
        "estimates the number of speakers and writes that many files. Long recordings are processed in overlapping "
        "chunks, with the voices in one order.",
        epilog="examples: torchmcl separation separate in.wav; torchmcl separation separate in.wav --model any-number; "
        "torchmcl separation separate in.flac --model out/quick/model -o out/separated",
    )
    separate.add_argument("recording", type=Path, help="any audio file, of any sample rate and length")
    separate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    separate.add_argument("-o", "--out", type=Path, help="folder for the files (default: out/RECORDING)")
    voices = "files to write (default: the predicted number of speakers; all outputs if the model has no scores)"
    separate.add_argument("--voices", type=arguments.positive, help=voices)
    separate.add_argument(
        "--chunk", type=arguments.positive_number, default=10.0, help="seconds of a chunk (default: %(default)s)"
    )
    separate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    separate.add_argument("--overwrite", action="store_true", help="replace files that another command wrote")
    separate.add_argument("--quiet", action="store_true", help="no progress bar")
    separate.set_defaults(run=_separate)


def _add_calibrate(tasks: Any) -> None:
    calibrate = tasks.add_parser(
        "calibrate",
        help="calibrate the probabilities of the number of speakers",
        description="Fit one number, the temperature of the scores, on mixtures outside the training data, and "
        "save it with the model.",
        epilog="example: torchmcl separation calibrate --model out/ship-any/model --data FOLDER",
    )
    calibrate.add_argument("--model", type=Path, required=True, help="folder of a saved model with scores")
    calibrate.add_argument("--data", type=Path, help="folder of the speech (default: that of the training run)")
    calibrate.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    calibrate.add_argument("--part", default="cv", choices=PARTS, help="part of the data (default: %(default)s)")
    calibrate.add_argument("--limit", type=arguments.positive, help="use the first mixtures only (default: all)")
    calibrate.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    calibrate.add_argument("--quiet", action="store_true", help="no progress bar")
    calibrate.set_defaults(run=_calibrate)


def _add_models(tasks: Any) -> None:
    models = tasks.add_parser(
        "models",
        help="list the bundled separators",
        description="List the separators that this installation contains: outputs, size, how much they improve test "
        "mixtures on average (SI-SDR), and how fast they are.",
    )
    models.add_argument("--json", action="store_true", help="print their cards as JSON")
    models.set_defaults(run=_models)


def _add_demo(tasks: Any) -> None:
    demo = tasks.add_parser(
        "demo",
        help="separate two speakers with the bundled model and write a page to listen to",
        description="Mix two bundled recordings, separate them, and write one self-contained page to hear and see the "
        "mixture, both outputs and both true voices, with the improvement in dB.",
        epilog="example: torchmcl separation demo --out out/speech",
    )
    demo.add_argument("--out", type=Path, default=Path("out/speech"), help="folder for the page (default: %(default)s)")
    demo.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    demo.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    demo.add_argument("--overwrite", action="store_true", help="replace files that another command wrote")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(run=_demo)


def _check_train(options: argparse.Namespace) -> None:
    if options.config is None and options.start is None:
        raise ValueError("torchmcl separation train: `config` must be given without --from, got nothing. Try `quick`.")
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
        compile_model=options.compile,
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
        arguments.say("No output is likely to be a voice. To write one anyway, use --voices 1.")
    if result["speakers"] is not None:
        shown = ", ".join(f"{number}: {100 * chance:.0f} %" for number, chance in enumerate(result["speakers"]))
        arguments.say(f"Number of speakers: {shown}")
    arguments.say(f"Open the page: {write_separation_page(out).resolve().as_uri()}")


def _calibrate(options: argparse.Namespace) -> None:
    from torchmcl_speech.evaluate import calibrate_counts

    found = calibrate_counts(
        options.model,
        _trained_with(options, []).data,
        part=options.part,
        limit=options.limit,
        device=options.device,
        progress=not options.quiet,
    )
    arguments.say(
        f"Temperature {found['temperature']:.2f}, saved in {options.model}. Of {found['mixtures']} mixtures the number "
        f"of voices is right in {100 * found['accuracy']:.0f} %; log-loss {found['log_loss_before']:.3f} before, "
        f"{found['log_loss']:.3f} now."
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
    arguments.say(f"Open the page: {write_separation_page(options.out).resolve().as_uri()}")
