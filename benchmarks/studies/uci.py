"""Time of the UCI study: all sets, methods, folds and protocols, or a part of them.

python -m benchmarks.studies.uci --data FOLDER --work FOLDER [--device cpu|cuda] [--sets ...]
    [--methods ...] [--protocols ...] [--epochs N] [--patience N] [--score-weight W]
"""

import time
from pathlib import Path

from benchmarks._common import parser, report
from torchmcl_studies.uci.methods import METHODS
from torchmcl_studies.uci.run import run_study
from torchmcl_studies.uci.study import PROTOCOLS, UciStudy

if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--work", type=Path, required=True, help="folder for the records; must not hold any yet")
    arguments.add_argument("--sets", default=",".join(UciStudy().sets))
    arguments.add_argument("--methods", default=",".join(METHODS))
    arguments.add_argument("--protocols", default=",".join(PROTOCOLS))
    arguments.add_argument("--epochs", type=int, default=1000)
    arguments.add_argument("--patience", type=int, help="epochs without a lower monitored loss before a network stops")
    arguments.add_argument("--score-weight", type=float, default=1.0, help="5 is the sum of Eq. (4), 1 the mean")
    options = arguments.parse_args()
    study = UciStudy(
        sets=options.sets.split(","),
        methods=options.methods.split(","),
        protocols=options.protocols.split(","),
        n_epochs=options.epochs,
        data=options.data,
        device=options.device,
        patience=options.patience,
        score_weight=options.score_weight,
    )
    start = time.perf_counter()
    records = run_study(study, options.work, progress=False)
    wall = time.perf_counter() - start
    rows: list[dict[str, object]] = []
    for name in study.sets:
        trained: dict[tuple[object, ...], float] = {}  # last and test-selected share a training
        for row in (row for row in records.rows.values() if row["set"] == name):
            key = (row["fold"], row["method"], row["seed"], row["protocol"] == "validation")
            trained[key] = row["seconds"]
        rows.append({"set": name, "training_seconds": sum(trained.values()), "trainings": len(trained)})
    rows.append(
        {
            "set": "all",
            "wall_seconds": wall,
            # On a GPU trainings run side by side, and their times add up to more than the wall's.
            "training_seconds": sum(float(str(row["training_seconds"])) for row in rows),
            "trainings": sum(int(str(row["trainings"])) for row in rows),
            "options": {name: str(value) for name, value in vars(options).items()},
        }
    )
    for row in rows:
        print(row, flush=True)
    report("uci", options.device, rows, options.out)
