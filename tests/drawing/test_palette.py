"""Colours that can be read and told apart, on white and on black."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpumagic.drawing.palette import (
    BEFORE,
    FILLS,
    GREY,
    LAYERS,
    MEANINGS,
    SPARE,
    TOGETHER,
    TONES,
    TRACK,
    contrast,
    text_on,
)
from tests.drawing.eyes import EYES, apart

BACKGROUNDS = ("#ffffff", "#111111")
KINDS = {**MEANINGS, **{each.name: each for each in SPARE}}
DRAWN = {kind: its for kind, its in KINDS.items() if its.fill != TRACK}
TIMES = (
    *("host code", "launch", "host waits", "kernel", "copy", "communication"),
    "waits for others",
)
MEMORY = ("in use", "cached", "others", "free")
# Two colours side by side, in steps of which 2.3 can just be seen; by lightness alone
# fewer do, as nothing else is there to compare.
LEAST_APART = {eyes: 6.5 if eyes == "grey" else 20.0 for eyes in EYES}


def test_tones_differ_in_mark_as_well():
    """Nobody needs to see colour."""
    for marks in (
        {look.mark for look in TONES.values()},
        {look.ascii_mark for look in TONES.values()},
    ):
        assert len(marks) == len(TONES)
        assert all(len(mark) == 1 for mark in marks)


def test_fill_that_stands_alone_is_seen_on_both_themes():
    """Bars and spans have a contrast of at least 3:1, and what is on fills 4.5:1."""
    layers = (*LAYERS, BEFORE, TOGETHER)
    alone = [*FILLS, GREY, *(each.fill for each in (*DRAWN.values(), *layers))]

    for fill in alone:
        assert min(contrast(fill, ground) for ground in BACKGROUNDS) >= 3
    for fill in (*alone, *(look.fill for look in TONES.values())):
        assert contrast(fill, text_on(fill)) >= 4.5
    for family in (KINDS.values(), layers):
        assert len({each.name for each in family}) == len(family)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("family", [DRAWN.values(), (*LAYERS, BEFORE, TOGETHER)])
def test_kinds_are_told_apart_by_whoever_looks(family, eyes):
    """Each two differ in pattern, or in colour as it is seen: in grey by lightness."""
    alike = [
        (one.name, other.name)
        for one, other in combinations(family, 2)
        if one.pattern == other.pattern
        and apart(one.fill, other.fill, eyes) < LEAST_APART[eyes]
    ]

    assert alike == []


@pytest.mark.parametrize("marks", ["mark", "ascii_mark"])
@pytest.mark.parametrize(
    "family", [(*TIMES, "perhaps busy"), (*MEMORY, "perhaps busy")]
)
def test_kinds_of_one_picture_have_a_character_each(family, marks):
    """In plain text, what may stand side by side is told apart, also what is left."""
    its = [getattr(each, marks) for each in (*map(MEANINGS.get, family), *SPARE)]

    assert len(set(its)) == len(its)
    assert all(len(mark) == 1 for mark in its)


def test_eyes_are_those_that_were_measured():
    """Red and green of one lightness are one colour to who lacks one of two cones."""
    assert apart("#BE5E5E", "#7E7E5E", "normal") > 30
    assert apart("#BE5E5E", "#7E7E5E", "deuteranopia") < 15
    assert apart("#777777", "#777777", "tritanopia") == 0
