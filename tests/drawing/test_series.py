"""Curves over time: to scale, with the peak where it was."""

from __future__ import annotations

import math

import pytest

from gpumagic.drawing import Curve, Drawing
from gpumagic.report.units import bytes_text, seconds_text

MIB = 2**20


def lines_of(curve, width=60):
    """What is drawn, from the mark of the peak to the axis, and what is said."""
    return Drawing("T", (curve,)).text(width).splitlines()[3:]


def test_a_curve_holds_each_value_until_the_next():
    """Half of the time at a quarter, then at all of it: as memory does, it jumps."""
    curve = Curve("C", ((0.0, 1.0), (1.0, 4.0), (2.0, 4.0)))

    _, top, *_, ground, _, _ = lines_of(curve)

    drawn = ground.removeprefix("  0  ")
    assert set(drawn) == {"█"}
    assert len(top) == len(ground)
    assert top.count("█") == math.ceil(len(drawn) / 2)


def test_the_peak_is_marked_and_told():
    """Where it was, how much, and what was alive then."""
    points = ((0.0, MIB), (0.5, 8 * MIB), (0.75, MIB), (1.0, MIB))
    curve = Curve("C", points, seconds_text, bytes_text, at_peak="model 4 MiB")

    mark, top, *_, axis, said = lines_of(curve)

    assert mark.index("▼") == top.index("█")
    assert top.split()[:2] == ["8.00", "MiB"]
    assert axis.split() == ["0", "s", "500", "ms", "1.00", "s"]
    assert said.strip() == "highest 8.00 MiB, at 500 ms: model 4 MiB"
    assert "highest 8.00 MiB, at 500 ms: model 4 MiB" in curve.html()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_leaves_the_curve_as_it_was(value):
    """A value that cannot be drawn does not take the others with it."""
    curve = Curve("C", ((0.0, 1.0), (1.0, value), (2.0, 1.0)))

    assert lines_of(curve)[-1].strip() == "highest 1, at 0"


def test_a_curve_of_very_many_points_stays_small():
    """A hundred thousand allocations fit into the habit of ten kilobytes."""
    points = tuple((float(at), float(at * 7919 % 1000)) for at in range(100_000))

    assert len(Curve("C", points).html()) < 10_000
