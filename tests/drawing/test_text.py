"""The text of a drawing, in notebooks and in terminals."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gpumagic.drawing import (
    Column,
    Drawing,
    Grid,
    Table,
)
from tests.drawing.drawings import DRAWINGS
from tests.gallery.samples import PARTS

SAMPLES = dict(PARTS)
UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ud800-\udfff]"
)

any_drawing = given(drawing=DRAWINGS, width=st.sampled_from((30, 60, 88)))
patient = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)


def terminal(encoding="utf-8", **options):
    """A console with a terminal's manners that writes to memory."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    defaults = {"width": 70, "force_terminal": True, "color_system": "standard"}
    return Console(file=file, legacy_windows=False, **(defaults | options))


@patient
@any_drawing
def test_any_content_is_drawn_within_the_width_and_without_escapes(drawing, width):
    """Whatever names and numbers there are, the text is plain, whole and narrow."""
    text = drawing.text(width)

    assert not UNSAFE.search(text)
    assert all(cell_len(line) <= width for line in text.split("\n"))
    assert all(line == line.rstrip(" ") for line in text.split("\n"))


@patient
@given(drawing=DRAWINGS)
def test_any_content_is_drawn_in_ascii_where_the_console_has_no_more(drawing):
    """A terminal with a C locale gets question marks, never an encoding error."""
    shown = drawing.terminal(terminal("ascii", color_system=None))

    assert shown.isascii()


@pytest.mark.parametrize("name", SAMPLES)
def test_text_does_not_depend_on_the_surroundings(name, monkeypatch):
    """The text form of a report is the same wherever it is made."""
    before = SAMPLES[name].text()

    monkeypatch.setenv("COLUMNS", "31")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")

    assert SAMPLES[name].text() == before


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"]
)
def test_terminal_without_colour_gets_no_escapes_at_all(variables):
    """NO_COLOR and TERM=dumb leave no escape, not even for bold."""
    assert "\x1b[1;31m" in SAMPLES["notes"].terminal(terminal())
    options = {"color_system": "auto"} if "TERM" in variables else {}

    shown = SAMPLES["whole"].terminal(terminal(_environ=variables, **options))

    assert "\x1b" not in shown
    assert "118 times" in shown


def test_terminal_without_colour_shows_the_text_of_that_width():
    """A terminal and a notebook's text differ by colour and width only."""
    console = terminal(color_system=None, width=60)

    for drawing in SAMPLES.values():
        assert drawing.terminal(console) == drawing.text(60)


def test_narrow_table_becomes_one_grid_for_each_row():
    """No number is broken or cut: columns that do not fit go under each other."""
    text = SAMPLES["table"].text(30)

    assert "  power" in text.lower()
    assert "310 W" in text
    columns = (Column("name"), Column("what it is"), Column("size", number=True))
    rows = (("a name of many words " * 3, "float32 " * 5, "1,234,567,890 B"),)
    table = Drawing("T.", (Table("C", columns, rows),))
    assert all("1,234,567,890 B" in table.text(width) for width in range(32, 100, 4))


def test_label_stands_beside_the_title_or_below_it():
    """Where numbers are not real, the first lines say so."""
    drawing = Drawing("The answer.", (), "simulated H100 SXM")

    assert drawing.text() == "The answer.  [simulated H100 SXM]"
    assert drawing.text(25) == "The answer.\n[simulated H100 SXM]"


def test_row_with_too_few_cells_is_refused():
    """A view that forgets a cell fails in its own test, not as a crooked table."""
    with pytest.raises(ValueError, match="one cell for each column"):
        Table("Crooked", (Column("a"), Column("b")), (("only one",),))


def test_grid_too_narrow_for_two_columns_puts_values_below():
    """Nothing is lost where not even one word fits beside another."""
    grid = Grid("", (("a_name_of_twenty_one", "a_value_of_twenty_two_"),))

    lines = Drawing("T.", (grid,)).text(28).split("\n")

    assert lines[2:] == ["  a_name_of_twenty_one", "    a_value_of_twenty_two_"]


FRESH = """
import random
import sys

random.seed(0)
from gpumagic import drawing
from gpumagic.drawing import Column, Drawing, Table

Drawing("A report", (Table("Of rows", (Column("Name"),), (("one",),)),)).html()
drawn = random.random()
random.seed(0)
assert drawn == random.random()
there = set(sys.modules)
assert all(hasattr(drawing, name) for name in drawing.__all__)
print(*sorted(name for name in sys.modules if name not in there))
"""


def test_a_report_leaves_random_numbers_and_imports_only_the_pictures_it_draws():
    """What is seeded stays so; a table brings no timeline, which is there if asked."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], check=True, capture_output=True
    )
    later = done.stdout.decode().split()

    for picture in ("curves", "spans", "timeline", "tree", "progress"):
        assert f"gpumagic.drawing.{picture}" in later
