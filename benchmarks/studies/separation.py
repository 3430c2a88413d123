"""Pack the records of `torchmcl reproduce separation` into the two files that the documentation uses.

    python -m benchmarks.studies.separation out/separation --commit COMMIT --device "NVIDIA H200"

Writes training.jsonl and evaluation.csv in studies/src/torchmcl_studies/separation/recorded. With --add the training
runs of the folder are added to the training runs in these files, with separate notes.
"""

import argparse
from pathlib import Path

from torchmcl.io import write_atomically
from torchmcl_studies.separation_records import joined_study, packed_study, read_packed_study, read_study

RESULTS = Path(__file__).resolve().parents[2] / "studies/src/torchmcl_studies/separation/recorded"


def main():
    """Read the folder, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `torchmcl reproduce separation` wrote")
    parser.add_argument("--device", default="NVIDIA H200", help="for the notes (default: %(default)s)")
    parser.add_argument("--commit", required=True, help="of the code that trained")
    parser.add_argument("--note", default="", help="anything else to know")
    parser.add_argument("--add", action="store_true", help="to what the files have, instead of replacing it")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files (default: %(default)s)")
    options = parser.parse_args()
    files = [options.results / name for name in ("training.jsonl", "evaluation.csv")]
    notes = {"device": options.device, "commit": options.commit, "note": options.note}
    study = read_study(options.folder)
    if options.add:
        before = read_packed_study(*files)
        notes = added_notes(before.notes, {**notes, "runs": [run.name for run in study.runs]})
        study = joined_study(before, study)
    for file, text in zip(files, packed_study(study, notes), strict=True):
        write_atomically(file, text)


def added_notes(before, notes):
    """Return the notes of the first training runs, with the notes of later runs under "added"."""
    return {**before, "added": [*before.get("added", []), notes]}


if __name__ == "__main__":
    main()
