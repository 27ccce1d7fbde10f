"""Trees: rows that fold, with the same columns at each level."""

from __future__ import annotations

import re

from gpumagic.drawing import Branch, Column, Drawing, Tree

LEAF = Branch("weight", ("12",))
MODEL = Tree(
    "model",
    (Column("Module"), Column("Parameters", number=True)),
    (Branch("blocks", ("24",), (Branch("first", ("12",), (LEAF,)), LEAF)), LEAF),
)


def test_text_has_two_levels_and_says_what_is_inside():
    """A terminal does not unfold by itself; asked for as a whole it shows all."""
    drawing = Drawing("T", (MODEL,))

    rows = [line.strip() for line in drawing.text().splitlines()[5:]]
    assert [row.split("  ")[0] for row in rows] == [
        "blocks",
        "first",
        "... 1 row inside",
        "weight",
        "weight",
    ]
    assert "inside" not in drawing.whole().text()
    assert drawing.whole().text().count("weight") == 3


def test_what_has_something_in_it_opens_and_only_the_first_level_is_open():
    """HTML folds with what an untrusted notebook keeps."""
    html = MODEL.html()

    assert re.findall(r"<details( open)?", html) == [" open", ""]
    assert MODEL.opened().html().count("<details open") == 2


def test_columns_stand_below_each_other_at_each_level():
    """What a name loses in width it has gained at its left."""
    named = re.findall(r"(margin-left:|width:)([\d.]+)em", MODEL.html())

    widths = {float(size) for what, size in named if what == "width:"}
    assert widths == {24.0, 22.8, 21.6, 8.0}


def test_very_many_are_counted():
    """Fifty rows of a level are drawn, and the rest is counted in both forms."""
    tree = Tree("T", (Column("name"),), tuple(Branch(f"b{at}") for at in range(73)))

    assert "... and 23 more" in tree.html()
    assert "... and 23 more" in Drawing("T", (tree,)).text()
