"""Figures with no more digits than the way of measuring them can tell."""

from __future__ import annotations

import math

from gpumagic.report.units import UNKNOWN, seconds_text

_UNITS = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
_MINUTE_S = 59.5
_NEARLY = 1.05
_DUST = 1e-9  # what sums and differences of times leave behind their last digit


def measured(seconds: float | None, floor_s: float | None) -> str:
    """A measured time with three digits, and nothing finer than a tenth of the floor.

    >>> measured(0.0843, 21e-6), measured(0.000403, 21e-6), measured(4e-6, 21e-6)
    ('84.3 ms', '400 us', 'below 21 us (the floor)')
    >>> measured(0.0843, None), measured(0.00123456, 1e-3), measured(None, 1e-3)
    ('84.3 ms', '1.2 ms', 'unknown')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if floor_s is None or not floor_s > 0:
        return seconds_text(seconds)
    if seconds < floor_s * (1 - _DUST):
        return f"below {floor_text(floor_s)} (the floor)"
    step_s = float(10.0 ** math.ceil(math.log10(floor_s / 10) - _DUST))
    if _rounded(seconds, step_s) < floor_s:
        return floor_text(floor_s)  # what is above the floor does not look below it
    return _to_step(seconds, step_s)


def floor_text(floor_s: float | None) -> str:
    """The floor itself, with two digits: it was measured like everything else.

    >>> floor_text(21.4e-6), floor_text(1.04e-6), floor_text(9.96e-5)
    ('21 us', '1.0 us', '100 us')
    """
    if floor_s is None or not floor_s > 0:
        return seconds_text(floor_s)
    return _to_step(floor_s, 10.0 ** (math.floor(math.log10(floor_s)) - 1))


def ratio_text(ratio: float | None, finest: float = 0.01) -> str:
    """How many times one is the other; `finest` is the smallest difference known.

    >>> ratio_text(1.3141), ratio_text(12.34), ratio_text(210.6)
    ('1.31', '12.3', '211')
    >>> ratio_text(1.0024, 0.001), ratio_text(4123.0)
    ('1.002', '4,123')
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if ratio >= 100:
        return f"{ratio:,.0f}"
    if ratio >= 10:
        return f"{ratio:.1f}"
    return f"{ratio:.{3 if finest < 0.01 else 2}f}"


def nearly_same(ratio: float) -> bool:
    """Whether a ratio is too near to one to be told in passing."""
    return 1 / _NEARLY < ratio < _NEARLY


def _to_step(seconds: float, step_s: float) -> str:
    """A time as a multiple of the step, with three digits at most."""
    rounded = _rounded(_rounded(seconds, step_s), step_s)  # 9.996 has one digit more
    if rounded >= _MINUTE_S:
        return seconds_text(seconds)
    # A hair above, so that 1000 us are 1 ms though their product is not quite.
    unit, scale = next(
        (each for each in reversed(_UNITS) if rounded * (1 + _DUST) >= each[1]),
        _UNITS[0],
    )
    finest = max(step_s, _third_digit(rounded))
    places = max(0, round(math.log10(scale / finest)))
    return f"{rounded / scale:.{places}f} {unit}"


def _rounded(seconds: float, step_s: float) -> float:
    step_s = max(step_s, _third_digit(seconds))
    return round(seconds / step_s) * step_s


def _third_digit(seconds: float) -> float:
    """What the third digit of a time counts."""
    return float(10.0 ** (math.floor(math.log10(seconds) + _DUST) - 2))
