"""Options and code within what is read."""

from __future__ import annotations

import pytest

from gpumagic.drawing import Drawing, Note, Paragraph
from gpumagic.drawing.html import escape, sentences, words
from tests.gallery.samples import LONG


def test_option_is_not_broken_behind_its_hyphens():
    """A line ends before `--step` or behind it, never within."""
    whole = '<span style="white-space:nowrap">--step</span>'

    assert words("type --step FN") == f"type {whole} FN"
    assert words("x - y -> z -1") == escape("x - y -> z -1")
    assert "<wbr/>" in words(f"--{LONG}")


@pytest.mark.parametrize(
    "part", [Note("note", "leave out `.to()`", "type `.to()`"), Paragraph("a `.to()`")]
)
def test_backticks_are_drawn_as_code_and_stay_in_the_text(part):
    """Sentences and hints show code as code; in plain text it keeps its marks."""
    html = part.html()

    assert "<code>.to()</code>" in html
    assert "`" not in html
    assert "`.to()`" in Drawing("", (part,)).text()


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("it`s", "it`s"),
        ("a ` b ` c", "a ` b ` c"),
        ("``", "``"),
        ("`a` and `b", "<code>a</code> and `b"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("(`a b`), c", "(<code>a b</code>), c"),
    ],
)
def test_only_pairs_of_backticks_are_code(text, html):
    """A backtick of somebody else's message is shown as it is, blanks included."""
    assert sentences(text) == html
