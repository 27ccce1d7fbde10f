"""Bars in pieces: to a scale at which something is seen, which is said."""

from __future__ import annotations

import pytest

from gpumagic.drawing import Drawing, Stack, Stacks
from gpumagic.report.units import bytes_text

MIB, GIB = 2**20, 2**30


def stacks(*rows, text_of=bytes_text):
    """Bars of memory that is in use or free."""
    return Stacks(
        "Memory",
        tuple(
            Stack("cuda:0", (("in use", used), ("free", free)), bytes_text(used))
            for used, free in rows
        ),
        (("in use", ""), ("free", "")),
        text_of,
    )


def lines_of(part, width=60):
    """Its text, without what stands at the ends of lines."""
    return [line.strip() for line in Drawing("T", (part,)).text(width).splitlines()][2:]


def test_a_bar_of_little_use_is_drawn_to_a_scale_of_its_own():
    """16 MiB of 79.6 GiB is half of the bar, and the caption says of what."""
    part = stacks((16 * MIB, 79.6 * GIB - 16 * MIB))

    caption, bar, axis, *_ = lines_of(part)

    assert caption == "Memory (scale to 32.0 MiB of 79.6 GiB)"
    assert bar.count("█") == bar.count("·")
    assert axis.split("  ")[0] == "0 B"
    assert axis.endswith("32.0 MiB")
    assert "scale to 32.0 MiB of 79.6 GiB" in part.html()


@pytest.mark.parametrize("used", [0, 8 * GIB, 80 * GIB])
def test_a_bar_that_can_be_seen_has_the_scale_of_the_whole(used):
    """Nothing is drawn larger where it need not be, or where there is nothing."""
    caption, _, axis, *_ = lines_of(stacks((used, 80 * GIB - used)))

    assert caption == "Memory"
    assert axis.endswith("80.0 GiB")


def test_bars_beside_each_other_share_the_scale():
    """One GPU in use keeps the idle one beside it small."""
    caption, _, idle, *_ = lines_of(stacks((40 * GIB, 40 * GIB), (MIB, 80 * GIB - MIB)))

    assert caption == "Memory"
    assert idle.count("█") == 1


def test_bars_without_a_unit_have_no_axis_and_no_scale_of_their_own():
    """What writes no sizes cannot say to which scale it draws."""
    told = lines_of(stacks((MIB, 80 * GIB), text_of=None))

    assert told[0] == "Memory"
    assert len(told) == 3


def test_what_is_free_is_not_drawn_and_is_told():
    """The track is what is free: it needs no colour, and the legend says so."""
    told = lines_of(stacks((40 * GIB, 40 * GIB)))

    assert told[1].count("█") == told[1].count("·")
    assert told[-1] == "█ in use  · free"
