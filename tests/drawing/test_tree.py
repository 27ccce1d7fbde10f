"""Trees: lines that open, each with its figures and its share of the whole."""

from __future__ import annotations

import re

from gpumagic.drawing import AllLevels, Branch, Drawing, Tree

LEAF = Branch("leaf", ("12",), 0.25)
BLOCK = Branch("first", ("24",), 0.5, below=(LEAF, LEAF))
MODEL = Tree(
    "model",
    ("parameters",),
    Branch("net", ("48",), 1.0, below=(BLOCK, BLOCK), is_open=True),
)
WHOLE = Tree(MODEL.caption, MODEL.headings, MODEL.root, whole=True)


def rows(drawing, width=88):
    """The lines of the tree, under its caption and its headings."""
    return drawing.text(width).splitlines()[4:]


def test_text_has_what_is_in_sight_and_all_levels_where_they_are_asked_for():
    """A terminal does not unfold by itself; --show has every line."""
    drawing = Drawing("T", (MODEL, AllLevels("All", (WHOLE,), "tree")))

    names = [row.split()[0] for row in rows(drawing)[:3]]
    assert names == ["net", "first", "first"]
    assert "leaf" not in drawing.text()
    assert drawing.asked(["tree"]).text().count("leaf") == 4


def test_html_opens_what_is_in_sight_and_has_all_levels_once():
    """HTML folds with what an untrusted notebook keeps, so it needs no second tree."""
    drawing = Drawing("T", (MODEL, AllLevels("All", (WHOLE,), "tree")))

    assert re.findall(r"<details( open)?", MODEL.html()) == [" open", "", ""]
    assert WHOLE.html().count("<details open") == 3
    assert drawing.html().count("leaf") == 4


def test_of_very_many_lines_html_has_the_upper_levels():
    """A model of thousands of parts fits into a notebook, which says what is left."""
    parts = tuple(
        Branch(f"block {at}", ("1",), 0.01, below=(Branch("leaf", ("1",), 0.01),) * 2)
        for at in range(59)
    )
    html = Tree("T", ("n",), Branch("net", ("59",), 1.0, below=parts)).html()

    assert all(f"block {at}<" in html for at in range(59))
    assert "leaf" not in html
