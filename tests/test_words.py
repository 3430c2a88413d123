"""Pages and docstrings avoid the commonest slips from plain technical American English."""

import functools
import re

import pytest

from grids import for_each
from sample_sentences import docstrings, page_sentences, pages, summaries

# Each slip with a better way to write it.
SLIPS = {
    "whatever|whoever|however many": "write 'any' or 'for every'",
    "so many|so few": "give the number, or write 'this many'",
    "goes on|gone on|go on with|hands? on|handed on": "write 'continues', 'resumes' or 'passes'",
    "as it comes|as they come": "write 'in order' or 'by default'",
    "by itself|by themselves|of one's own": "write 'alone', 'automatically' or 'separately'",
    "comes? along|at hand|unless told": "write 'bundled', 'available' or 'by default'",
    "trainings": "write 'training runs'",
    "anew|whom|as far as|told apart|serves (?:as|for)": "write 'new', 'who', 'if', 'distinguished' or 'is used for'",
    "whole numbers?": "write 'integers'",
    "believes?": "data, models and code believe nothing",
    "set apart|asked for|by heart": "write 'test rows', 'requested' or 'memorized'",
    r"\w*(?:standard|normal|minim|maxim|initial|synchron|recogn|quant)is(?:e|ed|es|ers?|ing|ation)": "spell it with z",
    r"colours?|behaviours?|metres?|licences?|favours?|neighbour(?!s\b)\w*": "use American spelling",
}


@functools.cache
def texts():
    """Return (place, text) of all pages and docstrings."""
    found = [(page.name, page.read_text(encoding="utf-8")) for page in pages()]
    return found + list(docstrings())


@for_each("slip", list(SLIPS))
def test_common_slips_stay_out_of_pages_and_docstrings(slip):
    pattern = re.compile(rf"\b(?:{slip})\b", re.IGNORECASE)
    found = [f"{place}: {match[0]!r}" for place, text in texts() for match in pattern.finditer(text)]
    assert found == [], SLIPS[slip]


def test_no_page_is_longer_than_1500_words():
    lengths = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages() if page.suffix == ".rst"}
    assert {name: length for name, length in lengths.items() if length > 1500} == {}


@pytest.mark.parametrize("draw", [page_sentences, summaries])
def test_there_are_enough_sentences_to_draw_from(draw):
    found = draw()
    assert len(found) > 1000
    assert all(place and text for place, text in found)
