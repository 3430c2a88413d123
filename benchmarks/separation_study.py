"""Pack the records of `torchmcl reproduce separation` into the two files that the documentation is made of.

    python benchmarks/separation_study.py out/separation --commit COMMIT --device "NVIDIA H200"

Writes benchmarks/results/separation-training-<machine>.jsonl and separation-evaluation-<machine>.csv.
"""

import argparse
from pathlib import Path

from torchmcl._files import write_atomically
from torchmcl.experiments.separation.study_records import packed_study, read_study

RESULTS = Path(__file__).resolve().parent / "results"


def main():
    """Read the folder, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `torchmcl reproduce separation` wrote")
    parser.add_argument("--machine", default="h200", help="in the names of the files (default: %(default)s)")
    parser.add_argument("--device", default="NVIDIA H200", help="for the notes (default: %(default)s)")
    parser.add_argument("--commit", required=True, help="of the code that trained")
    parser.add_argument("--note", default="", help="anything else to know")
    options = parser.parse_args()
    notes = {"device": options.device, "commit": options.commit, "note": options.note}
    training, evaluation = packed_study(read_study(options.folder), notes)
    write_atomically(RESULTS / f"separation-training-{options.machine}.jsonl", training)
    write_atomically(RESULTS / f"separation-evaluation-{options.machine}.csv", evaluation)


if __name__ == "__main__":
    main()
