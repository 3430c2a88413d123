"""A small real table to try the commands with."""

import csv
import io
from pathlib import Path

from torchmcl._messages import bad_value
from torchmcl.persistence.writing import write_atomically

__all__ = ["EXAMPLE", "EXAMPLE_TARGET", "write_example"]

EXAMPLE, EXAMPLE_TARGET = "diabetes.csv", "progression"
# Of Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression (2004), in their order and units.
_COLUMNS = (
    *("age", "sex", "bmi", "blood_pressure", "total_cholesterol", "ldl", "hdl", "cholesterol_ratio"),
    *("log_triglycerides", "glucose", EXAMPLE_TARGET),
)


def write_example(path: Path) -> None:
    """Write 442 patients with diabetes and the disease progression after one year, from scikit-learn's copy.

    Raises:
        ValueError: if the file exists and holds something else.
        OSError: if it cannot be written.
    """
    from sklearn.datasets import load_diabetes

    patients = load_diabetes(scaled=False)
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for row, target in zip(patients.data.tolist(), patients.target.tolist(), strict=True):
        rows.writerow([f"{value:g}" for value in (*row, target)])
    content = buffer.getvalue().encode()
    if path.exists() and path.read_bytes() != content:
        rule, advice = "be new, or the example already", "Give another name: torchmcl fit --example NAME.csv"
        raise ValueError(bad_value("write_example", "table", rule, repr(str(path)), advice))
    write_atomically(path, content)
