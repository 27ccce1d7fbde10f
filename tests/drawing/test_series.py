"""Curves: to scale, with the peak where it was."""

from __future__ import annotations

import re
from base64 import b64decode

from gpumagic.drawing import Curve, Drawing
from gpumagic.drawing.palette import MEANINGS
from gpumagic.report.units import bytes_text

MIB = 2**20
_NEVER = "C", (0, 0), ("start", "1 step"), "never in use"


def lines_of(curve, width=60):
    """What is drawn, from the mark of the peak to the axis, and what is said."""
    return Drawing("T", (curve,)).text(width).splitlines()[3:]


def picture_of(curve):
    """The picture itself."""
    return b64decode(re.search('base64,([^"]+)', curve.html())[1]).decode()


def test_a_curve_holds_each_value_until_the_next():
    """Half of the steps at a quarter, then at all of it: as memory does, it jumps."""
    curve = Curve("C", (1, 4), ("start", "2 steps"), "peak 4")

    _, top, *_, ground, _, _ = lines_of(curve)

    drawn = ground.removeprefix("  0  ")
    assert set(drawn) == {"█"}
    assert len(top) == len(ground)
    assert abs(top.count("█") * 2 - len(drawn)) <= 1
    assert "V74H240V10H480V96z" in picture_of(curve)


def test_the_peak_is_marked_and_told():
    """Where it was, how much, and what was in use then, between labelled axes."""
    heights = (MIB, MIB, 8 * MIB, MIB)
    told = "peak 8.00 MiB: model 4 MiB"
    curve = Curve("C", heights, ("start", "3 steps"), told, text_of=bytes_text)

    mark, top, *_, ground, axis, said = lines_of(curve)

    assert top[mark.index("▼")] == "█"
    assert mark.index("▼") - top.index("█") == top.count("█") // 2
    assert top.split()[:2] == ["8.00", "MiB"]
    assert ground.split()[:2] == ["0", "B"]
    assert axis.split() == ["start", "3", "steps"]
    assert said.strip() == f"▼ {told}"
    assert told in curve.html()
    assert 'x="62.50%"' in picture_of(curve)


def test_what_rises_and_falls_within_a_stretch_is_a_spike():
    """A moment is no plateau: the area is as high as the least of the stretch."""
    flat = Curve("C", (4, 4), ("start", "end"), "peak 4")
    spike = Curve("C", (4, 4), ("start", "end"), "peak 4", lowest=(1, 4))

    assert "V10H480V96z" in picture_of(flat)
    assert "L120 10L240 74H240V10H480" in picture_of(spike)
    assert lines_of(flat) == lines_of(spike)


def test_the_scale_begins_at_the_floor():
    """Small changes of much memory are seen, and the axis says where it begins."""
    _, top, *_, ground, _, _ = lines_of(
        Curve("C", (40, 42), ("start", "end"), "peak", floor=40)
    )

    assert top.split()[0] == "42"
    assert ground.split()[0] == "40"
    assert ground.index("█") == top.index("█")


def test_what_was_never_in_use_has_no_mark():
    """A mark on nothing would be a peak that never was."""
    assert not any("▼" in line for line in lines_of(Curve(*_NEVER))[:-1])
    assert "overflow" not in picture_of(Curve(*_NEVER))


def test_memory_in_use_has_its_colour():
    """The same kind looks the same in all pictures."""
    picture = picture_of(Curve("C", (1, 2), ("start", "end"), "peak 2"))

    assert MEANINGS["in use"].fill in picture


def test_a_curve_of_very_many_stretches_stays_small():
    """Twenty thousand allocations fit into the habit of ten kilobytes."""
    heights = tuple(at * 7919 % 1000 for at in range(20_000))

    assert len(Curve("C", heights, ("start", "end"), "peak").html()) < 10_000
