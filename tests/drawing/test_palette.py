"""Colours that can be read and told apart, on white and on black."""

from __future__ import annotations

import pytest

from gpumagic.drawing import palette
from gpumagic.drawing.lanes import KIND_FILLS
from gpumagic.drawing.palette import TONES, contrast, text_on

BACKGROUNDS = ("#ffffff", "#111111")


@pytest.mark.parametrize("tone", TONES)
def test_badge_text_is_readable(tone):
    """Every tone's word has a contrast of at least 4.5:1."""
    fill = TONES[tone].fill

    assert contrast(fill, text_on(fill)) >= 4.5


def test_tones_differ_in_mark_as_well():
    """Nobody needs to see colour."""
    for marks in (
        {look.mark for look in TONES.values()},
        {look.ascii_mark for look in TONES.values()},
    ):
        assert len(marks) == len(TONES)
        assert all(len(mark) == 1 for mark in marks)


@pytest.mark.parametrize("fill", KIND_FILLS)
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_fill_that_stands_alone_is_seen_on_both_themes(fill, background):
    """Bars and spans have a contrast of at least 3:1, and labels on them 4.5:1."""
    assert contrast(fill, background) >= 3
    assert contrast(fill, text_on(fill)) >= 4.5


@pytest.mark.parametrize(
    "colour",
    [palette.ORANGE, palette.SKY_BLUE, palette.YELLOW, palette.BLACK],
)
def test_other_colours_would_vanish_on_one_theme(colour):
    """The reason why only four of the eight are fills."""
    assert min(contrast(colour, each) for each in BACKGROUNDS) < 3


def test_contrast_is_that_of_wcag():
    """Known pairs have their published ratios."""
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#123456", "#123456") == 1
