"""Every output under the rules of every front end: nothing that is said is lost."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.frontends import rules
from tests.frontends.outputs import outputs
from tests.frontends.reading import read
from tests.frontends.stripping import stripped

_NOTHING = rules.FrontEnd("nothing is dropped", frozenset())
_WITH_HTML = [each for each in rules.FRONT_ENDS if each.shows_html]

# Where a terminal can ask for what HTML can open.
_TREE = "The whole tree"  # in HTML the one in sight opens
# Digits in place of colours, and what the ends of their scale are.
_HEAT = re.compile(r"^ +[-+\d .x^v·]{8,}$|-9 is .*, \+9 is ", re.MULTILINE)
# Letters in place of layers, as high as they are; the table names each letter.
_AREAS = re.compile(r"(?<!\S)[A-L=+]*([A-L=+])\1[A-L=+]*(?!\S)")
# A terminal has less room for pieces than a picture.
_TOO_FINE = re.compile(
    r"where\s+\w+\s+are\s+too\s+fine\s+to\s+draw\s+one\s+by\s+one,\s+"
    r"the\s+height\s+is\s+their\s+share"
)
_PICTURE = re.compile(r"<img[^>]*>")
_MORE = re.compile(r"More, by --show or report\.show\(\):.*", re.DOTALL)
_SIGNS_OF_LETTERS = "~: the element to the left goes on"


@cache
def _written(output):
    return read(output.html)


@cache
def _read_once(markup):
    return read(markup)


@cache
def _with_nothing_dropped():
    return [stripped(each.html, _NOTHING) for each in outputs()]


@pytest.fixture(scope="module", params=_WITH_HTML, ids=lambda each: each.name)
def front_end(request):
    """Each front end that shows HTML."""
    return request.param


@pytest.fixture(scope="module")
def left(front_end):
    """What it leaves of each output."""
    return [stripped(each.html, front_end) for each in outputs()]


def test_what_is_looked_at_is_not_nothing():
    """The gallery and the course are in it, with pictures."""
    assert len(outputs()) > 200
    assert sum(_written(each).pictures for each in outputs()) > 300


def test_html_says_what_the_text_says():
    """Each word and number of the text form is in the HTML, or in a picture of it."""
    lost = {
        output.name: found
        for output in outputs()
        if (found := _written(output).lacks(_for_both(output), also=_drawn(output)))
    }
    assert lost == {}


def _for_both(output):
    text = _TOO_FINE.sub("", output.text)
    text = _AREAS.sub("", _HEAT.sub("", _MORE.sub("", text)))
    return text.replace(_SIGNS_OF_LETTERS, "").replace(_TREE, "")


def test_front_ends_that_keep_styles_find_nothing_to_drop(front_end, left):
    """JupyterLab, VS Code and Colab show our HTML as it was written."""
    every = zip(outputs(), left, _with_nothing_dropped(), strict=True)
    changed = [each.name for each, seen, whole in every if seen != whole]
    assert changed == [] or not front_end.keeps_styles


def test_the_same_is_said_in_the_same_tables(front_end, left):
    """What it leaves has each word in its order and each cell in its row.

    A picture is kept where pictures are, and always has words beside it.
    """
    for output, markup in zip(outputs(), left, strict=True):
        before, after = _written(output), _read_once(markup)
        kept = before.pictures if front_end.keeps_pictures else 0
        assert (after.text, after.tables) == (before.text, before.tables), output.name
        assert (after.pictures, after.bare) == (kept, 0), output.name
        assert after.faults == [], output.name


def test_text_alone_has_all_that_is_in_sight():
    """Where no HTML is shown, the text has the headline and each number in sight."""
    for output in outputs():
        without_pictures = _PICTURE.sub("", output.in_sight)
        shown = read(stripped(without_pictures, rules.GITHUB))
        told = read("")
        told.said.append(output.text)
        numbers = {word for word in told.lacks(shown.text) if word.isdigit()}
        assert numbers == set(), output.name


@pytest.mark.parametrize(
    ("front_end", "markup", "left"),
    [
        (rules.JUPYTERLAB, "<svg><text>a</text></svg>", "<text>a</text>"),
        (rules.JUPYTERLAB, '<p aria-label="x" title="y">', '<p title="y">'),
        (rules.JUPYTERLAB, '<p style="color:var(--x);width:1px">', None),
        (rules.VS_CODE, '<p style="color:var(--jp-x);width:1px">', None),
        (rules.GITHUB, '<p style="width:1px" id="a" align="right">', None),
        (rules.GITHUB, "<p hidden>a</p><script>b</script>", "<p>a</p>"),
        (rules.MARKDOWN, '<img alt="a" src="data:x">', '<img alt="a">'),
    ],
)
def test_rules_are_applied(front_end, markup, left):
    """The checks above see what a front end would leave."""
    style = {rules.GITHUB: '<p align="right">'}.get(front_end, '<p style="width:1px">')
    assert stripped(markup, front_end) == (left or style)


def _drawn(output):
    return " ".join(_written(output).drawn)
