"""Small pieces of layout, by their properties."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import gpumagic.drawing
from gpumagic.drawing import Lane, Span
from gpumagic.drawing.ink import _shown, clean, fit, side_by_side
from gpumagic.drawing.lanes import heights, stacked, strokes
from gpumagic.drawing.series import levels, peaks
from gpumagic.drawing.timeline import Scale

WIDTHS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8
)
MODULES = [each.name for each in pkgutil.iter_modules(gpumagic.drawing.__path__)]
MOMENTS = st.integers(0, 1000).map(lambda at: at / 1000)
SPANS = st.tuples(MOMENTS, MOMENTS).map(lambda at: Span(min(at), max(at)))


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module):
    """What a docstring shows is what happens."""
    found = doctest.testmod(importlib.import_module(f"gpumagic.drawing.{module}"))

    assert not found.failed


@given(st.text())
def test_what_is_clean_is_looked_at_as_a_whole(text):
    """A text is cleaned as if each of its characters were looked at."""
    assert clean(text) == " ".join("".join(map(_shown, text)).split())


@given(st.text(), st.integers(0, 3))
def test_a_cell_that_fits_is_one_line_as_it_is(text, more):
    """Nothing is wrapped or cut where there is room, units beside their numbers too."""
    shown = clean(f"{text} 3 ms")
    cell = Text(shown, style="bold", overflow="fold")

    lines = side_by_side([cell], [cell.cell_len + more], Console())

    assert [(line.plain, line.style) for line in lines] == [(shown, "")]
    assert cell.plain == shown


@given(WIDTHS, st.integers(1, 300))
def test_columns_share_the_room(pairs, room):
    """Widths never exceed the room, nor what is wanted, nor go below the least."""
    wants = [max(pair) for pair in pairs]
    least = [min(pair) for pair in pairs]

    widths = fit(wants, least, room)

    if sum(least) > room:
        assert widths is None
    else:
        assert sum(widths) <= room
        assert sum(widths) == sum(wants) or sum(widths) == room
        assert all(low <= width for low, width in zip(least, widths, strict=True))


@given(st.text())
def test_cleaning_once_is_enough(text):
    """Clean text is one line without control characters, and stays as it is."""
    once = clean(text)

    assert clean(once) == once
    assert once.isprintable() or not once.isascii()
    assert "\n" not in once


@given(st.lists(st.none() | st.floats(-1e9, 1e9)), st.integers(1, 50))
def test_peaks_keep_the_highest_value(points, most):
    """However few columns there are, the peak is among them."""
    kept = peaks(points, most)
    known = [value for value in points if value is not None]

    assert len(kept) == min(len(points), most)
    assert not known or max(known) == max(value for value in kept if value is not None)


def test_levels_span_all_heights_and_leave_gaps():
    """The lowest value has the lowest mark, the highest the highest."""
    assert levels([0.0, None, 7.0, 3.5], "_-^") == "_ ^-"
    assert levels([2.0, 2.0], "_-^") == "--"


@given(st.lists(SPANS, min_size=1, max_size=30), st.integers(1, 200))
def test_every_span_has_a_place_on_the_line(spans, width):
    """Each span is at least one pixel wide, in order and inside."""
    lane = Lane("lane", tuple(spans))

    drawn = strokes(lane, Scale.of((lane,)), width)

    assert len(drawn) == len(spans)
    assert all(0 <= stroke.left < stroke.right <= width for stroke in drawn)


@given(st.lists(SPANS, min_size=1, max_size=30), st.integers(1, 200))
def test_heights_hold_the_time_of_all_spans(spans, columns):
    """Drawn as heights, nothing is gained or lost."""
    lane = Lane("lane", tuple(spans))
    scale = Scale.of((lane,))
    assume(scale.length_s > 0)

    area = sum(heights(lane, scale, columns, [""])[""]) * scale.length_s / columns

    total = sum(span.end_s - span.start_s for span in spans)
    assert area == pytest.approx(total, abs=1e-9)


@given(st.lists(SPANS, min_size=1, max_size=12))
def test_busy_time_is_that_of_the_union(spans):
    """Overlapping spans are busy once: checked by counting thousandths."""
    covered = {
        at
        for span in spans
        for at in range(round(span.start_s * 1000), round(span.end_s * 1000))
    }

    assert Lane("lane", tuple(spans)).busy_s == pytest.approx(len(covered) / 1000)


def test_stacked_heights_end_at_one():
    """Overlapping kinds do not leave their lane."""
    tops = stacked({"kernel": [0.5, 0.8], "copy": [0.25, 0.9]})

    assert tops == {"kernel": [0.5, 0.8], "copy": [0.75, 1.0]}
