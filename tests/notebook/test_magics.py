"""What every magic does with a report, and the names it may be kept under."""

from __future__ import annotations

import pytest

from gpumagic.drawing import Drawing, Note
from gpumagic.notebook.arguments import parts_asked_alone
from gpumagic.notebook.session import Session


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--show how", ("how",)),
        ("--show=copies,how ;", ("copies", "how")),
        ("--all", ()),
        ("--show how x", None),
        ("x --all", None),
        ("--show", None),
        ("", None),
    ],
)
def test_a_line_that_names_parts_alone_is_about_the_last_report(line, parts):
    """`--show how` alone asks for no new measurement; with anything else it does."""
    assert parts_asked_alone(line) == parts


def test_what_the_report_before_said_is_known_until_another_is_shown():
    """Notes are compared with those of the report before, also when shown again."""
    session = Session()
    first, second, third = (type("Seen", (), {})() for _ in range(3))
    clock, cold = (Note("note", word, word=word) for word in ("clock", "cold"))

    def left(report, *notes):
        return session.without_repetition(report, Drawing("", notes)).notes

    assert left(first, clock) == (clock,)
    assert left(second, clock, cold) == (cold,)
    assert left(second, clock, cold) == (cold,)
    assert left(third, cold) == ()
