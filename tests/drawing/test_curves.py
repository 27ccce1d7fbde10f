"""Columns: to scale, the peak where it was, each layer with its letter."""

from __future__ import annotations

import re
from base64 import b64decode

import pytest

from gpumagic.drawing import Areas, Curve, Drawing, Histogram, Layer
from gpumagic.drawing.palette import MEANINGS

MIB = 2**20
HELD = Layer("model.py, line 3", (4, 4, 4, 4))
MOVES = Layer("train.py, line 9", (0, 2, 7, 0))


def areas(*layers, **more):
    """What these layers are drawn as."""
    return Areas("In use", layers, ("event 1", "event 4"), "peak 11", **more)


def lines_of(drawn, width=60):
    """What is drawn, from the mark of the peak on."""
    return Drawing("T", (drawn,)).text(width).splitlines()[3:]


def picture_of(drawn):
    """The picture itself, without those of the legend."""
    return b64decode(re.search('base64,([^"]+)', drawn.html())[1]).decode()


# ---------------------------------------------------------------------- one layer


def test_a_curve_holds_each_value_until_the_next():
    """Half of the steps at a quarter, then at all of it: as memory does, it jumps."""
    curve = Curve("C", (1, 4), ("start", "2 steps"), "peak 4")

    _, top, *_, ground, _, _ = lines_of(curve)

    drawn = ground.removeprefix("  0  ")
    assert set(drawn) == {"█"}
    assert abs(top.count("█") * 2 - len(drawn)) <= 1
    assert "M0 96V74h240V10h240V96z" in picture_of(curve)
    assert MEANINGS["in use"].fill in picture_of(curve)


def test_what_rises_and_falls_within_a_stretch_is_no_plateau():
    """Half of the stretch stands at its least; the scale may begin at a floor."""
    curve = Curve("C", (44, 44), ("a", "b"), "peak", lowest=(41, 44), floor=40)

    assert "V10h120V74h120V10h240" in picture_of(curve)
    assert lines_of(curve)[1].split()[0] == "44"


@pytest.mark.parametrize(
    "drawn", [Curve("C", (0, 0), ("a", "b"), ""), areas(Layer("a", (0, 0)))]
)
def test_nothing_in_use_has_no_mark(drawn):
    """A mark on nothing would be a peak that never was."""
    assert not any("▼" in line for line in lines_of(drawn)[:-1])
    assert "overflow" not in picture_of(drawn)


def test_very_many_stretches_stay_small():
    """Twenty thousand allocations, or a dozen layers that all jump all the time."""
    heights = tuple(at * 7919 % 1000 for at in range(20_000))
    layers = [
        Layer(f"l{at}", tuple(k * (at + 7) * 7919 % 1000 for k in range(5_000)))
        for at in range(12)
    ]

    assert len(Curve("C", heights, ("start", "end"), "peak").html()) < 12_000
    assert len(areas(*layers).html()) < 40_000


def test_a_slow_sample_is_told_and_squeezes_nothing():
    """One value far away is counted; columns are as high as what lies in them."""
    histogram = Histogram("H", [1.0] * 30 + [2.0] * 15 + [1.5] * 15 + [1e6])
    drawn, said, more = Drawing("T", (histogram,)).text(72).splitlines()[3:]

    assert re.fullmatch(r"  █ +▄ +▄", drawn)
    assert f"{said} {more.strip()}".strip() == (
        "from 1 to 2, at most 30 of 61 in one column, 1 value beyond the picture, "
        "as far as 1e+06"
    )
    assert lines_of(Histogram("H", [3.0] * 9))[0] == "  █"


# ------------------------------------------------------------------ several layers


def test_what_was_before_lies_lowest_and_many_together_highest():
    """Else what stays the same would seem to jump."""
    before = Layer("there before", (1, 1, 1, 0), "before")
    rest = Layer("all others", (3, 3, 3, 3), "together")

    drawn = areas(MOVES, rest, HELD, before).drawn()

    marks = [swatch.mark for swatch, _ in drawn.layers]
    assert marks == ["=", "B", "A", "+"]
    assert drawn.totals[2] == 1.0


def test_the_picture_is_stacked_to_scale():
    """An area begins where the one below it ends, and the highest place is marked."""
    picture = picture_of(areas(MOVES, HELD))

    # Of 110 pixels: 40 are held all the time, the other 20, 70 above it move.
    assert "M0 120V80h480V120z" in picture
    assert "M0 120V80h120V60h120V10h120V80h120V120z" in picture
    assert picture.index("V10h120") < picture.index("V80h480")
    assert 'x="62.50%"' in picture
    assert ">A</text>" in picture
    assert ">B</text>" in picture


def test_a_letter_stands_only_where_there_is_room_for_it():
    """What is thin is told by the pointer and by the legend."""
    picture = picture_of(areas(MOVES, Layer("thin", (0.1, 0.1, 0.1, 0.1))))

    assert ">A</text>" in picture
    assert ">B</text>" not in picture


def test_more_layers_than_letters_are_drawn_as_many_together():
    """Each has a letter of its own, also where names are alike, while there are any."""
    keys = areas(*[MOVES] * 14).keys

    assert "".join(key.swatch.mark for key in keys) == "ABCDEFGHIJKL++"
