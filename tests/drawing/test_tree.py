"""Trees: lines with their figures and their share of the whole."""

from __future__ import annotations

import re

from gpumagic.drawing import Branch, Drawing, Tree

LEAF = Branch("leaf", ("12",), 0.25)
BLOCK = Branch("first", ("24",), 0.5, below=(LEAF, LEAF))
NET = Branch("net", ("48",), 1.0, below=(BLOCK, BLOCK), is_open=True)


def test_both_forms_have_what_is_in_sight_or_the_whole():
    """Neither unfolds by itself: the whole is a tree of its own, for --show."""
    for whole, leaves in ((False, 0), (True, 4)):
        tree = Tree("model", ("parameters",), NET, whole=whole)
        text = Drawing("T", (tree,)).text()

        assert (text.count("leaf"), text.count("first")) == (leaves, 2)
        assert (tree.html().count("leaf"), tree.html().count("first")) == (leaves, 2)
    named = re.findall(r"min-width:([\d.]+)em", tree.html())
    assert {float(size) for size in named} == {24.0, 22.8, 21.6}


def test_very_many_lines_fit_into_a_notebook():
    """A model of thousands of parts says in HTML how many lines are left."""
    parts = tuple(Branch(f"block {at}", ("1",), 0.01) for at in range(1000))
    tree = Tree("T", ("n",), Branch("net", ("59",), 1.0, below=parts), whole=True)

    assert len(tree.html()) < 40_000
    assert "... and 901 lines" in tree.html()
