"""Failures that are expected: what is wrong, what was found, what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class GpuMagicError(Exception):
    """An expected failure, drawn as two lines instead of a traceback.

    `problem` is what is wrong and what was found; `hint` what to do or to type next.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The error as the user reads it: the problem, then the hint.

        What was typed stands in them, and would else move a terminal's cursor.
        """
        lines = [self.problem, f"  -> {self.hint}"] if self.hint else [self.problem]
        return [
            "".join(c if c.isprintable() or c == "\n" else "?" for c in line)
            for line in lines
        ]

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines in place of a traceback."""
        first, *rest = self.lines()
        return _wrapped([f"{type(self).__name__}: {first}", *rest])


def _wrapped(lines: list[str]) -> list[str]:
    """Lines that a terminal would break in mid-word, broken between words."""
    import shutil
    import sys
    import textwrap

    isatty = getattr(sys.stdout, "isatty", None)
    if isatty is None or not isatty():
        return lines
    wrapper = textwrap.TextWrapper(
        width=shutil.get_terminal_size().columns,
        subsequent_indent="     ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    rows = (row for line in lines for row in line.split("\n"))
    return [part for row in rows for part in wrapper.wrap(row) or [""]]


class UsageProblem(GpuMagicError):
    """The words after a magic or a command do not fit its options."""


class DeviceError(GpuMagicError):
    """A device is not there, or cannot do what was asked of it."""


class MissingPackage(GpuMagicError):
    """A package that this answer needs is not installed."""


def first_line(error: BaseException) -> str:
    """What an error says first, or its name if it says nothing."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)


def error_line(error: BaseException | None) -> str | None:
    """An error as one line, "ValueError: text"; None if there is none."""
    if error is None:
        return None
    text, name = first_line(error), type(error).__name__
    return name if text == name else f"{name}: {text}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence offering the nearest known word, or the empty string."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""
