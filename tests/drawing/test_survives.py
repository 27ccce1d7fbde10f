"""The checker itself: it must go red on what front ends drop."""

from __future__ import annotations

import pytest

from gpumagic.drawing import Drawing, Paragraph
from tests.drawing.survives import assert_numbers_agree, assert_survives


@pytest.mark.parametrize(
    "html",
    [
        "<svg></svg>",
        "<script>1</script>",
        '<p id="x">a</p>',
        '<p onclick="x()">a</p>',
        '<p style="color:var(--jp-ui-font-color1)">a</p>',
        '<p style="transform:none">a</p>',
        '<p style="background:url(https://example.org)">a</p>',
        '<img alt="a" src="https://example.org/a.png">',
        '<img src="data:image/png;base64,AAAA">',
        "<p>never closed",
        "<td>a</p></td>",
    ],
)
def test_what_front_ends_drop_is_refused(html):
    """Each kind of markup that does not survive is found."""
    with pytest.raises(AssertionError):
        assert_survives(html)


def test_what_front_ends_keep_is_accepted():
    """Tables, gradients and pictures in the document itself pass."""
    assert_survives(
        '<table style="width:auto"><tr><th scope="row">a</th><td align="right"><span'
        ' style="background:linear-gradient(90deg,#0072B2 42.0%,rgba(127,127,127,.22)'
        ' 42.0%)"></span><img alt="a" src="data:image/svg+xml;base64,AAAA"/></td></tr>'
        "</table>"
    )


class _Liar(Paragraph):
    """A part whose HTML has a number of its own."""

    def html(self):
        return "<p>13 GiB</p>"


def test_number_that_only_the_html_knows_is_found():
    """The two forms may not tell different stories."""
    with pytest.raises(AssertionError, match="13"):
        assert_numbers_agree(Drawing("Title.", (_Liar("12 GiB"),)))


class _Cutter(Paragraph):
    """A part that drops what does not fit."""

    def __rich_console__(self, console, options):
        yield self.text[: options.max_width]


def test_letter_that_is_lost_at_the_usual_width_is_found():
    """Text is wrapped, never cut."""
    with pytest.raises(AssertionError, match="lost at 88"):
        assert_numbers_agree(Drawing("Title.", (_Cutter("a" * 100),)))
