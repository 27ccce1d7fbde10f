"""The user's own line is found, with what it says."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest

from gpumagic.devices.wait_words import call_in_words
from gpumagic.observed import CodeLine
from gpumagic.places import Place, Places, code_line, runs_through

PLACES = Places()


def marked(*_, above=2):
    """The place of whoever calls this, which is a test."""
    return PLACES.here(above)


def test_a_place_has_its_line_and_its_expression():
    """A place says which line it is, and which part of it was being worked out."""
    value, mark = 1, marked()
    nested = [value, marked(value)]

    assert code_line(mark).source == "value, mark = 1, marked()"
    assert Place(*mark).expression == "marked()"
    assert Place(*nested[1]).expression == "marked(value)"


def test_an_expression_over_several_lines_is_whole():
    """What goes over several lines, with letters of two bytes, is cut exactly."""
    mark, _ = (
        marked(
            "äö",
        ),
        "ü",
    )

    assert Place(*mark).expression.startswith("marked(")
    assert Place(*mark).expression.endswith(")")
    assert "ü" not in Place(*mark).expression


def test_a_line_that_is_gone_has_no_source():
    """Code whose text nobody keeps has a place and no source."""
    space = {"marked": marked}
    exec(compile("\n\nmark = marked()", "gone.py", "exec"), space)  # noqa: S102
    linecache.checkcache()

    assert code_line(space["mark"]) == CodeLine("gone.py, line 3", None)
    assert Place(*space["mark"]).expression is None


def test_no_place_is_no_line():
    """Where no line of the user was found, there is none to tell."""
    assert code_line(None) is None


def test_a_folder_with_a_longer_name_is_not_a_library(tmp_path):
    """Beside a library `lib`, the code in `lib_of_mine` is the user's."""
    library, own = tmp_path / "lib", tmp_path / "lib_of_mine"
    places = Places((str(library),))

    assert places._judge(str(own / "train.py"))
    assert not places._judge(str(library / "torch.py"))


def test_a_file_under_way_is_found():
    """Whether a file's function is waiting is told by the file's name alone."""
    assert runs_through(Path(__file__).name)
    assert not runs_through("laces.py")
    assert not runs_through(Path(__file__).name, above=_depth())


def _depth():
    frame, depth = sys._getframe(1), 0
    while frame.f_code.co_filename == __file__:
        frame, depth = frame.f_back, depth + 1
    return depth + 1


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("loss.item()", ".item()"),
        ("x.sum().cpu()", ".cpu()"),
        ("torch.nonzero(mask)", "torch.nonzero()"),
        ("float(x)", "float()"),
        ("x > 0", "a tensor as a condition"),
        ("not x", "a tensor as a condition"),
        ("x and y", "a tensor as a condition"),
        ("1\n  if x else 2", "a tensor as a condition"),
        ("if x:\n        pass", "a tensor as a condition"),
        ("assert x", "a tensor as a condition"),
        ("x[mask]", "indexing"),
        ('f"{x}"', "a tensor in a text"),
        ("for each in x: pass", "an operation that waits"),
        ("functions[0](x)", "an operation that waits"),
        ("", "an operation that waits"),
        (None, "an operation that waits"),
    ],
)
def test_code_is_told_as_its_author_would(typed, words):
    """What was typed gives a short name, and never an error."""
    assert call_in_words(typed) == words
