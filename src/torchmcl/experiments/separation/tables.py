"""An evaluation as text: all mixtures, by the genders of the speakers where they are known, and by speakers."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl.experiments.separation.evaluate import MEASURES, means_by

__all__ = ["evaluation_table"]

_HEADS = {
    "pit_si_sdr": "PIT SI-SDR",
    "mcl_si_sdr": "MCL SI-SDR",
    "input_si_sdr": "mixture",
    "improvement": "improvement",
}
_SHOWN = 5


def evaluation_table(records: Sequence[Mapping[str, Any]], genders: Mapping[str, str] | None = None) -> str:
    """Return the means in dB over all mixtures and over groups of them, as lines of text.

    Args:
        records: from `evaluate_separator`.
        genders: speaker -> gender, for the groups by gender.
    """
    lines = [f"{'':<24}{'mixtures':>9}" + "".join(f"{_HEADS[m]:>13}" for m in MEASURES)]
    lines += _rows(means_by(records, lambda record: "all"))
    if genders:
        lines += _rows(means_by(records, lambda record: _genders_of(record, genders)))
    pairs = means_by(records, lambda record: " + ".join(sorted(record["speakers"])))
    ranked = dict(sorted(pairs.items(), key=lambda item: item[1]["improvement"]))
    if len(ranked) <= 2 * _SHOWN:
        return "\n".join([*lines, *_rows(ranked)])
    names = list(ranked)
    worst = {name: ranked[name] for name in names[:_SHOWN]}
    best = {name: ranked[name] for name in names[-_SHOWN:]}
    between = f"... {len(ranked) - 2 * _SHOWN} other groups of speakers ..."
    return "\n".join([*lines, *_rows(worst), between, *_rows(best)])


def _genders_of(record: Mapping[str, Any], genders: Mapping[str, str]) -> str:
    return " + ".join(sorted(genders.get(speaker, "?") for speaker in record["speakers"]))


def _rows(groups: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{name:<24}{int(group['n']):>9}" + "".join(f"{group[m]:>10.2f} dB" for m in MEASURES)
        for name, group in groups.items()
    ]
