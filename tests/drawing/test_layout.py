"""Small pieces of layout, by their properties."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import gpumagic.drawing
from gpumagic.drawing.ink import _shown, clean, fit, side_by_side

WIDTHS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8
)
MODULES = [each.name for each in pkgutil.iter_modules(gpumagic.drawing.__path__)]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module):
    """What a docstring shows is what happens."""
    found = doctest.testmod(importlib.import_module(f"gpumagic.drawing.{module}"))

    assert not found.failed


@given(st.text())
def test_what_is_clean_is_looked_at_as_a_whole(text):
    """As if each of its characters were looked at; once is enough."""
    once = clean(text)

    assert once == " ".join("".join(map(_shown, text)).split())
    assert clean(once) == once


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
