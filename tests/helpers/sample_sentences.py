"""Draw random sentences of pages and docstring summaries for a review of the language.

Run `python tests/helpers/sample_sentences.py --seed 1`. Judge each line as a native technical editor would; at
most 4 in 100 may read as odd.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_WRITTEN_BY_HAND = {"_build", "gallery", "generated", "_templates"}
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|Eq|Prop|al|vs|etc)\.$")


def pages() -> list[Path]:
    """Return the pages of the documentation, the READMEs and the other texts at the root."""
    docs = [
        page
        for page in sorted((ROOT / "docs").rglob("*.rst"))
        if not NOT_WRITTEN_BY_HAND & set(page.relative_to(ROOT).parts)
    ]
    return docs + sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("packages/*/*.md")) + sorted(ROOT.glob("studies/*.md"))


def sources() -> list[Path]:
    """Return the modules of all packages and of the studies."""
    return sorted(path for folder in ROOT.glob("packages/*/src") for path in folder.rglob("*.py")) + sorted(
        (ROOT / "studies" / "src").rglob("*.py")
    )


def prose(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, without code, tables, directives and titles."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    paragraphs = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = block.strip("\n").splitlines()
        if not lines or re.match(r" {3,}", lines[0]) or re.match(r"\.\. |[=~|+-]{3,}|\||#|   :", lines[0].strip()):
            continue
        if any(re.fullmatch(r"[=~^-]{3,}", line.strip()) for line in lines) or re.search(r"={3,} +={3,}", block):
            continue
        paragraphs.append(re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(line.strip() for line in lines)))
    return paragraphs


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph with at least five words."""
    parts: list[str] = []
    for piece in re.split(r"(?<=[.?!:])\s+(?=[A-Z*`:\[])", paragraph):
        if parts and ABBREVIATIONS.search(parts[-1]):
            parts[-1] += f" {piece}"
        else:
            parts.append(piece)
    return [part for part in parts if len(part.split()) >= 5]


def page_sentences() -> list[tuple[str, str]]:
    """Return (page, sentence) for all pages."""
    return [
        (str(page.relative_to(ROOT)), sentence)
        for page in pages()
        for paragraph in prose(page.read_text(encoding="utf-8"))
        for sentence in sentences(paragraph)
    ]


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield (place, docstring) for all modules, classes and functions."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def summaries() -> list[tuple[str, str]]:
    """Return (place, first paragraph) for all docstrings."""
    return [(place, " ".join(text.split("\n\n")[0].split())) for place, text in docstrings()]


def main() -> None:
    """Print the two samples."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-n", type=int, default=100, help="sentences of each kind (default: %(default)s)")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for name, found in (("Sentences of pages", page_sentences()), ("Docstring summaries", summaries())):
        print(f"\n{name}, {options.n} of {len(found)}")
        for number, (place, text) in enumerate(draw.sample(found, options.n), start=1):
            print(f"{number:3} {place}: {text}")


if __name__ == "__main__":
    main()
