"""Write tables and figures of docs/separation_results.rst from benchmarks/results: python docs/_separation_tables.py"""

from pathlib import Path

from torchmcl.experiments.separation.study_records import read_packed_study
from torchmcl.reports import separation_drawings as drawings
from torchmcl.reports.pictures import pyplot
from torchmcl.reports.separation_study import (
    HYPOTHESES_HEAD,
    METHOD_HEAD,
    TRANSITION_HEAD,
    gender_rows,
    hypotheses_rows,
    method_rows,
    transition_rows,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"


def list_table(title, head, rows):
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    # A number and its error stay in one line.
    unbroken = [[cell.replace(" ± ", "\N{NBSP}±\N{NBSP}").replace("p ", "p\N{NBSP}") for cell in row] for row in rows]
    unbroken = [[cell.replace("= ", "=\N{NBSP}").replace("< ", "<\N{NBSP}") for cell in row] for row in unbroken]
    for cells in [head, *unbroken]:
        for i, cell in enumerate(cells):
            # What stands after a bar is a second line of the cell.
            first, *below = cell.split(" | ")
            lines.append(f"   {'* ' if i == 0 else '  '}- {f'| {first}' if below else first}".rstrip())
            lines += [f"       | {line}" for line in below]
    return "\n".join(lines) + "\n"


def tables(study):
    """Return the tables of the page by name."""
    methods, genders = [], []
    for n_speakers, n_mixtures in ((2, 500), (3, 400)):
        title = f"{n_speakers} speakers, {n_mixtures} mixtures, in dB"
        methods.append(list_table(title, METHOD_HEAD, method_rows(study, n_speakers)))
        genders.append(list_table(f"Improvement in dB, {n_speakers} speakers", *gender_rows(study, n_speakers)))
    outputs = list_table("3 speakers, 400 mixtures, in dB", HYPOTHESES_HEAD, hypotheses_rows(study))
    cooled = list_table("Cooled from three temperatures", TRANSITION_HEAD, transition_rows(study))
    return {
        "methods": "\n".join(methods),
        "genders": "\n".join(genders),
        "hypotheses": outputs,
        "transition": cooled,
    }


def main():
    study = read_packed_study(RESULTS / "separation-training-h200.jsonl", RESULTS / "separation-evaluation-h200.csv")
    for name, text in tables(study).items():
        (HERE / f"separation_{name}.inc").write_text(text)
    for name, part, draw in (
        ("separation_curves", "methods", drawings.draw_learning_curves),
        ("separation_hypotheses", "hypotheses", drawings.draw_hypotheses),
        ("separation_transition", "transition", drawings.draw_transition),
    ):
        figure = draw(study.of_part(part))
        figure.savefig(HERE / "_static" / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})
        pyplot("the documentation").close(figure)


if __name__ == "__main__":
    main()
