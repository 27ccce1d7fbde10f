"""An expected failure is two lines: what is wrong, and what to type next."""

from __future__ import annotations

import copy
import pickle

import pytest

from gpumagic.errors import DeviceError, GpuMagicError, did_you_mean, error_line


def test_an_error_is_its_two_lines():
    """In a shell and in a script the same two lines are read."""
    error = DeviceError("there is no cuda:3", "type cuda:0")
    assert str(error) == "there is no cuda:3\n  -> type cuda:0"
    assert error._render_traceback_() == [
        "DeviceError: there is no cuda:3",
        "  -> type cuda:0",
    ]


def test_an_error_without_a_hint_is_one_line():
    """Nothing to type means no arrow."""
    assert str(GpuMagicError("no")) == "no"


def test_an_error_survives_a_process_border():
    """Errors from worker processes arrive whole."""
    error = GpuMagicError("a", "b")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert (twin.problem, twin.hint) == ("a", "b")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, None),
        (ValueError("no good"), "ValueError: no good"),
        (ValueError("\nfirst\nsecond"), "ValueError: first"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GpuMagicError("wrong", "do this"), "GpuMagicError: wrong"),
    ],
)
def test_an_error_is_one_line(error, line):
    """Its name and what it says first."""
    assert error_line(error) == line


def test_the_nearest_word_is_offered_and_a_far_one_is_not():
    """A guess is only made where it is likely."""
    assert did_you_mean("doctr", ["doctor", "demo"]) == "did you mean doctor?"
    assert did_you_mean("xyzzy", ["doctor", "demo"]) == ""


def test_a_narrow_terminal_breaks_lines_between_words(monkeypatch):
    """Nothing is torn: words and options stay whole, the rest is indented."""
    error = GpuMagicError(
        "there is no GPU 7: there are 2", "choose with --dry-run first"
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "22")

    assert error._render_traceback_() == [
        "GpuMagicError: there",
        "     is no GPU 7:",
        "     there are 2",
        "  -> choose with",
        "     --dry-run first",
    ]


def test_what_was_typed_does_not_reach_the_terminal_as_commands():
    """An escape sequence in a word that is told back is shown as what it is."""
    error = GpuMagicError("there is no \x1b[2Jx\r", "type \x07y")
    assert str(error) == "there is no ?[2Jx?\n  -> type ?y"
