"""Whose a failure of PyTorch's own tests is: ours, beyond a simulator, the test's.

`KNOWN` is a visible list, one line an entry: which tests, whose, and why. A failure
that is not on it is ours. Where no test of an entry fails, it is out of date.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PASSED, SKIPPED = "passed", "skipped"
OURS, BEYOND, THE_TESTS = "ours", "beyond a simulator", "the test's own"


class Known(NamedTuple):
    """Tests that fail for a reason that has been looked at."""

    tests: str  # file.Class.test, with * for any part
    whose: str
    why: str


KNOWN: tuple[Known, ...] = ()


def verdict(test: str, outcome: str, known: Sequence[Known] = KNOWN) -> str:
    """What a test says of the simulated GPU, in a word or two."""
    if outcome in {PASSED, SKIPPED}:
        return outcome
    entry = entry_of(test, known)
    return entry.whose if entry else OURS


def entry_of(test: str, known: Sequence[Known] = KNOWN) -> Known | None:
    """The first entry that a test is meant by."""
    return next((each for each in known if fnmatch.fnmatch(test, each.tests)), None)


def counted(
    outcomes: Mapping[str, str], known: Sequence[Known] = KNOWN
) -> dict[str, int]:
    """How many tests have which verdict."""
    words = (PASSED, SKIPPED, BEYOND, THE_TESTS, OURS)
    found = [verdict(test, outcome, known) for test, outcome in outcomes.items()]
    return {word: found.count(word) for word in words}


def out_of_date(
    outcomes: Mapping[str, str], known: Sequence[Known] = KNOWN
) -> Iterable[Known]:
    """Entries for which no test fails any more."""
    failed = [
        test for test, outcome in outcomes.items() if outcome not in {PASSED, SKIPPED}
    ]
    meant = {entry_of(test, known) for test in failed}
    return [each for each in known if each not in meant]
