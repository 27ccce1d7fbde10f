"""Areas on each other: to scale, each with its letter, the peak where it was."""

from __future__ import annotations

import re
from base64 import b64decode
from itertools import combinations

import pytest

from gpumagic.drawing import Areas, Drawing, Layer
from gpumagic.drawing.palette import BEFORE, LAYERS, MEANINGS, TOGETHER, contrast
from gpumagic.report.units import bytes_text
from tests.drawing.eyes import EYES, apart

MIB = 2**20
ENDS = ("event 1", "event 4")
HELD = Layer("model.py, line 3", (4, 4, 4, 4))
MOVES = Layer("train.py, line 9", (0, 2, 8, 0))


def areas(*layers, **more):
    """What these layers are drawn as."""
    return Areas("In use", layers, ENDS, "peak 12", **more)


def lines_of(drawn, width=60):
    """What is drawn, from the mark of the peak on."""
    return Drawing("T", (drawn,)).text(width).splitlines()[3:]


def picture_of(drawn):
    """The picture itself, without those of the legend."""
    return b64decode(re.search('base64,([^"]+)', drawn.html())[1]).decode()


def test_each_layer_takes_as_much_of_a_column_as_it_is():
    """A third of the peak is a third of its height; nothing is drawn on nothing."""
    mark, *rows, ground, axis, said = lines_of(areas(MOVES, HELD))[:9]

    column = "".join(row[mark.index("▼")] for row in (*rows, ground))
    assert column == "AAAABB"
    assert rows[0].split()[0] == "12"
    assert set(ground.removeprefix("   0  ").strip()) == {"B"}
    assert axis.split() == ["event", "1", "event", "4"]
    assert said.strip() == "▼ peak 12"


def test_what_hardly_moves_lies_below_what_moves():
    """Else what stays the same would seem to jump; what was before lies lowest."""
    before = Layer("there before", (1, 1, 1, 0), "before")
    rest = Layer("all others", (3, 3, 3, 3), "together")

    mark, *rows = lines_of(areas(MOVES, rest, HELD, before))[:7]

    column = [row[mark.index("▼")] for row in rows]
    assert list(dict.fromkeys(column)) == ["+", "A", "B"]
    assert areas(MOVES, rest, HELD, before)._drawn[0].layer is before


def test_the_picture_is_stacked_to_scale():
    """An area begins where the one below it ends, and the highest place is marked."""
    picture = picture_of(areas(MOVES, HELD))

    # Of 120 pixels: 40 are held all the time, the other 20, 80 above it move.
    assert "M0 130h0v-40h480V130z" in picture
    assert "M0 130h0v-40h120v-20h120v-60h120v80h120V130z" in picture
    assert picture.index("v-60h120") < picture.index("v-40h480")
    assert 'x="62.50%"' in picture
    assert ">A</text>" in picture
    assert ">B</text>" in picture


def test_a_letter_stands_only_where_there_is_room_for_it():
    """What is thin is told by the pointer and by the legend."""
    picture = picture_of(areas(MOVES, Layer("thin", (0.1, 0.1, 0.1, 0.1))))

    assert ">A</text>" in picture
    assert ">B</text>" not in picture


def test_what_a_table_tells_needs_no_legend():
    """Said once: the legend has what stands nowhere else."""
    whole, less = areas(MOVES, HELD), areas(MOVES, HELD, told_elsewhere=frozenset((0,)))

    assert "A train.py, line 9" in lines_of(whole)[-1]
    assert lines_of(less)[-1].split() == ["B", "model.py,", "line", "3"]
    assert "train.py" in less.html()  # the pointer is told


def test_the_pointer_is_told_when_how_much_and_what():
    """The two largest by name; the moment is in the reader's own units."""
    drawn = areas(
        Layer("train.py, line 9", (0, 2 * MIB, 8 * MIB, 0)),
        Layer("model.py, line 3", (4 * MIB,) * 4),
        at=lambda share: f"event {round(4 * share)}",
        text_of=bytes_text,
    )

    assert (
        'title="event 2 to event 3: 12.0 MiB; 8.00 MiB train.py, line 9, '
        '4.00 MiB model.py, line 3"'
    ) in drawn.html()


def test_two_layers_of_one_name_have_two_letters():
    """Two files may have the same name."""
    first, second = areas(MOVES, MOVES).keys

    assert first.swatch.mark + second.swatch.mark == "AB"


def test_more_layers_than_letters_are_drawn_as_many_together():
    """Nothing is lost where a caller has too many."""
    keys = areas(*[MOVES] * 14).keys

    assert [key.swatch.mark for key in keys[11:]] == ["L", "+", "+"]


@pytest.mark.parametrize("layers", [(), (Layer("a", ()),), (Layer("a", (0, 0)),)])
def test_nothing_in_use_has_no_mark(layers):
    """A mark on nothing would be a peak that never was."""
    assert not any("▼" in line for line in lines_of(areas(*layers))[:-1])
    assert "overflow" not in picture_of(areas(*layers))


def test_areas_of_very_many_stretches_stay_small():
    """A dozen layers that all jump all the time fit into an output."""
    layers = [
        Layer(f"l{at}", tuple(k * (at + 7) * 7919 % 1000 for k in range(5_000)))
        for at in range(12)
    ]

    assert len(areas(*layers).html()) < 40_000


@pytest.mark.parametrize("eyes", EYES)
def test_layers_are_told_apart_by_whoever_looks(eyes):
    """Each two differ in pattern, or in colour as it is seen: in grey by lightness."""
    least = 6.5 if eyes == "grey" else 20.0
    alike = [
        (one.name, other.name)
        for one, other in combinations((*LAYERS, BEFORE, TOGETHER), 2)
        if one.pattern == other.pattern and apart(one.fill, other.fill, eyes) < least
    ]

    assert alike == []


def test_layers_are_seen_on_both_themes_and_are_no_meanings():
    """Each has a contrast of 3:1 on white and on black, a letter and a name."""
    every = (*LAYERS, BEFORE, TOGETHER)

    for each in every:
        assert min(contrast(each.fill, ground) for ground in ("#ffffff", "#111111")) > 3
    assert len({each.mark for each in every}) == len(every)
    assert len({each.name for each in every}) == len(every)
    assert not {each.fill for each in LAYERS} & {
        each.fill for each in MEANINGS.values()
    }
