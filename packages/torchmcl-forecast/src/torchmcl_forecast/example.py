"""Small table of sales for trying the command."""

from pathlib import Path

import numpy as np
import pandas as pd

from torchmcl import io
from torchmcl.errors import bad_value

__all__ = ["EXAMPLE", "EXAMPLE_COLUMNS", "write_example"]

EXAMPLE = "sales.csv"
EXAMPLE_COLUMNS = {"time": "date", "value": "sold", "series": "shop"}
_N_DAYS, _SHOPS = 420, ("Harbor", "Market", "Station", "University")


def write_example(path: Path) -> None:
    """Write daily sales of four shops, with a weekly and a yearly season, unannounced promotions, and closed days.

    Raises:
        ValueError: If the file exists with other contents.
        OSError: If the file cannot be written.
    """
    rng = np.random.default_rng(0)
    days = np.arange(_N_DAYS)
    tables = []
    for number, shop in enumerate(_SHOPS):
        level = 40 + 25 * number
        week = 1 + 0.35 * np.isin(days % 7, (4, 5)) - 0.3 * (days % 7 == 6)
        season = 1 + 0.2 * np.sin(2 * np.pi * days / 365)
        # A promotion begins on random days and raises sales for two weeks.
        promoted = np.convolve(rng.uniform(size=_N_DAYS) < 0.02, np.ones(14))[:_N_DAYS] > 0
        sold = pd.Series(rng.poisson(level * week * season * (1 + 0.6 * promoted)), dtype="Int64")
        closed = days % 97 == 50
        table = pd.DataFrame({"date": np.datetime64("2023-01-02") + days, "shop": shop, "sold": sold.mask(closed)})
        tables.append(table[60:] if shop == _SHOPS[-1] else table)  # the last shop opened later
    content = pd.concat(tables).to_csv(index=False, lineterminator="\n").encode()
    if path.exists() and path.read_bytes() != content:
        rule, advice = "be a new file or the example table", "Use another name: torchmcl forecast --example NAME.csv"
        raise ValueError(bad_value("write_example", "table", rule, repr(str(path)), advice))
    io.write_atomically(path, content)
