"""What is said of each badge of a cell: one entry for each, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Note
from gpumagic.gpu_mem.device_words import (
    device_name,
    known_sum,
    listed,
    times_text,
)
from gpumagic.gpu_mem.records.counters import BadgeKind
from gpumagic.report.units import bytes_text, count_text, devices_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.drawing import NoteKind
    from gpumagic.gpu_mem.records.counters import CellBadge
    from gpumagic.gpu_mem.records.setting import Setting


class Words(NamedTuple):
    """How a badge is told.

    Attributes:
        short: In a table of many cells, where no figure is known.

        counted: In one line with its figure.

        kind: How much it matters.

        text: What is so, with the names in braces that `note_of` fills in.

        hint: What to do or to type next.
    """

    short: str
    counted: str
    kind: NoteKind
    text: str
    hint: str = ""


WORDS = {
    BadgeKind.RETRY: Words(
        "cache emptied",
        "cache emptied {times}",
        "warning",
        "the driver had no memory left for {device}: torch emptied {its} cache and "
        "asked again, {times}. That is slow, and close to an out-of-memory error",
        "del what is not needed, or work on less at once",
    ),
    BadgeKind.OOM_CAUGHT: Words(
        "OOM caught",
        "OOM caught {times}",
        "problem",
        "an out-of-memory error of {device} was raised and caught, {times}",
        "%gpu_mem why",
    ),
    BadgeKind.DRIVER_CALLS: Words(
        "driver calls",
        "{calls}",
        "note",
        "memory of {device} was taken from the driver, or given back, {times}: each "
        "such call is slow",
        "run it once more: torch keeps the memory that it has got",
    ),
    BadgeKind.STREAM_WAITS: Words(
        "stream waits",
        "{waits}",
        "warning",
        "all streams of {device} were waited for, {times}, to get memory back",
        "del what is not needed, or work on less at once",
    ),
    BadgeKind.PENDING: Words(
        "pending",
        "{bytes} pending",
        "note",
        "{bytes} on {device} was given back, but another stream still awaits it: no "
        "new tensor can have it until then",
        "it comes back with a later allocation, once that stream has come so far",
    ),
    BadgeKind.FLUSHED: Words(
        "cache given back",
        "{bytes} of cache given back",
        "note",
        "{bytes} of torch's cache went back to the driver of {device}: new tensors "
        "have to ask for it again, which is slow",
        "if the cell calls torch.{kind}.empty_cache(), leave it out, unless others "
        "need the memory; settings of the allocator can have the same effect",
    ),
    BadgeKind.PEAK_RESET: Words(
        "peaks reset",
        "peaks reset",
        "note",
        "the cell has reset the peaks of {device}: what is told of the peak holds "
        "from then on",
        "%%gpu_mem --exact finds the peak of the whole cell",
    ),
    BadgeKind.SUMS_RESET: Words(
        "sums reset",
        "sums reset",
        "note",
        "the cell has reset the sums of {device}: how much was handed out altogether "
        "cannot be told",
    ),
    BadgeKind.STARTED: Words(
        "first use",
        "first use",
        "note",
        "{device} {was} used for the first time in this process: {its} context takes "
        "memory that no counter of torch shows",
        "%gpu_mem shows it as outside the allocator",
    ),
    BadgeKind.NOT_CACHED: Words(
        "not cached",
        "caching is off",
        "warning",
        "caching is switched off, so that torch counts nothing on {device}",
        "take PYTORCH_NO_CUDA_MEMORY_CACHING out of the environment and restart "
        "the kernel",
    ),
    BadgeKind.BACKEND: Words(
        "no counters",
        "no counters",
        "note",
        "this allocator{names} does not keep every counter: what is missing here is "
        "unknown, and not nothing",
    ),
    BadgeKind.SHARED: Words(
        "shared",
        "shared with {others}",
        "note",
        "{device} is shared with {others}: what is free there can change at any time",
        "%gpu_select free chooses another, before CUDA is started",
    ),
}

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
_SEVERITY = ("problem", "warning", "note")
# What comes of giving cached memory back, whoever has ordered that.
_OF_EMPTYING = (BadgeKind.DRIVER_CALLS, BadgeKind.STREAM_WAITS)
_OF_THE_CACHE = "that comes of the cache that was given back, and would come again"
_BY_THE_ALLOCATOR = WORDS[BadgeKind.RETRY].hint


def notes(badges: Iterable[CellBadge], setting: Setting) -> tuple[Note, ...]:
    """A note for each badge, the most serious first; of several devices together."""
    badges = tuple(badges)
    said = (_note(same, hint, setting) for same, hint in _together(badges))
    return tuple(sorted(said, key=lambda note: _SEVERITY.index(note.kind)))


def note_of(badge: CellBadge, setting: Setting) -> Note:
    """One badge as what is so and what to type next, whatever others there are."""
    return _note([badge], WORDS[badge.kind].hint, setting)


def _together(
    badges: tuple[CellBadge, ...],
) -> Iterable[tuple[list[CellBadge], str]]:
    """Those that differ in nothing but their device and a count, with what to do."""
    groups: dict[tuple[object, ...], tuple[list[CellBadge], str]] = {}
    for place, badge in enumerate(badges):
        hint = _hint(badge, badges)
        key: tuple[object, ...] = badge.kind, badge.names, hint
        if badge.kind not in _FOLDED or badge.device is None:
            key = (place,)
        groups.setdefault(key, ([], hint))[0].append(badge)
    return groups.values()


def counted_words(badge: CellBadge, setting: Setting) -> str:
    """One badge in a few words with its figure, for a line of many things."""
    words = WORDS[badge.kind]
    if badge.amount is None:
        return words.short
    return _filled(words.counted, [badge], setting)


def short_words(kinds: Iterable[BadgeKind]) -> str:
    """Badges in a word each, for a table of many cells."""
    return ", ".join(WORDS[kind].short for kind in kinds)


def _hint(badge: CellBadge, badges: Iterable[CellBadge]) -> str:
    """What to type next, with a view to what else has happened on the device."""
    same = {each.kind for each in badges if each.device == badge.device}
    if BadgeKind.RETRY in same:
        by_itself = badge.kind is BadgeKind.FLUSHED
        return _BY_THE_ALLOCATOR if by_itself else WORDS[badge.kind].hint
    if BadgeKind.FLUSHED in same and badge.kind in _OF_EMPTYING:
        return _OF_THE_CACHE
    return WORDS[badge.kind].hint


def _note(same: list[CellBadge], hint: str, setting: Setting) -> Note:
    words = WORDS[same[0].kind]
    text = _filled(words.text, same, setting)
    return Note(words.kind, text, hint.format(kind=setting.kind))


def _filled(text: str, same: list[CellBadge], setting: Setting) -> str:
    badge = same[0]
    amount = badge.amount
    return text.format(
        times=_times(same),
        bytes=bytes_text(amount),
        calls=count_text(amount, "driver call"),
        waits=count_text(amount, "stream wait"),
        others=count_text(amount, "other process", "other processes"),
        names=f" ({listed(badge.names)})" if badge.names else "",
        device=_device(same, setting),
        its="its" if len(same) == 1 else "their",
        was="was" if len(same) == 1 else "were",
    )


def _times(same: list[CellBadge]) -> str:
    """How often on each device where that is the same, else on all together."""
    amounts = [badge.amount for badge in same]
    if len(same) == 1:
        return times_text(amounts[0])
    if len(set(amounts)) == 1:
        return f"{times_text(amounts[0])} on each"
    return f"{times_text(known_sum(amounts))} in all"


def _device(same: list[CellBadge], setting: Setting) -> str:
    if len(same) == 1:
        return device_name(setting, same[0].device)
    numbers = (each.device for each in same if each.device is not None)
    return devices_text(setting.kind, numbers)
