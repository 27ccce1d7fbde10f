"""Every drawn number is where it belongs, and pictures cost what is drawn."""

from __future__ import annotations

import base64
import html
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.drawing import Drawing
from gpumagic.tensor_info.axes import Places, visible_tensor, windows
from gpumagic.tensor_info.figure import index_panel, memory_strip
from gpumagic.tensor_info.report import TensorReport
from tests.tensor_info import samples
from tests.tensor_info.samples import SAMPLES, tensor

TIMES = "\N{MULTIPLICATION SIGN}"
DRAWN = {
    name: report
    for name, report in SAMPLES
    if isinstance(report, TensorReport) and visible_tensor(report)
}


def strip(report, marks=None):
    """The strip's columns: what stands over each, and what in it."""
    ((matrix,),) = memory_strip(visible_tensor(report), marks).bands
    return matrix, list(
        zip(matrix.heads, (tile.text for tile in matrix.rows[0].tiles), strict=True)
    )


@pytest.mark.parametrize("name", DRAWN)
def test_strip_and_index_panel_agree_by_the_formula(name):
    """For every label of every sample, offset plus index times step is the place."""
    report = DRAWN[name]
    visible = visible_tensor(report)
    matrix, columns = strip(report)
    for head, text in columns:
        if not head:
            continue
        landing = visible.places.landing(int(head))
        if text == "·":
            assert landing is None
            continue
        assert text == visible.label(landing.index)
        steps = [axis.step for axis in visible.axes]
        reached = visible.offset + sum(map(int.__mul__, landing.index, steps))
        assert reached == int(head)
    assert len(matrix.heads) <= 128


@pytest.mark.parametrize("name", DRAWN)
def test_strip_accounts_for_every_place_of_the_storage(name):
    """Tiles, gaps and what is left out add up to the storage."""
    report = DRAWN[name]
    if not report.storage_bytes:
        return
    matrix, _ = strip(report)
    total = 0
    for head, tile in zip(matrix.heads, matrix.rows[0].tiles, strict=True):
        count = re.search(r"([\d,]+) el", tile.text)
        total += 1 if head else int(count[1].replace(",", ""))
    assert total == report.storage_bytes // report.itemsize


def test_marked_places_are_drawn_with_their_word():
    """What a failing view needs to show is seen, however far it lies."""
    matrix, columns = strip(samples.HUGE, {500_000: "next", 2**31: "expected"})

    words = {
        head: tile.text
        for (head, _), tile in zip(columns, matrix.rows[-1].tiles, strict=True)
    }
    assert words["500000"] == "next"
    assert "expected" not in words.values()


GEOMETRIES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(-6, 12)), min_size=0, max_size=4
)


@given(GEOMETRIES, st.integers(0, 9))
def test_places_match_enumeration(axes, offset):
    """Landings, neighbours and ends are those of all elements listed one by one."""
    sizes = tuple(size for size, _ in axes)
    steps = tuple(step for _, step in axes)
    places = Places(sizes, steps, offset, 4)
    lists = {}
    for index in itertools.product(*map(range, sizes)):
        reached = offset + sum(map(int.__mul__, index, steps))
        assert places.place(index) == reached
        lists.setdefault(reached, []).append(index)

    assert (places.first, places.last) == (min(lists), max(lists))
    for place in range(places.first - 2, places.last + 3):
        landing = places.landing(place)
        if place not in lists:
            assert landing is None
        elif not landing.at_least:
            assert landing.times == len(lists[place])
            assert landing.index in lists[place]
        if places.nested:
            above = [each for each in lists if each >= place]
            below = [each for each in lists if each <= place]
            assert places.next_used(place) == min(above, default=None)
            assert places.previous_used(place) == max(below, default=None)


def test_a_hopeless_search_stops():
    """Windows over windows are cut short and say "at least", or that it is open."""
    many = Places((50,) * 6, (1,) * 6, 0, 4)

    assert many.landing(120).at_least
    assert many.landing(120).times > 30
    undecided = Places((90,) * 4, (300, 298, 296, 294), 0, 4).landing(50_001)
    assert undecided.at_least
    assert undecided.times == 0


@pytest.mark.parametrize("name", DRAWN)
def test_picture_shows_what_the_text_shows(name):
    """Each text of each tile is in the SVG, and in the lines of characters."""
    visible = visible_tensor(DRAWN[name])
    grid = [index_panel(visible)] if len(visible.axes) < 4 else []
    for figure in (*grid, memory_strip(visible)):
        source = re.search(r"base64,([^\"]+)", figure.html())[1]
        picture = html.unescape(base64.b64decode(source).decode())
        plain = Drawing("", (figure,)).text(2000)
        for matrix in itertools.chain(*figure.bands):
            for text in (tile.text for row in matrix.rows for tile in row.tiles):
                assert text == "·" or not text or f">{text}<" in picture
                assert text in plain


@pytest.mark.parametrize("columns", range(10, 21))
def test_what_is_left_out_holds_an_element(columns):
    """Windows that touch are one; between two of them something is left out."""
    visible = visible_tensor(tensor((8, columns)))

    runs = windows(visible)

    places = [place for run in runs for place in run]
    assert places == sorted(set(places))
    for run, following in itertools.pairwise(runs):
        assert visible.places.next_used(run[-1] + 1) < following[0]
