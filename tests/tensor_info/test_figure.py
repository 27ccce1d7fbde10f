"""Every drawn number is where it belongs, and pictures cost what is drawn."""

from __future__ import annotations

import base64
import html
import itertools
import re
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.drawing import Drawing
from gpumagic.drawing.tiles import Figure
from gpumagic.tensor_info.figure import (
    Visible,
    index_panel,
    memory_strip,
    sector_figure,
    visible_tensor,
)
from gpumagic.tensor_info.geometry import Geometry, warp_reads
from gpumagic.tensor_info.report import TensorReport
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.tensor_info import samples
from tests.tensor_info.samples import SAMPLES, tensor, viewed

DRAWN = {
    name: report
    for name, report in SAMPLES
    if isinstance(report, TensorReport) and visible_tensor(report)
}


def strips_of(report):
    """The strips of memory in sight."""
    return [part for part in report.drawing().parts if isinstance(part, Figure)]


AXES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(-6, 12)), min_size=0, max_size=4
)


@given(AXES, st.integers(60, 69), st.integers(0, 40))
def test_strip_has_every_index_at_its_place_and_accounts_for_the_storage(
    axes, offset, more
):
    """By enumeration; tiles, gaps and what is left out add up to the storage."""
    sizes, steps = (tuple(axis[at] for axis in axes) for at in (0, 1))
    visible = Visible(sizes, steps, offset, 4, stored=offset + 150 + more)
    lists = {}
    for index in itertools.product(*map(range, sizes)):
        lists.setdefault(visible.place(index), []).append(index)
    if not visible.landings:
        assert max(lists) - min(lists) >= 64
        return
    figure = memory_strip(visible)
    total, told = 0, {}
    for head, tile in zip(figure.heads, figure.rows[0].tiles, strict=True):
        count = re.search(r"([\d,]+) el", tile.text)
        total += 1 if head else int(count[1].replace(",", ""))
        if tile.fill:
            told[int(head)] = tile.text

    assert total == visible.stored
    assert told == {at: visible.label(min(its)) for at, its in lists.items()}
    assert {at: n for at, (_, n) in visible.landings.items()} == {
        at: len(its) for at, its in lists.items()
    }


def test_failing_view_marks_the_jump_in_memory():
    """The strip shows where the walk was and where it has to go on."""
    (strip,) = strips_of(viewed(samples.TRANSPOSED, (24,)))

    words = dict(zip(strip.heads, strip.rows[-1].tiles, strict=True))
    walk = {head: word.text for head, word in words.items() if word.text}
    assert walk == {"1": "next", "18": "last"}


def test_what_would_take_long_to_draw_has_no_strip():
    """Of many places, or windows over windows, there is no list of what lies where."""
    assert not strips_of(viewed(tensor((2**15,) * 2, (1, 2**15)), (2**30,)))
    assert "memory" not in tensor((50,) * 4, (1,) * 4).parts


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(-9, 12)), min_size=1, max_size=3
    ),
    st.sampled_from((1, 2, 4, 8, 16)),
    st.integers(0, 40),
)
def test_each_sector_has_the_lanes_that_it_serves(axes, itemsize, past):
    """By enumeration of every byte, as the table beside it counts; lines by colour."""
    size, stride = (tuple(axis[at] for axis in axes) for at in (0, 1))
    start = 2**20 + past * itemsize
    g = Geometry(size, stride, 0, itemsize)
    reads = warp_reads(g, start)
    figure = sector_figure(g, start, reads, "")

    assert len(figure.heads) == max(read.sectors for read in reads)
    for row, read, (count, step) in zip(figure.rows, reads, axes, strict=True):
        served = {}
        for lane in range(min(count, 32)):
            low = start + lane * step * itemsize
            for byte in range(low, low + itemsize):
                served.setdefault(byte // 32, []).append(lane)
        told = [tile for tile in row.tiles if tile.text]
        ends = [(int(t.split("-")[0]), int(t.split("-")[-1])) for t, _ in told]
        assert ends == [(min(its), max(its)) for _, its in sorted(served.items())]
        lines = [sector // 4 for sector in sorted(served)]
        for one, other in itertools.pairwise(zip(lines, told, strict=True)):
            assert (one[0] == other[0]) == (one[1].fill == other[1].fill)
        assert len(told) == read.sectors


@pytest.mark.parametrize("name", DRAWN)
def test_picture_shows_what_the_text_shows(name):
    """Each text of each tile is in the SVG, and in the lines of characters."""
    visible = visible_tensor(DRAWN[name])
    grid = [index_panel(visible)] if visible.ndim < 4 else []
    for figure in (*grid, memory_strip(visible)):
        source = re.search(r"base64,([^\"]+)", figure.html())[1]
        picture = html.unescape(base64.b64decode(source).decode())
        plain = Drawing("", (figure,)).text(2000)
        for text in (tile.text for row in figure.rows for tile in row.tiles):
            assert not text or f">{text}<" in picture
            assert text in plain


SHAPES = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 3, 7, 40, 2**12)),
        st.sampled_from((0, 1, 2, 5, 40, 1000, 2**21)),
    ),
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 100), st.sampled_from((1, 2, 8)))
def test_any_geometry_is_drawn_small(axes, offset, itemsize):
    """Whatever sizes and strides there are: 40 kB, one truth, no line too wide."""
    size, stride = (tuple(axis[at] for axis in axes) for at in (0, 1))

    drawing = tensor(size, stride, offset, itemsize=itemsize).drawing()

    assert len(drawing.html().encode()) <= 40_000
    assert_survives(drawing.html())
    assert_numbers_agree(drawing)
    assert max(map(len, drawing.text(40).splitlines())) <= 40


UNKNOWN = [each.name for each in fields(TensorReport) if each.default is None]


@pytest.mark.parametrize("field", UNKNOWN)
def test_any_figure_may_be_unknown(field):
    """A look-up that failed costs its own line and not the report."""
    missing = {**vars(samples.NHWC), field: None}

    assert_numbers_agree(TensorReport(**missing).drawing())
