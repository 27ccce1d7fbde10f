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
from gpumagic.tensor_info.axes import Visible, visible_tensor
from gpumagic.tensor_info.figure import index_panel, memory_strip
from gpumagic.tensor_info.report import TensorReport
from tests.tensor_info import samples
from tests.tensor_info.samples import SAMPLES, tensor

DRAWN = {
    name: report
    for name, report in SAMPLES
    if isinstance(report, TensorReport) and visible_tensor(report)
}


@pytest.mark.parametrize("name", DRAWN)
def test_strip_has_every_index_at_its_place_and_accounts_for_the_storage(name):
    """By the formula; tiles, gaps and what is left out add up to the storage."""
    report = DRAWN[name]
    visible = visible_tensor(report)
    figure = memory_strip(visible)
    total = 0
    for head, tile in zip(figure.heads, figure.rows[0].tiles, strict=True):
        count = re.search(r"([\d,]+) el", tile.text)
        total += 1 if head else int(count[1].replace(",", ""))
        landing = visible.landing(int(head)) if head else None
        assert (landing is None) is (not head or tile.text == "·")
        if landing is not None:
            assert tile.text == visible.label(landing.indices)
            assert visible.place(landing.indices) == int(head)
    assert len(figure.heads) <= 128
    assert total == report.storage_bytes // report.itemsize


def test_marked_places_are_drawn_with_their_word():
    """What a failing view needs to show is seen, however far it lies."""
    marks = {500_000: "next", 2**31: "expected"}
    figure = memory_strip(visible_tensor(samples.HUGE), marks)

    words = [tile.text for tile in figure.rows[-1].tiles]
    assert words[figure.heads.index("500000")] == "next"
    assert "expected" not in words


GEOMETRIES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(-6, 12)), min_size=0, max_size=4
)


@given(GEOMETRIES, st.integers(0, 9))
def test_places_match_enumeration(axes, offset):
    """Landings in their order are those of all elements listed one by one."""
    sizes = tuple(size for size, _ in axes)
    steps = tuple(step for _, step in axes)
    visible = Visible(sizes, steps, offset, 4)
    lists = {}
    for index in itertools.product(*map(range, sizes)):
        lists.setdefault(visible.place(index), []).append(index)

    assert (visible.first, visible.last) == (min(lists), max(lists))
    found = [visible.nth(number) for number in range(visible.count)]
    assert [each.place for each in found] == sorted(lists)
    for place in range(visible.first - 2, visible.last + 3):
        landing = visible.landing(place)
        assert (landing is None) is (place not in lists)
        if landing is not None:
            assert landing.times == len(lists[place])
            assert landing.indices in lists[place]
        below = sum(each <= place for each in lists)
        assert visible.number_of(place) == below - 1 or place < visible.first


@given(GEOMETRIES, st.lists(st.integers(-9, 99), max_size=3))
def test_runs_are_in_order_and_something_lies_between_two(axes, around):
    """From the first to the last place, none twice; runs that touch are one."""
    sizes, steps = (tuple(axis[at] * 3 for axis in axes) for at in (0, 1))
    visible = Visible(sizes, steps, 0, 4)
    if not visible.is_in_order:
        return
    runs = visible.windows(around)

    assert (runs[0].start, runs[-1].stop) == (0, visible.count)
    assert all(map(len, runs))
    assert all(one.stop < other.start for one, other in itertools.pairwise(runs))


def test_what_would_take_long_to_list_has_no_strip():
    """Windows over windows: what lies where is not searched for."""
    report = tensor((50,) * 3, (1,) * 3)

    assert not visible_tensor(report).is_in_order
    assert "memory" not in report.parts


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
