"""Time of the trajectory study: all scenes and methods, or a part of them.

python -m benchmarks.studies.trajectories --work FOLDER [--data FOLDER] [--device cpu|cuda] [--scenes ...] [--seeds 6]
"""

import time
from pathlib import Path

from benchmarks._common import parser, report
from torchmcl_studies.trajectories.study import TrajectoryStudy, run_study

if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--work", type=Path, required=True, help="folder for the records; must not hold any yet")
    arguments.add_argument("--scenes", default=",".join(TrajectoryStudy().scenes))
    arguments.add_argument("--seeds", type=int, default=6)
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    for scene in options.scenes.split(","):
        study = TrajectoryStudy(scenes=(scene,), n_seeds=options.seeds, data=options.data, device=options.device)
        start = time.perf_counter()
        records = run_study(study, options.work, progress=False)
        seconds = time.perf_counter() - start
        own = [row for row in records.rows.values() if row["scene"] == scene]
        trained = sum(row["seconds"] for row in own)
        rows.append({"scene": scene, "wall_seconds": seconds, "training_seconds": trained, "trainings": len(own)})
        print(rows[-1], flush=True)
    report("trajectories", options.device, rows, options.out)
