"""Spans on a scale: each at its place, honest about what is too fine to be drawn."""

from __future__ import annotations

import base64
import html
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumagic.drawing import (
    Drawing,
    Lane,
    Piece,
    Span,
    StripRow,
    Strips,
    Timeline,
)
from gpumagic.drawing.spans import Line, Mark, raster
from tests.drawing.drawings import TEXTS
from tests.drawing.survives import assert_numbers_agree, assert_survives

KINDS = ("used", "waiting")
LEGEND = (("used", ""), ("waiting", "for a stream"))
SHARES = st.integers(0, 1000).map(lambda at: at / 1000)
MARKS = st.builds(
    lambda ends, kind: Mark(min(ends), max(ends), kind),
    st.tuples(SHARES, SHARES),
    st.sampled_from((*KINDS, "")),
)
LINES = st.lists(MARKS, max_size=60).map(
    lambda marks: Line("", sorted(marks), "", length=1.0)
)
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


def row(*pieces, text="text"):
    """A row of pieces given as kind and size, with a star where a stretch begins."""
    made = (Piece(kind.strip("*"), size, starts="*" in kind) for kind, size in pieces)
    return StripRow("row", tuple(made), text)


def line_of(part, width=53, label="row"):
    """The characters of the first line, and what stands behind them."""
    text = Drawing("T", (part,)).text(width)
    return re.search(rf"^  {label} +(\S.*)$", text, re.MULTILINE)[1].split("  ")[0]


def pictures(part):
    """The pictures, as the SVGs that they are."""
    found = re.findall(r"base64,([^\"]*)", part.html())
    return [base64.b64decode(each).decode() for each in found]


def titles(part):
    """What the pointer finds, from left to right, with the width of each box."""
    found = re.findall(
        r'<span(?: title="([^"]*)")? style="flex:(\d+)"></span>', part.html()
    )
    return [(html.unescape(title), int(width)) for title, width in found]


# ------------------------------------------------------------------ any content


@patient
@given(LINES, st.integers(1, 200), st.integers(1, 8), st.integers(1, 3))
def test_every_mark_has_a_place_and_heights_are_true(line, width, column, most):
    """By brute force: where marks are crowded, a column has what each kind covers."""
    seen = raster(line, width, (column, most))

    begun = sorted(mark.start for mark in line.marks if mark.kind)
    too_near = any(
        (last - first) * width < 2 * column
        for first, last in zip(begun, begun[2 * most :], strict=False)
    )
    assert bool(seen.shares) is too_near
    for at, shares in seen.shares.items():
        low, high = at * column, min((at + 1) * column, width)
        for kind in KINDS:
            covered = sum(
                max(min(mark.end * width, high) - max(mark.start * width, low), 0)
                for mark in line.marks
                if mark.kind == kind
            )
            assert math.isclose(
                shares.get(kind, 0.0), covered / (high - low), abs_tol=1e-9
            )
    for at, owner in enumerate(seen.owners):
        over = [m for m in line.marks if at in places(m, width)]
        assert (owner < 0) is (not over)  # and no longer one hides a short one
        assert owner < 0 or line.marks[owner] in over
        long = [m.end - m.start for m in over]
        assert owner < 0 or line.marks[owner].end - line.marks[owner].start == min(long)


def places(mark, width):
    """Where a mark is drawn: at one place at least."""
    left = min(int(mark.start * width), width - 1)
    return range(left, min(max(round(mark.end * width), left + 1), width))


@patient
@given(st.lists(ROWS, max_size=4), st.floats(1, 1e12), TEXTS)
def test_any_pieces_are_drawn(rows, full, remark):
    """Whatever the sizes and names, nothing is dropped and both forms agree."""
    part = strips(*rows, full=full, remark=remark)
    drawing = Drawing("T", (part,))

    assert_survives(part.html())
    shown = re.sub(r' title="[^"]*"', "", drawing.html())
    assert_numbers_agree(SimpleNamespace(html=lambda: shown, whole=drawing.whole))


@patient
@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 60), st.sampled_from("abc")),
        min_size=1,
        max_size=150,
    )
)
def test_boxes_under_the_pointer_cover_the_picture(drawn):
    """However spans lie, the boxes fill the line, and each span is told once."""
    spans = tuple(Span(at, at + long, name) for at, long, name in drawn)
    boxes = titles(Timeline("C", (Lane("a", spans),)))

    assert sum(width for _, width in boxes) == 480
    assert len(boxes) <= 320
    told = [re.match(r"(\d+) spans", title) for title, _ in boxes if title]
    assert sum(int(each[1]) if each else 1 for each in told) == len(spans)


@given(st.floats(1e-9, 1e3))
def test_the_last_end_is_at_the_end_of_the_line(length_s):
    """However the scale's length rounds, no span reaches beyond the picture."""
    timeline = Timeline("C", (Lane("a", (Span(0.0, length_s, "a"),)),))

    assert timeline.scale.place(length_s) == 1.0
    assert [width for _, width in titles(timeline)] == [480]


# ------------------------------------------------------------------ rows of pieces


def test_pieces_lie_at_their_places():
    """A row of half the length is half as long, and its kinds are told apart."""
    part = strips(row(("used", 25), ("", 12.5), ("waiting", 12.5)))

    assert line_of(part) == "▤" * 10 + "·" * 5 + "▥" * 5


def test_a_new_stretch_is_set_off():
    """Two stretches in use do not look like one."""
    part = strips(row(("*used", 50), ("*used", 50)))

    assert line_of(part) == "▤" * 20 + "|" + "▤" * 19
    assert "V0h238V18h2V0h240" in pictures(part)[0]


def test_fine_pieces_become_heights_and_say_so():
    """A thousand small pieces, half of them in use, are neither full nor empty."""
    fine = row(*(("used" if n % 2 else "", 0.1) for n in range(1000)))
    part = strips(fine)

    assert set(line_of(part)) <= set("▄▅")
    assert "too fine" in Drawing("T", (part,)).text()
    assert "too fine" in part.html()
    heights = {int(level) for level in re.findall(r"V(\d+)h", pictures(part)[0])}
    assert heights <= {0, 9}


def test_pointer_is_told_the_piece_alone():
    """A wide piece says what it has to say, also behind narrow ones."""
    narrow = tuple(Piece("used", 0.5, f"w{n % 4}") for n in range(9))
    wide = Piece("used", 50, tell=lambda: "the wide one")
    found = titles(strips(StripRow("row", (*narrow, wide), "text"), noun="block"))

    assert found[-2:] == [("the wide one", 241), ("", 218)]
    assert found[0][0] == "5 blocks: 1 w0, 0.5 w1, 2 other names"


# ------------------------------------------------------------------- timelines


def test_a_name_is_written_where_it_fits_and_no_pattern_is_below():
    """Six letters of seven pixels, with three on either side, and not in one less."""

    def names(width, kind="kernel"):
        spans = (Span(0, width, "letter", kind), Span(479, 480, "x", "copy"))
        return pictures(Timeline("C", (Lane("a", spans),)))[0].count(">letter<")

    assert [names(48), names(47), names(100, "launch")] == [1, 0, 0]


def test_window_shows_the_time_before_and_after():
    """A device that idled at both ends is not drawn as if it had been busy."""
    timeline = Timeline("C", (Lane("a", (Span(1, 2, "k", "k"),)),), window=Span(0, 4))

    assert timeline.scale.share(timeline.lanes[0]) == "25.0 %"
    assert timeline.scale.ticks() == ["0 s", "2.00 s", "4.00 s"]
    assert [width for _, width in titles(timeline)] == [120, 120, 240]


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=12))
def test_busy_time_is_that_of_the_union(ends):
    """Overlapping spans are busy once: checked by counting thousandths."""
    covered = {
        at
        for one, other in ends
        for at in range(round(min(one, other) * 1000), round(max(one, other) * 1000))
    }
    spans = tuple(Span(min(each), max(each)) for each in ends)

    assert Lane("lane", spans).busy_s == pytest.approx(len(covered) / 1000)
