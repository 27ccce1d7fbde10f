"""How devices, peaks and badges are called in every view of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.drawing import Column, Note, NoteText, Property
from gpumagic.drawing.document import folded, gravest_first
from gpumagic.gpu_mem.records import BadgeKind, PeakKind
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    count_text,
    devices_text,
    how_often,
    on_each,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from gpumagic.gpu_mem.records import CellBadge, Peak, Setting
    from gpumagic.report.places import CodeLine

_FOLDED = frozenset(
    {
        BadgeKind.RETRY,
        BadgeKind.OOM_CAUGHT,
        BadgeKind.DRIVER_CALLS,
        BadgeKind.STREAM_WAITS,
        BadgeKind.PEAK_RESET,
        BadgeKind.SUMS_RESET,
        BadgeKind.STARTED,
        BadgeKind.NOT_CACHED,
    }
)
# What comes of giving cached memory back, whoever has ordered that.
_OF_EMPTYING = (BadgeKind.DRIVER_CALLS, BadgeKind.STREAM_WAITS)
_OF_THE_CACHE = "that comes of the cache that was given back, and would come again"
PEAKS_IN_WORDS = {
    PeakKind.EXACT: "The peak is exact, by the allocator's own counter.",
    PeakKind.BOUND: (
        "The peak lies between two bounds: an earlier cell had reached more. "
        "%%gpu_mem --lines finds it."
    ),
    PeakKind.SINCE_RESET: "The cell reset the peaks: this is the peak from then on.",
    PeakKind.REPLAYED: (
        "The peak was found by going through each allocation of the cell, without "
        "the allocator's rounding."
    ),
    PeakKind.UNKNOWN: "Nothing counts the peak here.",
}
_HOST = "cpu"
_LONGEST_NAME = 48
_MOST_LISTED = 6


# ------------------------------------------------------- devices, names, amounts


def of_host(setting: Setting) -> bool:
    """Whether the figures are of host memory that names hold, as no device is used."""
    return setting.kind == _HOST


def device_name(setting: Setting, device: int | None) -> str:
    """The device as torch calls it; of the CPU, which memory is meant."""
    if of_host(setting):
        return "host memory"
    return "the device" if device is None else f"{setting.kind}:{device}"


def on_device(setting: Setting, device: int | None) -> str:
    """Where bytes are, to be put behind them."""
    if of_host(setting):
        return "of host memory held by names"
    return f"on {device_name(setting, device)}"


def short_name(name: str) -> str:
    """A name that fits into a sentence."""
    return shortened(name, _LONGEST_NAME)


def error_name(error: str) -> str:
    """The class of an error; its words stand above the report, in the traceback."""
    name = error.partition(":")[0]
    return short_name(name) if name.isidentifier() else "an error"


def listed(names: Sequence[str], most: int = _MOST_LISTED) -> str:
    """Names in a row, the first few of many."""
    shown = ", ".join(map(short_name, names[:most]))
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def names_or_none(names: Sequence[str]) -> str:
    """The names that lie in a block."""
    return listed(names) if names else "no name found"


def recorded_in(line: CodeLine | None) -> str:
    """The line that a block was allocated in."""
    return "not recorded" if line is None else line.where


def known_bytes(nbytes: int | None) -> str | None:
    """A size for a cell of a table, which says itself that it is unknown."""
    return None if nbytes is None else bytes_text(nbytes)


def figures(
    heading: str,
    figure: Callable[[Any], int | None],
    text: Callable[[int], str] = bytes_text,
) -> Property:
    """A column of numbers, each unknown or in words."""

    def cell(thing: Any) -> str | None:
        amount = figure(thing)
        return None if amount is None else text(amount)

    return Property(Column(heading, number=True), cell)


# ------------------------------------------------------------------------- peaks


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


# ------------------------------------------------------------------------ badges


BADGE_TEXTS = {
    BadgeKind.RETRY: NoteText(
        "cache emptied",
        "warning",
        "{device} had no memory left: torch emptied {its} cache and asked again, "
        "{times}",
        "del what is not needed, or work on less at once",
        counted="cache emptied {times}",
    ),
    BadgeKind.OOM_CAUGHT: NoteText(
        "OOM caught",
        "problem",
        "an out-of-memory error of {device} was raised and caught, {times}",
        "%gpu_mem why",
        counted="OOM caught {times}",
    ),
    BadgeKind.DRIVER_CALLS: NoteText(
        "driver calls",
        "note",
        "memory of {device} was taken from the driver, or given back, {times}: each "
        "call is slow",
        "run it once more: torch keeps the memory that it has got",
        counted="{calls}",
    ),
    BadgeKind.STREAM_WAITS: NoteText(
        "stream waits",
        "note",
        "all streams of {device} were waited for, {times}, since the code emptied "
        "{its} cache",
        "torch.{kind}.graph does that by itself; an empty_cache() of yours can be left "
        "out",
        counted="{waits}",
    ),
    BadgeKind.PENDING: NoteText(
        "pending",
        "note",
        "{bytes} on {device} was given back, but another stream still uses it",
        "new tensors can have it once that stream has come so far",
        counted="{bytes} pending",
    ),
    BadgeKind.FLUSHED: NoteText(
        "cache given back",
        "note",
        "{bytes} of torch's cache went back to the driver of {device}: taking it "
        "again is slow",
        "if the cell calls torch.{kind}.empty_cache(), leave it out; settings of the "
        "allocator can do the same",
        counted="{bytes} of cache given back",
    ),
    BadgeKind.PEAK_RESET: NoteText(
        "peaks reset",
        "note",
        "the cell has reset the peaks of {device}: the peak is known only from then on",
        "%%gpu_mem --lines finds the peak of the whole cell",
    ),
    BadgeKind.SUMS_RESET: NoteText(
        "sums reset",
        "note",
        "the cell has reset the sums of {device}: how much was handed out is unknown",
    ),
    BadgeKind.STARTED: NoteText(
        "first use",
        "note",
        "{device} {was} used for the first time in this process: {its} context takes "
        "memory that torch does not count",
        "%gpu_mem shows it as outside torch",
    ),
    BadgeKind.NOT_CACHED: NoteText(
        "not cached",
        "warning",
        "caching is switched off, so that torch counts nothing on {device}",
        "take PYTORCH_NO_CUDA_MEMORY_CACHING out of the environment and restart "
        "the kernel",
        counted="caching is off",
    ),
    BadgeKind.BACKEND: NoteText(
        "no counters",
        "note",
        "this allocator{names} does not keep every counter: what is missing here is "
        "unknown",
    ),
    BadgeKind.SHARED: NoteText(
        "shared",
        "note",
        "{device} is shared with {others}: what is free there can change at any time",
        "%gpu_select free chooses another, before CUDA is started",
        counted="shared with {others}",
    ),
    BadgeKind.SILENT: NoteText(
        "no answer",
        "problem",
        "{device} does not tell what is free: after an error on it nothing works there",
        "restart the kernel: CUDA does not recover from it",
    ),
}
# What is so of the machine, and not of the one cell: said once in a row of reports.
_LASTING = (
    BadgeKind.DRIVER_CALLS,
    BadgeKind.NOT_CACHED,
    BadgeKind.BACKEND,
    BadgeKind.SHARED,
)

_BY_THE_ALLOCATOR = BADGE_TEXTS[BadgeKind.RETRY].hint


def notes(badges: Iterable[CellBadge], setting: Setting) -> tuple[Note, ...]:
    """A note for each badge, the most serious first; of several devices together."""
    badges = tuple(badges)
    groups = folded(badges, lambda badge: _same(badge, _hint(badge, badges)))
    return gravest_first(
        _note(same, _hint(same[0], badges), setting) for same in groups
    )


def note_of(badge: CellBadge, setting: Setting) -> Note:
    """One badge as what is so and what to type next, whatever others there are."""
    return _note([badge], BADGE_TEXTS[badge.kind].hint, setting)


def counted_badge(badge: CellBadge, setting: Setting) -> str:
    """One badge in a few words with its figure, for a line of many things."""
    words = BADGE_TEXTS[badge.kind]
    if badge.amount is None:
        return words.short
    return _filled(words.counted or words.short, [badge], setting)


def short_badges(kinds: Iterable[BadgeKind]) -> str:
    """Badges in a word each, for a table of many cells."""
    return ", ".join(BADGE_TEXTS[kind].short for kind in kinds)


def _same(badge: CellBadge, hint: str) -> Hashable:
    """What those have in common that differ in nothing but their device and a count."""
    if badge.kind not in _FOLDED or badge.device is None:
        return None
    return badge.kind, badge.names, hint


def _hint(badge: CellBadge, badges: Iterable[CellBadge]) -> str:
    """What to type next, with a view to what else has happened on the device."""
    same = {each.kind for each in badges if each.device == badge.device}
    if BadgeKind.RETRY in same:
        by_itself = badge.kind is BadgeKind.FLUSHED
        return _BY_THE_ALLOCATOR if by_itself else BADGE_TEXTS[badge.kind].hint
    if BadgeKind.FLUSHED in same and badge.kind in _OF_EMPTYING:
        return _OF_THE_CACHE
    return BADGE_TEXTS[badge.kind].hint


def _note(same: list[CellBadge], hint: str, setting: Setting) -> Note:
    words = BADGE_TEXTS[same[0].kind]
    text = _filled(words.text, same, setting)
    word = words.short if same[0].kind in _LASTING else ""
    return Note(words.kind, text, hint.format(kind=setting.kind), word)


def _filled(text: str, same: list[CellBadge], setting: Setting) -> str:
    badge = same[0]
    amount = badge.amount
    return text.format(
        times=on_each(how_often, [each.amount for each in same]),
        bytes=bytes_text(amount),
        calls=count_text(amount, "driver call"),
        waits=count_text(amount, "stream wait"),
        others=count_text(amount, "other process", "other processes"),
        names=f" ({listed(badge.names)})" if badge.names else "",
        device=_device(same, setting),
        its="its" if len(same) == 1 else "their",
        was="was" if len(same) == 1 else "were",
    )


def _device(same: list[CellBadge], setting: Setting) -> str:
    if len(same) == 1:
        return device_name(setting, same[0].device)
    numbers = (each.device for each in same if each.device is not None)
    return devices_text(setting.kind, numbers)
