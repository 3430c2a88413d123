"""The commands about speech, `torchmcl separation ...` and `torchmcl data ...`: parsing and dispatch only."""

import argparse
import math
from pathlib import Path
from typing import Any

from torchmcl._limits import SHORTEST_CHUNK_SECONDS
from torchmcl._optional import check_extra
from torchmcl.cli.arguments import device, device_or_auto, names, non_negative_number, positive, positive_number, seed

__all__ = ["DEFAULT_MODEL", "MODEL_HELP", "SEPARATED", "TRAINED", "add_speech_commands"]

_PARTS = ("tr", "cv", "tt")
# A name among `torchmcl.separation.shipped_models`, which needs torch to be asked.
DEFAULT_MODEL = "two-speakers"
MODEL_HELP = "name of a separator that comes with the package, or folder of a saved model"
# What telephones and recording studios use, and more.
_SAMPLE_RATES = (1000, 384_000)
# What the commands load; `[speech]` brings all of it but Lightning, `[separation]` all.
_AUDIO = ("soundfile", "soxr")
SEPARATED = (*_AUDIO, "safetensors", "scipy")
_CONFIGURED = (*SEPARATED, "yaml")
TRAINED = (*_CONFIGURED, "lightning|pytorch_lightning")


def add_speech_commands(commands: Any) -> None:
    """Add `separation` and `data` to the commands."""
    separation = commands.add_parser(
        "separation",
        help="separate speakers: train, evaluate, separate",
        description="Train a network that gives one waveform per speaker, or more; measure it; use it on recordings.",
    )
    tasks = separation.add_subparsers(title="tasks", metavar="TASK", required=True)
    _add_train(tasks)
    _add_evaluate(tasks)
    _add_separate(tasks)
    data = commands.add_parser("data", help="prepare speech: mix, pack", description="Prepare speech for training.")
    tasks = data.add_subparsers(title="tasks", metavar="TASK", required=True)
    _add_mix(tasks)
    _add_pack(tasks)


def _add_train(tasks: Any) -> None:
    train = tasks.add_parser(
        "train",
        help="train a separator, or resume its training",
        description="Train from a small YAML file. Rerun the same command to resume a run that ended early or was "
        "killed; the numbers are the same.",
        epilog="examples: torchmcl separation train quick --data FOLDER --out out/quick; "
        "torchmcl separation train --from two-speakers --data FOLDER, to train a shipped separator further on "
        "FOLDER/<speaker>/<recordings>",
    )
    shipped = "paper-2spk, paper-3spk, quick, study, ship-2spk, ship-3spk, ship-any, fine-tune"
    config = f"a YAML file, or one that is shipped: {shipped} (default with --from: fine-tune)"
    train.add_argument("config", nargs="?", help=config)
    train.add_argument("--out", type=Path, help="folder for models, records and logs (default: out/CONFIG)")
    train.add_argument("--data", type=Path, help="folder of the speech, instead of data.root")
    train.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    train.add_argument("--skip-bad", action="store_true", help="leave out recordings that cannot be used, with a count")
    train.add_argument("--device", type=device_or_auto, default="auto", help="auto, cpu or cuda (default: %(default)s)")
    train.add_argument(
        "--minutes",
        type=non_negative_number,
        default=math.inf,
        help="stop after the epoch in which they are over (default: never)",
    )
    train.add_argument("--from", dest="start", metavar="MODEL", help=f"{MODEL_HELP}, to begin with")
    train.add_argument("--json", action="store_true", help="print the record of each epoch as JSON instead of a bar")
    train.add_argument("--compile", action="store_true", help="pass the blocks through torch.compile")
    train.add_argument("--quiet", action="store_true", help="no progress bar")
    train.set_defaults(check=_check_train, run=_train)


def _add_evaluate(tasks: Any) -> None:
    evaluate = tasks.add_parser(
        "evaluate",
        help="measure a separator on mixtures it has not seen",
        description="Print PIT and MCL SI-SDR, the improvement over the mixture, and both by pair of speakers.",
        epilog="example: torchmcl separation evaluate --model out/quick/model --data FOLDER",
    )
    evaluate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    evaluate.add_argument("--data", type=Path, help="folder of the speech, instead of the one it was trained on")
    evaluate.add_argument("--set", action="append", default=[], metavar="PART.OPTION=VALUE", help="change an option")
    evaluate.add_argument("--part", default="tt", choices=("tr", "cv", "tt"), help="which part (default: %(default)s)")
    evaluate.add_argument(
        "--out", type=Path, help="folder for the records (default: that of the model; none for a name)"
    )
    evaluate.add_argument("--limit", type=positive, help="evaluate the first mixtures only (default: all)")
    evaluate.add_argument("--all-pairs", action="store_true", help="show every pair of speakers, not the extremes only")
    evaluate.add_argument("--skip-bad", action="store_true", help="leave out recordings that cannot be used")
    evaluate.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    evaluate.add_argument("--quiet", action="store_true", help="no progress bar")
    evaluate.set_defaults(check=_check_evaluate, run=_evaluate)


def _add_separate(tasks: Any) -> None:
    separate = tasks.add_parser(
        "separate",
        help="separate a recording into files",
        description="Write one WAV file for each output, ordered by score, and a page to see and hear them. Long "
        "recordings are taken in overlapping chunks, with the outputs in one order.",
        epilog="examples: torchmcl separation separate in.wav; "
        "torchmcl separation separate in.flac --model out/quick/model -o out/separated",
    )
    separate.add_argument("recording", type=Path, help="any audio file, of any sample rate and length")
    separate.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    separate.add_argument("-o", "--out", type=Path, help="folder for the files (default: out/RECORDING)")
    separate.add_argument("--chunk", type=_chunk, default=10.0, help="seconds of a chunk (default: %(default)s)")
    separate.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    separate.add_argument("--quiet", action="store_true", help="no progress bar")
    separate.set_defaults(check=_check_separate, run=_separate)


def _add_mix(tasks: Any) -> None:
    mix = tasks.add_parser(
        "mix",
        help="make a WSJ0-mix-like folder from single-speaker recordings",
        description="Mix FOLDER/<speaker>/... or FOLDER/{tr,cv,tt}/<speaker>/... into "
        "OUT/wav8k/min/{tr,cv,tt}/{mix,s1,s2,...}, with gains as in WSJ0-mix. No speaker is in two parts.",
        epilog="example: torchmcl data mix recordings --out mixed --speakers 2 --counts tr=200,cv=20,tt=20",
    )
    mix.add_argument("folder", type=Path, help="folder of recordings, one folder for each speaker")
    mix.add_argument("--out", type=Path, required=True, help="folder for the mixtures")
    mix.add_argument("--speakers", type=positive, default=2, help="in each mixture (default: %(default)s)")
    counts = "tr=20000,cv=5000,tt=3000"
    mix.add_argument("--counts", type=_counts, default=counts, help="mixtures of each part (default: %(default)s)")
    mix.add_argument("--sample-rate", type=_sample_rate, default=8000, help="of the mixtures (default: %(default)s)")
    mix.add_argument("--seed", type=seed, default=0, help="decides everything (default: %(default)s)")
    mix.add_argument("--skip-bad", action="store_true", help="leave out recordings that cannot be used, and say which")
    mix.add_argument("--quiet", action="store_true", help="no progress bar")
    mix.set_defaults(check=_check_mix, run=_mix)


def _add_pack(tasks: Any) -> None:
    pack = tasks.add_parser(
        "pack",
        help="put recordings into one small file",
        description="Pack all recordings of a folder, lossless at 16 bits, into one file that numpy alone can read; "
        "use it with --set data.pack=FILE.",
        epilog="example: torchmcl data pack speech --parts tr,cv --out speech.npz",
    )
    pack.add_argument("folder", type=Path, help="folder of recordings; their names are relative to it")
    pack.add_argument("--out", type=Path, required=True, help="the file")
    pack.add_argument("--parts", type=names, help="folders below it, separated by commas (default: everything)")
    pack.add_argument("--sample-rate", type=_sample_rate, default=8000, help="of the pack (default: %(default)s)")
    pack.add_argument("--skip-bad", action="store_true", help="leave out recordings that cannot be used, and say which")
    pack.add_argument("--quiet", action="store_true", help="no progress bar")
    pack.set_defaults(check=_check_pack, run=_pack)


def _counts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in text.split(","):
        part, equals, count = (piece.strip() for piece in pair.partition("="))
        if not equals or part not in _PARTS or part in counts:
            raise argparse.ArgumentTypeError(f"must be like tr=200,cv=20,tt=20, got {text[:80]!r}")
        counts[part] = positive(count)
    return counts


def _sample_rate(text: str) -> int:
    least, most = _SAMPLE_RATES
    value = positive(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be an integer from {least} to {most}, got {text!r}")
    return value


def _chunk(text: str) -> float:
    value = positive_number(text)
    if value < SHORTEST_CHUNK_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a finite number >= {SHORTEST_CHUNK_SECONDS}, got {text!r}")
    return value


def _without_audio(options: argparse.Namespace, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a command loads: a pack is read without the packages that read recordings."""
    packed = any(change.replace(" ", "").startswith("data.pack=") for change in options.set)
    return tuple(name for name in modules if not (packed and name in _AUDIO))


def _check_train(options: argparse.Namespace) -> None:
    if options.config is None and options.start is None:
        raise ValueError("torchmcl separation train: `config` must be given without --from, got nothing. Try `quick`.")
    check_extra(*_without_audio(options, TRAINED), extra="separation", needed_by="torchmcl separation train")


def _check_evaluate(options: argparse.Namespace) -> None:
    check_extra(*_without_audio(options, _CONFIGURED), extra="speech", needed_by="torchmcl separation evaluate")


def _check_separate(options: argparse.Namespace) -> None:
    check_extra(*SEPARATED, extra="speech", needed_by="torchmcl separation separate")


def _check_mix(options: argparse.Namespace) -> None:
    check_extra(*_AUDIO, extra="speech", needed_by="torchmcl data mix")


def _check_pack(options: argparse.Namespace) -> None:
    check_extra(*_AUDIO, extra="speech", needed_by="torchmcl data pack")


def _train(options: argparse.Namespace) -> None:
    from torchmcl.separation.config import load_config
    from torchmcl.separation.start import fitted_to
    from torchmcl.separation.train import train_separator

    name = options.config or "fine-tune"
    out = options.out or Path("out") / Path(name).stem
    config = load_config(name)
    config = config if options.start is None else fitted_to(config, options.start)
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
    print(f"Records: {out / 'records.jsonl'}")
    print(f"Best model: {model}")


def _evaluate(options: argparse.Namespace) -> None:
    from torchmcl.separation.config import SeparationConfig
    from torchmcl.separation.evaluate import evaluate_separator, speaker_genders
    from torchmcl.separation.shipped import is_shipped, load_separator
    from torchmcl.separation.tables import evaluation_table

    trained = SeparationConfig.from_dict(load_separator(options.model)[1].get("configuration", {}))
    changes = [*options.set, *(["data.skip_bad=true"] if options.skip_bad else [])]
    config = trained.changed(changes)
    config = config if options.data is None else config.with_root(options.data)
    records = evaluate_separator(
        options.model,
        config.data,
        part=options.part,
        out=options.out or (None if is_shipped(options.model) else options.model),
        limit=options.limit,
        device=options.device,
        progress=not options.quiet,
    )
    print(evaluation_table(records, speaker_genders(config.data.root), all_pairs=options.all_pairs))


def _separate(options: argparse.Namespace) -> None:
    from torchmcl.reports.separation import write_separation_page
    from torchmcl.separation.separate import separate_recording

    out = options.out or Path("out") / options.recording.stem
    result = separate_recording(
        options.recording,
        out,
        options.model,
        chunk_seconds=options.chunk,
        device=options.device,
        progress=not options.quiet,
    )
    for output in result["outputs"]:
        print(f"{out / output['file']}  {result['ordered_by']} {output['score']:.3f}")
    if result["speakers"] is not None:
        shown = ", ".join(f"{number}: {100 * chance:.0f} %" for number, chance in enumerate(result["speakers"]))
        print(f"How many speak? {shown}")
    print(f"Open the page: {write_separation_page(out).resolve().as_uri()}")


def _mix(options: argparse.Namespace) -> None:
    from torchmcl.data.speech import MixPlan, write_mixtures

    plan = MixPlan(options.speakers, options.counts, options.sample_rate, seed=options.seed)
    made = write_mixtures(options.folder, options.out, plan, skip_bad=options.skip_bad, progress=not options.quiet)
    print(f"{sum(made.values())} mixtures in {options.out}: {', '.join(f'{n} {part}' for part, n in made.items())}")


def _pack(options: argparse.Namespace) -> None:
    from torchmcl.data.speech import AudioPack
    from torchmcl.data.speech.audio import audio_files

    parts = options.parts or ["."]
    files = [path for part in parts for path in audio_files(options.folder / part)]
    pack = AudioPack.from_folder(
        options.folder,
        [path.relative_to(options.folder).as_posix() for path in files],
        sample_rate=options.sample_rate,
        skip_bad=options.skip_bad,
        progress=not options.quiet,
    )
    size = pack.save(options.out)
    print(
        f"{len(pack.names)} recordings in {options.out}: {size / 2**20:.1f} MiB ({pack.n_bytes / 2**20:.1f} as int16)"
    )
