"""The HTML of a drawing: what survives, what it says, what can be read."""

from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings

from gpumagic.drawing import Meter, Stack, Stacks
from gpumagic.drawing.html import escape, sentences, unbroken, words
from gpumagic.drawing.palette import MEANINGS, contrast
from tests.drawing.drawings import DRAWINGS
from tests.drawing.survives import assert_numbers_agree, assert_survives
from tests.gallery.samples import LONG, PARTS, everything

SAMPLES = dict(PARTS)
# A kind's colour and name, up to where it is explained.
LEGEND = re.compile(r'<img alt="([\w, ]+)" [^>]*>\xa0([^,<&]+)')
patient = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)


@patient
@given(drawing=DRAWINGS)
def test_any_content_survives_and_says_no_number_that_the_text_does_not(drawing):
    """Hostile names stay names, and both forms tell the same."""
    html = drawing.html()

    assert_survives(html)
    assert_numbers_agree(drawing)
    html.encode()


@patient
@given(drawing=DRAWINGS)
def test_any_picture_is_well_formed(drawing):
    """An image that cannot be parsed would be shown as broken."""
    for svg in pictures(drawing.html()):
        ET.fromstring(svg)  # noqa: S314  # made by ourselves, a line above


def pictures(html):
    """The SVG documents in some HTML."""
    data = re.findall(r"data:image/svg\+xml;base64,([^\"]*)", html)
    return [base64.b64decode(each).decode() for each in data]


def test_very_long_words_may_break():
    """A name of two hundred characters does not push numbers out of sight."""
    assert "<wbr/>" in words(LONG)
    assert words(LONG).replace("<wbr/>", "") == escape(LONG)
    assert "<wbr/>" in unbroken(LONG)
    assert "<wbr/>" not in words("layer.0.weight")
    whole = '<span style="white-space:nowrap">--step</span>'
    assert words("type --step FN") == f"type {whole} FN"


def test_bar_gives_way_before_the_number_beside_it():
    """No bar asks for a width that its cell could not go below."""
    stacks = Stacks("", (Stack("a", (("x", 1.0),), "1 B"),), (("x", ""),))
    for part in (stacks, Meter(0.5, "1 B")):
        html = part.html()

        assert "grid-template-columns:minmax(0," in html
        assert not re.search(r"[^-]width:[\d.]+em", html)


def legend_of(html):
    """Each colour of a legend, and the kind that it stands for."""
    return LEGEND.findall(html.replace("</span>", ""))


def test_a_kind_has_one_colour_in_all_views():
    """Who has learned how cached memory is drawn finds it drawn so everywhere."""
    colours = {}
    for _, drawing in everything():
        for colour, kind in legend_of(drawing.html()):
            colours.setdefault(kind, set()).add(colour)

    meant = colours.keys() & MEANINGS.keys()
    assert {"cached", "copy", "kernel"} <= meant
    assert [kind for kind in meant if colours[kind] != {MEANINGS[kind].name}] == []


def test_meter_is_empty_only_when_nothing_and_full_only_when_all_is_used():
    """Rounding never says "none" or "all"; what is out of range is held."""
    ends = {-1.0: "0.0%", 1e-9: "1.0%", 0.5: "50.0%", 0.9999: "99.0%", 7.0: "100.0%"}
    ends |= {math.nan: "0.0%"}

    for share, end in ends.items():
        assert f"#0072B2 {end}" in Meter(share, "").html()


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_readable_wherever_a_colour_is_set(name):
    """Text has its colour from the theme, or from a pair with enough contrast."""
    for style in re.findall(r'style="([^"]*)"', SAMPLES[name].html()):
        its = dict(each.split(":", 1) for each in style.split(";"))
        if "background" in its and "color" in its:
            assert contrast(its["background"], its["color"]) >= 4.5
        elif "color" in its:
            backgrounds = ("#ffffff", "#111111")
            assert all(contrast(its["color"], each) >= 3 for each in backgrounds)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a ` b ` c``", "a ` b ` c``"),
        ("`a` and `b", "<code>a</code> and `b"),
        ("(`<b> c`), c", "(<code>&lt;b&gt; c</code>), c"),
    ],
)
def test_only_pairs_of_backticks_are_code(text, html):
    """A backtick of somebody else's message is shown as it is, blanks included."""
    assert sentences(text) == html
