"""The session remembers what a cell has shown, and keeps no report alive for it."""

from __future__ import annotations

import itertools

from gpumagic.notebook.session import Session


class Shown:
    """Stands for a report."""


def test_a_dropped_report_hides_no_later_one():
    """A report that comes to lie where a dropped one lay is shown all the same."""
    session = Session()
    for _ in itertools.repeat(None, 1000):
        first = Shown()
        session.remember_shown(first, 3)
        place = id(first)
        del first
        second = Shown()
        if id(second) == place:
            break
    assert id(second) == place
    assert not session.was_shown(second, 3)
