"""Rows of pieces show each piece at its place, or say that they cannot."""

from __future__ import annotations

import base64
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpumagic.drawing import Drawing, Piece, StripRow, Strips
from gpumagic.drawing.strip_rows import coverage, fine_cells, levelled, of_pieces
from tests.drawing.drawings import TEXTS
from tests.drawing.survives import assert_numbers_agree, assert_survives

KINDS = ("used", "waiting")
LEGEND = (("used", ""), ("waiting", "for a stream"))
PIECES = st.builds(
    Piece,
    st.sampled_from((*KINDS, "")),
    st.one_of(st.floats(), st.integers(0, 10**12)),
    TEXTS,
    st.none(),
    st.booleans(),
)
ROWS = st.builds(StripRow, TEXTS, st.lists(PIECES, max_size=30).map(tuple), TEXTS)
patient = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)


def strips(*rows, full=100.0, **more):
    """Rows of which a full one is 100 long."""
    return Strips("Pieces", rows, LEGEND, full, **more)


def row(*pieces, label="row", text="text"):
    """A row of pieces given as kind and size, with a star where a stretch begins."""
    made = (Piece(kind.strip("*"), size, starts="*" in kind) for kind, size in pieces)
    return StripRow(label, tuple(made), text)


def line_of(part, width=60):
    """The characters of the first row."""
    text = Drawing("T", (part,)).text(width)
    return re.search(r"^  row +(\S+(?: +\S+)*?) +text", text, re.MULTILINE)[1]


def picture_of(part):
    """The first picture, as the SVG that it is."""
    return base64.b64decode(re.search(r"base64,([^\"]*)", part.html())[1]).decode()


def titles(part):
    """What the pointer is told, box by box."""
    return re.findall(r'<span title="([^"]*)"', part.html())


# ------------------------------------------------------------------ any content


@patient
@given(st.lists(ROWS, max_size=4), st.floats(1, 1e12), TEXTS)
def test_any_pieces_are_drawn(rows, full, remark):
    """Whatever the sizes and names, nothing is dropped and both forms agree."""
    part = strips(*rows, full=full, remark=remark)
    drawing = Drawing("T", (part,))

    assert_survives(part.html())
    shown = re.sub(r' title="[^"]*"', "", drawing.html())
    assert_numbers_agree(SimpleNamespace(html=lambda: shown, whole=drawing.whole))
    for width in (40, 88):
        assert max(map(cell_len, drawing.text(width).split("\n"))) <= width


@patient
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(1e-3, 1e6)), max_size=40),
    st.integers(1, 200),
)
def test_every_piece_is_covered_once(pieces, cells):
    """The shares of all cells come to the sizes of the pieces."""
    drawn = row(*pieces)
    scale = cells / drawn.length if drawn.length else 1.0

    shares = coverage(drawn, scale, cells, KINDS)

    for kind in KINDS:
        size = sum(each.size for each in drawn.drawn if each.kind == kind)
        assert math.isclose(sum(shares[kind]), size * scale, abs_tol=1e-6 * cells)
    assert all(sum(cell) < 1 + 1e-6 for cell in zip(*shares.values(), strict=True))


@patient
@given(ROWS, st.integers(1, 40))
def test_boxes_of_the_pointer_lie_side_by_side(drawn, most):
    """From the first pixel to the last, none over another, and not too many."""
    scale = 480 / max(drawn.length, 1)

    boxes = list(of_pieces(drawn, scale, most, lambda pieces: str(len(pieces))))

    assert all(box.left < box.right for box in boxes)
    ends = [0, *(box.right for box in boxes)]
    assert [box.left for box in boxes] == ends[:-1]
    assert len(boxes) <= 2 * most + 1
    assert ends[-1] <= 480


# ---------------------------------------------------------------- what is drawn


def test_pieces_lie_at_their_places():
    """A row of half the length is half as long, and its kinds are told apart."""
    part = strips(row(("used", 25), ("", 12.5), ("waiting", 12.5)))

    line = line_of(part, 2 + 3 + 2 + 40 + 2 + 4)

    assert line == "▤" * 10 + "·" * 5 + "▥" * 5


def test_new_stretch_is_set_off():
    """Two stretches in use do not look like one."""
    part = strips(row(("*used", 50), ("*used", 50)))

    assert line_of(part, 53) == "▤" * 20 + "|" + "▤" * 19
    assert "M0 0h238" in picture_of(part)
    assert "M240 0h238" in picture_of(part)


def test_fine_pieces_become_heights():
    """A thousand small pieces, half of them in use, are neither full nor empty."""
    fine = row(*(("used" if n % 2 else "", 0.1) for n in range(1000)))
    part = strips(fine)

    assert set(line_of(part, 53)) <= set("▄▅")
    assert "too fine" in Drawing("T", (part,)).text()
    assert "too fine" in part.html()
    heights = {int(level) for level in re.findall(r"V(\d+)h", picture_of(part))}
    assert heights <= {18, 8, 10}


def test_nothing_is_said_to_be_fine_where_nothing_is():
    """The remark is made only where it is true."""
    part = strips(row(("used", 50), ("", 50)))

    assert "too fine" not in part.html()
    assert "too fine" not in Drawing("T", (part,)).text()


def test_what_is_free_is_not_drawn_full():
    """A single small piece in a large hole leaves the hole empty round it."""
    part = strips(row(("", 50), ("used", 0.1), ("", 49.9)))

    line = line_of(part, 53)

    assert line.count("·") >= 38
    assert "█" not in line


def test_heights_of_fine_cells_are_spread_evenly():
    """A group has its mean; what is not fine is there or not."""
    shares = [1.0, 0.0, 1.0, 0.0, 0.9, 0.1]

    assert levelled(shares, {1}, 4) == [0.5, 0.5, 0.5, 0.5, 1.0, 0.0]


def test_cells_with_narrow_pieces_are_fine():
    """Only pieces that are narrower than the measure make a cell fine."""
    drawn = row(("used", 5), ("used", 0.5), ("used", 4.5))

    assert fine_cells(drawn, 1.0, 10, 1) == {5}


# --------------------------------------------------------------- what is pointed


def test_pointer_is_told_the_piece_alone():
    """A wide piece says what it has to say."""
    told = Piece("used", 50, tell=lambda: "50 MiB of weights")
    part = strips(StripRow("row", (told, Piece("", 50)), "text"))

    assert titles(part)[0] == "50 MiB of weights"


def test_pointer_is_told_how_much_of_each_kind_where_pieces_are_fine():
    """Number, sums and the first names of what is under it."""
    fine = StripRow(
        "row",
        tuple(
            Piece("used" if n % 2 else "", 0.1, name=f"w{n}" if n % 2 else "")
            for n in range(1000)
        ),
        "text",
    )

    first = titles(strips(fine, noun="block"))[0]

    assert re.fullmatch(
        r"\d+ blocks: [\d.]+ free, [\d.]+ used; w1, w3 and \d+ more", first
    )


def test_wide_piece_is_told_alone_behind_narrow_ones():
    """What is under the pointer is not counted together with its small neighbours."""
    narrow = tuple(Piece("used", 0.5) for _ in range(9))
    wide = Piece("used", 50, tell=lambda: "the wide one")
    part = strips(StripRow("row", (*narrow, wide), "text"))

    assert titles(part)[-1] == "the wide one"


def test_last_cell_is_fine_where_the_last_piece_is():
    """A piece that rounding puts behind the line belongs to its last cell."""
    assert fine_cells(row(("used", 10), ("used", 1e-30)), 1.0, 10, 1) == {9}


def test_boxes_stay_few():
    """Thousands of pieces in many rows do not make a notebook heavy."""
    rows = [row(*(("used", 0.1) for _ in range(1000))) for _ in range(12)]

    assert len(titles(strips(*rows))) <= 110
    assert len(strips(*rows).html()) < 60_000


@pytest.mark.parametrize("pieces", [(), (("used", 0.0),), (("used", math.nan),)])
def test_row_without_a_size_is_a_row(pieces):
    """It has its label and its text, and next to nothing is drawn."""
    text = Drawing("T", (strips(row(*pieces)),)).text()

    assert "row" in text
    assert "text" in text
