"""The real converter: what it writes has all that the notebook shows."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.frontends.converting import COURSE, known, to_html
from tests.frontends.reading import read
from tests.frontends.rules import FrontEnd
from tests.frontends.stripping import stripped

pytest.importorskip("nbconvert")

_NOTHING = FrontEnd("nothing is dropped", frozenset())
_NAMES = ("samples", "tour", COURSE)

_NUMBER = re.compile(r"\d+")
_OTHERS = ("markdown", "script", "slides", "latex", "rst")
_NEED_PANDOC = ("latex", "rst")  # for the prose; not for what is shown


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", _NAMES)
def test_html_has_every_output_as_it_is(name, theme):
    """Each element, style and picture of ours is on the page, in either theme."""
    page = stripped(to_html(name, theme=theme), _NOTHING)
    lost = [
        output.name
        for output in known()[name][1]
        if stripped(output.html, _NOTHING) not in page
    ]
    assert lost == []


def test_sanitized_html_keeps_the_words():
    """`--sanitize-html` writes our tables as source, but no word is lost by that.

    Its list has neither `th` nor `caption` nor pictures; pandas fares the same.
    """
    page = read(to_html("samples", sanitize_html=True))
    # Places where a long name may break are source now, too.
    page.said = [page.text.replace("<wbr/>", "")]
    shown = (read(output.html).text for output in known()["samples"][1])
    assert page.lacks(" ".join(shown)) == set()
    assert page.pictures == 0


@pytest.mark.parametrize("exporter", _OTHERS)
def test_other_formats_come_out(exporter):
    """None of them stumbles over an output of ours."""
    from nbconvert import get_exporter

    if exporter in _NEED_PANDOC and shutil.which("pandoc") is None:
        pytest.skip("no pandoc on the PATH")
    written, _ = get_exporter(exporter)().from_notebook_node(known()[COURSE][0])
    assert len(written) > 1_000
    if exporter == "markdown":
        assert all(each.html.splitlines()[0] in written for each in known()[COURSE][1])


def test_latex_takes_the_text():
    """Where only plain text can be set, each number of a report is in it."""
    from nbconvert import LatexExporter

    written, _ = LatexExporter().from_notebook_node(known()["samples"][0])
    told = " ".join(each.text for each in known()["samples"][1])
    assert set(_NUMBER.findall(told)) <= set(_NUMBER.findall(written))
