"""What is folded can be asked for in real shells, and what was said is not repeated."""

from __future__ import annotations

import pytest

from tests.notebook.noting.report import CLOCK
from tests.notebook.shells import see_in_kernel, see_in_terminal

LOADED = ["%load_ext gpumagic", "%load_ext tests.notebook.noting.report"]
AS_BEFORE = "As before: the clock."
COMPLETE = """
from IPython.core.completer import provisionalcompleter
def offered(line):
    with provisionalcompleter():
        found = get_ipython().Completer.completions(line, len(line))
        words = {line[: each.start] + each.text for each in found}
    # IPython 7 puts its own guesses beside ours.
    return sorted(word for word in words if word.endswith(("copies", "how")))
"""

in_both_shells = pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])


def text_of(seen):
    """What one cell has displayed, or has shown as its value."""
    texts = [each["text/plain"] for each in seen.shown]
    return "\n".join((*texts, seen.result or ""))


@in_both_shells
def test_a_part_is_shown_where_it_is_asked_for(see):
    """In line form, above a cell, and of the last report without a new look."""
    cells = [
        "%noting",
        "%noting --show copies",
        "%noting --show copies,how;",
        "%%noting --show copies\nvalue = 6 * 7\nvalue",
        "%noting --all",
        "value",
    ]
    *looks, value = see([*LOADED, *cells])[len(LOADED) :]
    plain, alone, two, above, whole = map(text_of, looks)

    assert "copied" not in plain
    assert "copies, how" in plain
    assert "Look 1" in alone
    assert "copied 1" in alone
    assert ("copied 1" in two, "by counting" in two) == (True, True)
    assert ("copied 2" in above, "42" in above, "by counting" in above) == (
        True,
        True,
        False,
    )
    assert ("copied 2" in whole, "by counting" in whole) == (True, True)
    assert value.result == "42"


@in_both_shells
def test_a_note_is_said_once_in_a_row(see):
    """The next report says only its word; the same report says what it said."""
    cells = ["first = %noting -o", "%noting", "%noting --show how", "first", "%noting"]
    first, second, part, again, third = map(
        text_of, see([*LOADED, *cells])[len(LOADED) :]
    )

    assert (CLOCK in first, AS_BEFORE in first) == (True, False)
    assert (CLOCK in second, AS_BEFORE in second) == (False, True)
    assert (CLOCK in part, "by counting" in part) == (False, True)
    assert "Look 1" in again
    assert AS_BEFORE in third


@in_both_shells
def test_a_part_that_is_not_there_is_told_with_those_that_are(see):
    """Of the last report in two lines; of a new one as a note beside the answer."""
    cells = [
        "%noting",
        "%noting --show copeis",
        "%%noting --show copeis\n1",
        "%gpu_doctor --show nothing",
    ]
    _, alone, above, looked = see([*LOADED, *cells])[len(LOADED) :]

    assert alone.status == "error"
    assert "this report has no part 'copeis'" in alone.traceback
    assert "its parts: copies, how" in alone.traceback
    assert above.status == "ok"
    for seen, there in ((above, "copies, how"), (looked, "fine")):
        assert "no part" in text_of(seen)
        assert there in text_of(seen)


@in_both_shells
def test_tab_offers_the_parts_of_the_last_report(see):
    """Behind `--show`, and behind the commas in it; nothing before a first report."""
    cells = [
        COMPLETE,
        "offered('%noting --show ')",
        "%noting -q",
        "offered('%noting --show ')",
        "offered('%noting --show=c')",
        "offered('%noting --show copies,')",
    ]
    _, before, _, after, attached, second = see([*LOADED, *cells])[len(LOADED) :]

    assert "copies" not in before.result
    assert after.result == "['%noting --show copies', '%noting --show how']"
    assert attached.result == "['%noting --show=copies']"
    assert second.result == "['%noting --show copies,how']"
