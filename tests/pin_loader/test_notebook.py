"""What a line of options means, and which are refused before anything runs."""

from __future__ import annotations

import pytest

from gpumagic.errors import UsageProblem
from gpumagic.notebook import arguments
from gpumagic.pin_loader.magic import LoaderMagics
from gpumagic.pin_loader.notebook import options_of, watch_only


def options(line):
    """The options of a line as the magic reads them."""
    return arguments.parse(LoaderMagics.pin_loader.parser, "%pin_loader", line)


def request_of(line):
    """The request of a line."""
    return options_of(options(line))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dl --workers many", "--workers many is no number"),
        ("dl --workers -1", "--workers -1 is no number of workers"),
        ("dl --budget 0s", "a budget of no time"),
    ],
)
def test_what_makes_no_sense_is_refused(line, said):
    """Each wrong value is named, with what to say instead."""
    with pytest.raises(UsageProblem) as caught:
        request_of(line)

    assert said in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize("option", ["--workers 2", "--step f", "--force"])
def test_watching_takes_no_option_that_changes_a_loader(option):
    """In front of a cell such an option would be ignored, and is refused instead."""
    with pytest.raises(UsageProblem) as caught:
        watch_only(options(f"--watch {option}"))

    assert option.split()[0].strip("-") in caught.value.problem
