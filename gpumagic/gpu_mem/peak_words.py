"""The most that a cell had allocated, and how well that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.records.counters import PeakKind
from gpumagic.report.units import UNKNOWN, bytes_text

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records.counters import Peak

_REMARKS = {
    PeakKind.EXACT: "exact",
    PeakKind.BOUND: "",  # the bounds say it
    PeakKind.SINCE_RESET: "the cell reset the peaks",
    PeakKind.REPLAYED: "replayed",
    PeakKind.UNKNOWN: "",
}


def peak_text(peak: Peak) -> str:
    """The peak in a sentence: a figure, or between which figures it lies."""
    low, high = _bounds(peak)
    if low is None and high is None:
        return UNKNOWN
    if high is None:
        return f"at least {bytes_text(low)}"
    if low is None:
        return f"at most {bytes_text(high)}"
    texts = bytes_text(low), bytes_text(high)
    if texts[0] == texts[1]:
        return texts[1] if low == high else f"about {texts[1]}"
    number, _, unit = texts[0].partition(" ")
    same = texts[1].endswith(f" {unit}")
    return f"between {number if same else texts[0]} and {texts[1]}"


def peak_short(peak: Peak) -> str:
    """The peak for a bar or a row of a table."""
    return peak_text(peak).removeprefix("between ").replace(" and ", " to ")


def peak_remarked(peak: Peak) -> str:
    """The peak, and behind it how it is known."""
    text, remark = peak_text(peak), _REMARKS[peak.kind]
    return f"{text} ({remark})" if remark and text != UNKNOWN else text


def drawn_peak(peak: Peak) -> tuple[int, int] | None:
    """What was reached for sure, and what perhaps lies on top of it."""
    low, high = _bounds(peak)
    if low is None and high is None:
        return None
    sure = low or 0
    return sure, max((sure if high is None else high) - sure, 0)


def _bounds(peak: Peak) -> tuple[int | None, int | None]:
    if peak.kind is PeakKind.UNKNOWN:
        return None, None
    if peak.kind is PeakKind.SINCE_RESET and peak.low_bytes == peak.high_bytes:
        return peak.low_bytes, None  # more may have been reached before the reset
    return peak.low_bytes, peak.high_bytes
