"""Names, figures and remarks in the words that every part of the view uses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpumagic.drawing import Note
from gpumagic.pin_loader.report import LimitKind, Remedy
from gpumagic.report.units import UNKNOWN, bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.drawing import NoteKind
    from gpumagic.pin_loader.report import (
        Bound,
        Gain,
        Link,
        LoaderFacts,
        LoaderReport,
        Remark,
        Samples,
        Setting,
    )

NOT_MEASURED = "not measured"
_UNITS = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))


def loader_text(facts: LoaderFacts) -> str:
    """What the loader is called."""
    return facts.name or "the loader"


def new_text(report: LoaderReport) -> str:
    """What the new loader is called."""
    return report.out or "the new loader"


def device_text(setting: Setting) -> str:
    """The device that batches go to."""
    if setting.device is None:
        return "the device"
    return f"{setting.kind}:{setting.device}"


def time_text(seconds: float | None) -> str:
    """A time, or that there is none.

    >>> time_text(0.0123), time_text(None)
    ('12.3 ms', 'not measured')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    return seconds_text(seconds)


def times_text(times: float | None) -> str:
    """How many times as fast.

    >>> times_text(1.838), times_text(12.34), times_text(212.4), times_text(None)
    ('1.84x', '12.3x', '212x', 'unknown')
    """
    if times is None or not math.isfinite(times):
        return UNKNOWN
    return f"{three_digits(times)}x"


def rate_text(bytes_per_s: float | None) -> str:
    """A rate in decimal units, as links are sold.

    >>> rate_text(52.13e9), rate_text(5.6e6), rate_text(None)
    ('52.1 GB/s', '5.60 MB/s', 'unknown')
    """
    if bytes_per_s is None or not math.isfinite(bytes_per_s):
        return UNKNOWN
    # Compare what will be printed: 999.9 MB/s reads better as 1.00 GB/s.
    unit, scale = next(
        (each for each in _UNITS if float(f"{bytes_per_s / each[1]:.3g}") >= 1),
        _UNITS[-1],
    )
    return f"{three_digits(bytes_per_s / scale)} {unit}"


def three_digits(number: float) -> str:
    """Three digits of a number, with thousands set off.

    >>> three_digits(1.838), three_digits(99.96), three_digits(48231.4)
    ('1.84', '100', '48,231')
    """
    for places, limit in ((2, 10), (1, 100)):
        if float(f"{number:.{places}f}") < limit:
            return f"{number:.{places}f}"
    return f"{number:,.0f}"


def rate_of(nbytes: int | None, seconds: float | None) -> float | None:
    """Bytes in a second; None where one of both is unknown or nothing."""
    if not nbytes or not seconds:
        return None
    return nbytes / seconds


def amount_text(kind: LimitKind, amount: int | None) -> str:
    """Bytes, or a number of files, as the kind of limit has it."""
    if amount is not None and kind is LimitKind.FILES:
        return f"{amount:,}"
    return bytes_text(amount)


def inverse(ratio: float | None) -> float | None:
    """How many times as fast, from how many times as long."""
    return 1 / ratio if ratio else None


def median_of(samples: Samples | None) -> float | None:
    """The middle of what was measured; None where nothing was."""
    return samples.median_s if samples is not None and samples.seconds else None


def time_of_text(part_s: float, whole_s: float) -> str:
    """A time out of another, with the unit said once where it is the same.

    >>> time_of_text(0.0121, 0.0123), time_of_text(5e-6, 0.0123)
    ('12.1 of 12.3 ms', '5.00 us of 12.3 ms')
    """
    texts = time_text(part_s), time_text(whole_s)
    number, _, unit = texts[0].partition(" ")
    return f"{number if texts[1].endswith(f' {unit}') else texts[0]} of {texts[1]}"


def remedy_text(gain: Gain, bound: Bound) -> str:
    """A remedy as one would set it."""
    workers = "more workers"
    if gain.workers is not None:
        workers = f"num_workers={gain.workers}"
    pinned = all(each.remedy is not Remedy.PIN for each in bound.gains)
    ahead = "copied ahead" if pinned else "pinned, copied ahead"
    match gain.remedy:
        case Remedy.PIN:
            return "pin_memory=True"
        case Remedy.PREFETCH:
            return ahead
        case Remedy.WORKERS:
            return workers
        case Remedy.EVERYTHING:
            return f"{workers}, {ahead}"


def notes_of(remarks: Iterable[Remark], link: Link | None = None) -> Iterator[Note]:
    """A note for each remark, each said once.

    Args:
        remarks: What is to be said.

        link: What is said of this one is the same for every loader.
    """
    of_the_link = () if link is None else link.remarks
    for each in dict.fromkeys(remarks):
        kind: NoteKind = "problem" if each.serious else "note"
        word = "the link" if each in of_the_link else ""
        yield Note(kind, each.text, each.hint, word)


def serious(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Those of wrong results."""
    return tuple(each for each in remarks if each.serious)


def other(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Those of time and memory only."""
    return tuple(each for each in remarks if not each.serious)


def all_remarks(report: LoaderReport) -> tuple[Remark, ...]:
    """What any part of the report remarks, in the order of its parts."""
    link = report.rates.link
    holders = (
        report,
        report.anatomy,
        report.rates,
        link,
        report.rebuilding,
        report.end_to_end,
    )
    return tuple(
        remark for each in holders if each is not None for remark in each.remarks
    )
