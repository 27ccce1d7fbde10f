"""Trees: lines that open, each with its figures and its share of the whole."""

from __future__ import annotations

import re
from dataclasses import replace

from gpumagic.drawing import Branch, Details, Drawing, Tree
from tests.drawing.survives import assert_survives

LEAF = Branch("leaf", ("12",), 0.25)
BLOCK = Branch("first", ("24",), 0.5, below=(LEAF, LEAF))
NET = Branch("net", ("48",), 1.0, below=(BLOCK, BLOCK), is_open=True)
TREE = Tree("model", ("parameters",), NET)
ALL = Details("All", (replace(TREE, whole=True),), "tree", in_text_only=True)


def test_text_has_what_is_in_sight_and_all_of_it_where_that_is_asked_for():
    """A terminal does not unfold by itself; --show has every line."""
    drawing = Drawing("T", (TREE, ALL))

    assert (drawing.text().count("leaf"), drawing.text().count("first")) == (0, 2)
    assert drawing.asked(["tree"]).text().count("leaf") == 4


def test_html_opens_level_by_level_and_has_each_line_once():
    """A click opens a branch, the first level is open, and no second tree is folded."""
    html = Drawing("T", (TREE, ALL)).html()

    assert re.findall(r"<details( open)?", html) == [" open", "", ""]
    assert (html.count("<summary"), html.count("leaf")) == (3, 4)
    assert_survives(html)
    assert html.index("net") < html.index("first") < html.index("leaf")
    named = re.findall(r"min-width:([\d.]+)em", html)
    assert {float(size) for size in named} == {24.0, 22.8, 21.6}
    asked = Drawing("T", (TREE, ALL)).asked(["tree"]).html()
    # Itself, and the three branches of the whole.
    assert asked.count("<details") == asked.count('open="open"') == 4


def test_very_many_lines_fit_into_a_notebook():
    """Of thousands of parts HTML has the upper levels, and says how many are left."""
    parts = tuple(replace(BLOCK, name=f"block {at}") for at in range(90))
    deep = Tree("T", ("n",), replace(NET, below=parts)).html()
    wide = Tree("T", ("n",), replace(NET, below=parts * 10)).html()

    assert all(f"block {at}<" in deep for at in range(90))
    assert deep.count("2 parts, by --show tree") == 90
    assert "leaf" not in deep
    assert "... and 800 lines" in wide
    assert len(wide) < 60_000
