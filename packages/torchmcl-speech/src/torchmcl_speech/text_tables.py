"""An evaluation as text: all mixtures, by gender if known, and by speaker."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl_speech.evaluate import MEASURES, means_by

__all__ = ["evaluation_table", "models_table"]

_HEADS = {
    "pit_si_sdr": "PIT SI-SDR",
    "mcl_si_sdr": "MCL SI-SDR",
    "input_si_sdr": "before",
    "improvement": "improvement",
}
_SHOWN = 5

_Groups = Mapping[str, Mapping[str, float]]


def evaluation_table(
    records: Sequence[Mapping[str, Any]], genders: Mapping[str, str] | None = None, *, all_pairs: bool = False
) -> str:
    """Return the means in dB over all mixtures and over groups of them, as lines of text.

    Args:
        records: from `evaluate_separator`.
        genders: speaker -> gender, for the groups by gender.
        all_pairs: show every pair (or larger group) of speakers, instead of the five hardest and easiest.
    """
    sections: dict[str, _Groups] = {"": means_by(records, lambda record: "all")}
    if genders:
        sections["by gender"] = means_by(records, lambda record: _genders_of(record, genders))
    pairs = means_by(records, lambda record: " + ".join(sorted(record["speakers"])))
    ranked = sorted(pairs.items(), key=lambda item: item[1]["improvement"])
    n_hidden = 0 if all_pairs else max(len(ranked) - 2 * _SHOWN, 0)
    if n_hidden:
        sections[f"by speakers: the {_SHOWN} hardest of {len(ranked)}"] = dict(ranked[:_SHOWN])
        sections[f"the {_SHOWN} easiest; {n_hidden} others with --all-pairs"] = dict(ranked[-_SHOWN:])
    else:
        sections["by speakers, hardest first"] = dict(ranked)
    width = max(len(name) for name in ["mean in dB", *(name for groups in sections.values() for name in groups)])
    lines = [f"{'mean in dB':<{width}}  mixtures" + "".join(f"  {_HEADS[m]}" for m in MEASURES)]
    for title, groups in sections.items():
        lines += ["", title] if title else []
        lines += [_row(name, group, width) for name, group in groups.items()]
    return "\n".join(lines)


def models_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """Return the separators of these cards as lines of text: outputs, size, improvement and speed.

    Args:
        cards: from `torchmcl_speech.model_card`.
    """
    heads = ["name", "outputs", "size", "improvement", "speed on 2 CPU cores"]
    lines = [heads, *(_described(card) for card in cards)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _described(card: Mapping[str, Any]) -> list[str]:
    outputs = f"up to {card['n_outputs']}, scored" if card["scores"] else str(card["n_outputs"])
    mean = card["results"].get("all", {}).get("mean")
    speed = card.get("speed", {}).get("times_real_time")
    return [
        card["name"],
        outputs,
        f"{card['bytes'] / 1e6:.1f} MB",
        "not measured" if mean is None else f"{mean:.1f} dB",
        "not measured" if speed is None else f"{speed:.1f} times real time",
    ]


def _genders_of(record: Mapping[str, Any], genders: Mapping[str, str]) -> str:
    return " + ".join(sorted(genders.get(speaker, "?") for speaker in record["speakers"]))


def _row(name: str, group: Mapping[str, float], width: int) -> str:
    numbers = "".join(f"  {group[m]:>{len(_HEADS[m])}.2f}" for m in MEASURES)
    return f"{name:<{width}}  {int(group['n']):>{len('mixtures')}}{numbers}"
