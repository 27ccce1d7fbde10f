"""What the views say: short sentences, in the words of the field."""

from __future__ import annotations

import re

import pytest

from gpumagic.drawing import Details, Note, Paragraph
from tests.gallery.samples import drawn, view_names

MOST_WORDS = 20
NAMES = view_names()
_NOT_SAID = re.compile(
    r"nobody will walk back|decided this time|waited for before|operators treat it as"
    r"|done because of|\bstranded\b|\bstuck\b",
    re.IGNORECASE,
)
# A figure with its unit is one word, as are an address in the code and what is typed.
_FIGURE = re.compile(r"(?<=\d) (?=[A-Za-z%])")
_CODE = re.compile(r"`[^`]*`|\([^)]*\)|\S*[%_=/(]\S*|\S*\.\S+")
_END = re.compile(r"[.:;](?:\s|$)|\n")


def said(parts):
    """Every sentence that stands in notes and paragraphs, also in folded ones."""
    for part in parts:
        match part:
            case Note():
                yield from (part.text, part.hint)
            case Paragraph():
                yield part.text
            case Details() if part.name != "torch":  # its own sentence
                yield from (part.summary, *said(part.parts))


@pytest.mark.parametrize("name", [each for each in NAMES if "hostile" not in each])
def test_a_sentence_is_short(name):
    """No sentence has more than twenty words; what is typed counts as one."""
    drawing = drawn()[name]
    sentences = [
        sentence.strip()
        for text in (drawing.title, *said(drawing.parts))
        for sentence in _END.split(_CODE.sub("code", _FIGURE.sub("", text)))
    ]

    assert [each for each in sentences if len(each.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_view_speaks_a_dialect_of_ours(name):
    """What a term means stands on the page of words; others are not used."""
    assert _NOT_SAID.findall(drawn()[name].whole().text()) == []
