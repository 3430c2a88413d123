"""Thirty-nine regression tables of PMLB, packed for `contest.py`; the tables themselves are not committed.

python -m benchmarks.tables.pmlb --from FOLDER --out FOLDER [--half choosing|kept-apart] [--rows 30000]

The first folder is a clone of github.com/EpistasisLab/pmlb at commit 792a7a2e (later ones hold pointers instead of
tables), or any folder with its `*.tsv.gz` files. Both halves were named before a method ran on either: choices were
made on the first, and the second was opened once, with everything fixed.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.model_selection import KFold

#: Tables on which choices were made.
CHOOSING = (
    *("229_pwLinear", "561_cpu", "695_chatfield_4", "560_bodyfat", "519_vinnie", "1027_ESL", "547_no2", "1028_SWD"),
    *("1030_ERA", "586_fri_c3_1000_25", "589_fri_c2_1000_25", "529_pollen", "503_wind", "225_puma8NH", "201_pol"),
    *("537_houses", "574_house_16H", "215_2dplanes", "564_fried", "1203_BNG_pwLinear"),
)
#: Tables that were opened once, at the end.
KEPT_APART = (
    *("230_machine_cpu", "712_chscase_geyser1", "505_tecator", "690_visualizing_galaxy", "557_analcatdata_apnea1"),
    *("522_pm10", "666_rmftsa_ladata", "1029_LEV", "583_fri_c1_1000_50", "588_fri_c4_1000_100"),
    *("4544_GeographicalOriginalofMusic", "294_satellite_image", "197_cpu_act", "227_cpu_small"),
    *("1199_BNG_echoMonths", "218_house_8L", "1193_BNG_lowbwt", "344_mv", "1201_BNG_breastTumor"),
)
HALVES = {"choosing": CHOOSING, "kept-apart": KEPT_APART}
# As in ScoringBench.
_N_FOLDS, _SEED = 5, 42


def packed(source: Path, name: str, n_rows: int | None = None) -> dict[str, np.ndarray]:
    """Return inputs, targets and test masks [folds, rows] of a table, or of `n_rows` of its rows, drawn at random."""
    import pandas as pd

    path = next(iter(sorted(source.rglob(f"{name}.tsv.gz"))), None)
    if path is None:
        raise FileNotFoundError(f"{name}.tsv.gz is not below {source}: fetch EpistasisLab/pmlb at commit 792a7a2e")
    table = pd.read_csv(path, sep="\t")
    if n_rows is not None and len(table) > n_rows:
        table = table.sample(n_rows, random_state=_SEED)
    targets = table.pop("target").to_numpy(dtype=np.float64)
    folds = KFold(_N_FOLDS, shuffle=True, random_state=_SEED).split(targets)
    test = np.zeros((_N_FOLDS, len(targets)), dtype=bool)
    for fold, (_, rows) in enumerate(folds):
        test[fold, rows] = True
    return {"X": table.to_numpy(dtype=np.float64), "y": targets, "test": test}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--from", dest="source", type=Path, required=True, help="a clone of PMLB, or its files")
    arguments.add_argument("--out", type=Path, required=True, help="folder of packed tables")
    arguments.add_argument("--half", choices=tuple(HALVES), help="by default both")
    arguments.add_argument("--rows", type=int, help="at most this many rows of each table, drawn at random")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for half in [options.half] if options.half else HALVES:
        for name in HALVES[half]:
            np.savez_compressed(options.out / f"{name}.npz", **packed(options.source, name, options.rows))
            print(half, name, flush=True)
