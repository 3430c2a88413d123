"""Small tables for the tests: two branches, categories, missing values, two targets."""

import csv

import numpy as np


def houses(n_rows=240, seed=0):
    """Return rows of text: a price with two branches (unseen: whether the house has a view), and days on the market."""
    rng = np.random.default_rng(seed)
    area = rng.normal(100, 30, n_rows)
    rooms = rng.integers(1, 6, n_rows)
    city = rng.choice(["Ulm", "Köln", "Bonn"], n_rows, p=[0.5, 0.3, 0.2])
    view = np.where(rng.uniform(size=n_rows) < 0.5, 100, -100)
    price = 3 * area + 10 * rooms + np.where(city == "Ulm", 0, 80) + view + rng.normal(0, 5, n_rows)
    days = 40 + 10 * rooms + rng.normal(0, 5, n_rows)
    rows = []
    for i in range(n_rows):
        rows.append(
            {
                "area": "" if i % 17 == 3 else f"{area[i]:.1f}",
                "rooms": str(rooms[i]),
                "city": "" if i % 29 == 5 else str(city[i]),
                "price": f"{price[i]:.2f}",
                "days": f"{days[i]:.1f}",
            }
        )
    return rows


def write_csv(path, rows, delimiter=","):
    """Write rows with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path
