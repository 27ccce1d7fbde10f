"""Loaders whose right answer is known, whatever else the machine is doing."""

from __future__ import annotations

import pytest

from tests.pin_loader.five_programs import PROGRAMS, report_of


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize(
    "name", ["waiting items", "fast items with workers", "doubled records"]
)
def test_it_is_judged_right(name):
    """Far more workers, none at all, and an error of the user's."""
    report = report_of(name)

    assert PROGRAMS[name].is_right(report), report.headline
