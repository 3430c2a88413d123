"""Write tables and figures of docs/separation_results.rst from benchmarks/results: python docs/_separation_tables.py"""

import re
from pathlib import Path

from torchmcl_studies.reports import separation_drawings as drawings
from torchmcl_studies.reports.separation_study import (
    AUTOMATIC_HEAD,
    HYPOTHESES_HEAD,
    METHOD_HEAD,
    TRANSITION_HEAD,
    automatic_rows,
    by_hand_and_automatic,
    gender_rows,
    hypotheses_rows,
    method_rows,
    transition_rows,
)
from torchmcl_studies.separation_records import recorded_study

HERE = Path(__file__).resolve().parent


def list_table(title, head, rows):
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for cells in [head, *rows]:
        for i, cell in enumerate(cells):
            # What stands after a bar is another line of the cell.
            first, *below = (unbroken(line) for line in cell.split(" | "))
            lines.append(f"   {'* ' if i == 0 else '  '}- {f'| {first}' if below else first}".rstrip())
            lines += [f"       | {line}" for line in below]
    return "\n".join(lines) + "\n"


def unbroken(text):
    """Return the text with a number and its error, a p and its number, and what is in brackets kept in one line."""
    return re.sub(r"(?<=[±=<p]) | (?=±)|(?<=\d,) (?=\S+\))|(?<=SE) ", "\N{NBSP}", text)


def tables(study):
    """Return the tables of the page by name."""
    methods, genders = [], []
    for n_speakers, n_mixtures in ((2, 500), (3, 400)):
        title = f"{n_speakers} speakers, {n_mixtures} mixtures, in dB"
        methods.append(list_table(title, METHOD_HEAD, method_rows(study, n_speakers)))
        genders.append(list_table(f"Improvement in dB, {n_speakers} speakers", *gender_rows(study, n_speakers)))
    outputs = list_table("3 speakers, 400 mixtures, in dB", HYPOTHESES_HEAD, hypotheses_rows(study))
    cooled = list_table("Cooled from three temperatures", TRANSITION_HEAD, transition_rows(study))
    itself = list_table("aMCL, 2 speakers, 500 mixtures, in dB", AUTOMATIC_HEAD, automatic_rows(study))
    return {
        "methods": "\n".join(methods),
        "genders": "\n".join(genders),
        "hypotheses": outputs,
        "transition": cooled,
        "automatic": itself,
    }


def main():
    study = recorded_study()
    for name, text in tables(study).items():
        (HERE / f"separation_{name}.inc").write_text(text)
    for name, figure in (
        ("separation_curves", drawings.draw_learning_curves(study.of_part("methods"))),
        ("separation_hypotheses", drawings.draw_hypotheses(study.of_part("hypotheses"))),
        ("separation_transition", drawings.draw_transition(study.of_part("transition"))),
        ("separation_automatic", drawings.draw_automatic(*by_hand_and_automatic(study))),
    ):
        figure.savefig(HERE / "_static" / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main()
