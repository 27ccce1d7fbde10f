"""What running a program found, and what that says of the simulated GPU.

Nothing here runs anything or knows torch, so that it can be tested without either.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SAME = "same"
_FIGURE = re.compile(r"-?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_PROGRESS = re.compile(r"[^\n]*\r(?!\n)")  # a line that was written over
_BLANK = re.compile(r"[ \t]*#+[ \t]*\|?")  # what is left of figures that came or went


@dataclass(frozen=True)
class Outcome:
    """What one run of a program gave: numbers by name, and what it took."""

    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: float | None = None  # of the processor, not of the clock on the wall
    error: str | None = None
    printed: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Outcome:
        """What a child wrote as JSON."""
        return cls(**said)


def difference(
    found: Outcome, expected: Outcome, *, within: float, absolute: float = 2e-4
) -> str:
    """`same`, or in a sentence the first thing that is not as expected."""
    if expected.error is not None:
        return f"cannot be told: {expected.error}"
    if found.error is not None:
        return found.error
    if missing := sorted({*expected.numbers} - {*found.numbers}):
        return f"it has no {missing[0]}"
    for name, wanted in expected.numbers.items():
        got = found.numbers[name]
        if len(got) != len(wanted):
            return f"{name}: {len(got)} numbers instead of {len(wanted)}"
        for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
            if not _close(one, other, within, absolute):
                return f"{name}[{place}] is {one:.6g} instead of {other:.6g}"
    return SAME


def steady(first: Outcome, second: Outcome, *, within: float) -> Outcome:
    """The first run without the numbers that another run alike gives otherwise.

    A program that takes times of its own has numbers that are new in each run.
    """
    alike = {
        name: numbers
        for name, numbers in first.numbers.items()
        if difference(second, Outcome({name: numbers}), within=within) == SAME
    }
    return replace(first, numbers=alike)


def text_difference(found: str, expected: str) -> str:
    """`same`, or the first line that reads differently, whatever its figures are.

    Figures are compared where they are known as numbers; what is printed also has
    times, sizes and addresses, which are new in each run.
    """
    pairs = zip(_lines(found), _lines(expected), strict=False)
    for one, other in pairs:
        if one != other:
            return f"prints {one[:60]!r} instead of {other[:60]!r}"
    more = len(_lines(found)) - len(_lines(expected))
    return (
        SAME
        if more == 0
        else f"prints {abs(more)} lines {'more' if more > 0 else 'less'}"
    )


def time_ratio(found: Outcome, expected: Outcome) -> float | None:
    """How many times as long it took; unknown where either did not end."""
    if found.error or expected.error or not expected.seconds or not found.seconds:
        return None
    return found.seconds / expected.seconds


def worst(differences: Iterable[str]) -> str:
    """The first of these that is not `same`."""
    return next((each for each in differences if each != SAME), SAME)


def _close(one: float, other: float, within: float, absolute: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= absolute + within * abs(other)


def _lines(text: str) -> list[str]:
    plain = _ADDRESS.sub("#", _PROGRESS.sub("", text))
    plain = _BLANK.sub("#", _FIGURE.sub("#", plain))
    return [line.rstrip() for line in plain.splitlines() if line.strip()]
