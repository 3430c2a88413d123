"""Parsing and dispatch of the commands `torchmcl data ...`, which prepare recordings."""

import argparse
from pathlib import Path
from typing import Any

from torchmcl.app import arguments

__all__ = ["PARTS", "add_data_commands"]

PARTS = ("tr", "cv", "tt")


def add_data_commands(commands: Any) -> None:
    """Add `data` to the commands."""
    data = commands.add_parser("data", help="prepare speech: mix, pack", description="Prepare speech for training.")
    tasks = data.add_subparsers(title="tasks", metavar="TASK", required=True)
    _add_mix(tasks)
    _add_pack(tasks)


def _add_mix(tasks: Any) -> None:
    mix = tasks.add_parser(
        "mix",
        help="mix single-speaker recordings into a folder with the layout of WSJ0-mix",
        description="Mix FOLDER/<speaker>/... or FOLDER/{tr,cv,tt}/<speaker>/... into "
        "OUT/wav8k/min/{tr,cv,tt}/{mix,s1,s2,...}, with gains as in WSJ0-mix. The parts have different speakers.",
        epilog="example: torchmcl data mix recordings --out mixed --speakers 2 --counts tr=200,cv=20,tt=20",
    )
    mix.add_argument("folder", type=Path, help="folder of recordings, with a subfolder for each speaker")
    mix.add_argument("-o", "--out", type=Path, required=True, help="folder for the mixtures")
    mix.add_argument(
        "--speakers", type=arguments.positive, default=2, help="speakers per mixture (default: %(default)s)"
    )
    counts = "tr=20000,cv=5000,tt=3000"
    mix.add_argument(
        "--counts", type=_counts, default=counts, help="number of mixtures per part (default: %(default)s)"
    )
    mix.add_argument(
        "--sample-rate", type=arguments.positive, default=8000, help="sample rate in Hz (default: %(default)s)"
    )
    mix.add_argument("--seed", type=arguments.seed, default=0, help="random seed (default: %(default)s)")
    mix.add_argument("--skip-bad", action="store_true", help="skip unusable recordings and warn about them")
    mix.add_argument("--quiet", action="store_true", help="no progress bar")
    mix.set_defaults(run=_mix)


def _add_pack(tasks: Any) -> None:
    pack = tasks.add_parser(
        "pack",
        help="pack recordings into one compressed file",
        description="Pack all recordings of a folder, lossless at 16 bits, into one file that can be read with numpy "
        "alone. Train on it with --set data.pack=FILE.",
        epilog="example: torchmcl data pack speech --parts tr,cv --out speech.npz",
    )
    pack.add_argument("folder", type=Path, help="folder of recordings; their names are relative to it")
    pack.add_argument("-o", "--out", type=Path, required=True, help="output file")
    pack.add_argument("--parts", type=arguments.names, help="subfolders, separated by commas (default: all)")
    pack.add_argument(
        "--sample-rate", type=arguments.positive, default=8000, help="sample rate in Hz (default: %(default)s)"
    )
    pack.add_argument("--skip-bad", action="store_true", help="skip unusable recordings and warn about them")
    pack.add_argument("--quiet", action="store_true", help="no progress bar")
    pack.set_defaults(run=_pack)


def _counts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in text.split(","):
        part, equals, count = (piece.strip() for piece in pair.partition("="))
        if not equals or part not in PARTS or part in counts:
            raise argparse.ArgumentTypeError(f"must be like tr=200,cv=20,tt=20, got {text[:80]!r}")
        counts[part] = arguments.positive(count)
    return counts


def _mix(options: argparse.Namespace) -> None:
    from torchmcl_speech.data import MixPlan, write_mixtures

    plan = MixPlan(options.speakers, options.counts, options.sample_rate, seed=options.seed)
    counts = write_mixtures(options.folder, options.out, plan, skip_bad=options.skip_bad, progress=not options.quiet)
    arguments.say(
        f"{sum(counts.values())} mixtures in {options.out}: {', '.join(f'{n} {part}' for part, n in counts.items())}"
    )


def _pack(options: argparse.Namespace) -> None:
    from torchmcl import io
    from torchmcl_speech.data import AudioPack
    from torchmcl_speech.data.audio import audio_files

    if options.out.is_dir():
        raise IsADirectoryError(f"{str(options.out)!r} cannot be written: it is a folder. Give the name of a file.")
    io.check_writable(options.out)
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
    arguments.say(
        f"{len(pack.names)} recordings in {options.out}: {size / 2**20:.1f} MiB ({pack.n_bytes / 2**20:.1f} as int16)"
    )
