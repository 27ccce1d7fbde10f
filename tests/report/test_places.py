"""The user's own line is found, with what it says."""

from __future__ import annotations

import linecache
import runpy
import sys
from pathlib import Path

import pytest

from gpumagic.devices.sync_watch import call_in_words
from gpumagic.report.places import CodeLine, Place, Places, code_line, runs_through

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


def test_a_caller_is_the_outermost_line_of_the_user():
    """It is told where a function of the user's stands between, and else is nothing."""

    def helper():
        return PLACES.here(), PLACES.caller()

    here, caller = helper()

    assert code_line(here).source == "return PLACES.here(), PLACES.caller()"
    assert code_line(caller).source == "here, caller = helper()"
    assert PLACES.caller() is None


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
        ("x[mask]", "indexing"),
        ("for each in x: pass", "an operation that waits"),
        ("functions[0](x)", "an operation that waits"),
        ("", "an operation that waits"),
        (None, "an operation that waits"),
    ],
)
def test_code_is_told_as_its_author_would(typed, words):
    """What was typed gives a short name, and never an error."""
    assert call_in_words(typed) == words


class Asked:
    """A value that notes what it is asked for, as a tensor on a device waits."""

    def __init__(self):
        self.seen = None

    def _note(self):
        frame = sys._getframe(2)
        place = Place(frame.f_code, frame.f_lasti)
        self.seen = call_in_words(place.expression)
        return True

    def __bool__(self):
        return self._note()

    def __format__(self, how):
        return str(self._note())

    def any(self):
        """A condition on several values."""
        return self

    def __getitem__(self, index):
        return self


@pytest.mark.parametrize(
    "code",
    [
        "if x: pass",
        "if x.any(): pass",
        "if not x: pass",
        "while x: break",
        "assert x",
        "y = x and 1",
        "y = 1 if x else 2",
        "y = [1 for _ in (1,) if x]",
    ],
)
def test_a_condition_is_told_as_one(tmp_path, code):
    """What is asked whether it is true waits as a condition, in every Python."""
    assert _told(tmp_path, code) == "a tensor as a condition"


@pytest.mark.parametrize(
    "code", ['f"{x}"', 'f"loss {x:.3f}"', "f'{x[0]:.{1 + 2}f}'", 'f"""{\nx}"""']
)
def test_a_value_in_a_text_is_told_as_one(tmp_path, code):
    """It is neither the braces nor what stands in them that waits."""
    assert _told(tmp_path, code) == "a tensor in a text"


def _told(folder, code):
    file = folder / "typed.py"
    file.write_text(f"{code}\n", encoding="utf-8")
    asked = Asked()
    runpy.run_path(str(file), {"x": asked})
    return asked.seen
