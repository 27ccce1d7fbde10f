"""Flags as sentences to the reader, the most serious first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import measured, times_text
from gpumagic.cuda_sync_time.flag_table import WORDS
from gpumagic.cuda_sync_time.records.flags import FlagKind
from gpumagic.drawing import Note
from gpumagic.report.units import (
    UNKNOWN,
    devices_text,
    seconds_text,
    share_of,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpumagic.cuda_sync_time.records.flags import Flag
    from gpumagic.cuda_sync_time.records.setting import Setting

_SEVERITY = ("problem", "warning", "note")
_MOST_NAMES = 6
_GROSS_SPREAD = 0.25
_FOLDED = frozenset(
    {
        FlagKind.FIRST_USE,
        FlagKind.LIBRARY_STARTED,
        FlagKind.STREAM_LEFT,
        FlagKind.DRIVER_CALLS,
        FlagKind.GIVEN_BACK,
        FlagKind.RETRIES,
        FlagKind.LIMITED,
        FlagKind.SHARED,
    }
)


def notes(flags: Iterable[Flag], setting: Setting) -> tuple[Note, ...]:
    """A note for each flag; of equally serious ones in their own order.

    What is so of several devices is one note.
    """
    said = (_note(each, setting) for each in _together(flags))
    return tuple(sorted(said, key=lambda note: _SEVERITY.index(note.kind)))


def note_of(flag: Flag, setting: Setting) -> Note:
    """One flag as a problem and what to type next."""
    return _note([flag], setting)


def _together(flags: Iterable[Flag]) -> Iterable[list[Flag]]:
    """Those that differ in nothing but their device, or in a count that adds up."""
    groups: dict[tuple[object, ...], list[Flag]] = {}
    for place, flag in enumerate(flags):
        key: tuple[object, ...] = flag.kind, flag.names
        if flag.kind not in _FOLDED or flag.device is None:
            key = (place,)
        groups.setdefault(key, []).append(flag)
    return groups.values()


def _note(same: list[Flag], setting: Setting) -> Note:
    flag = same[0]
    words = WORDS[flag.kind]
    amounts = [each.amount for each in same]
    amount = amounts[0]
    text = words.text.format(
        time=measured(amount, setting.floor_s),
        seconds=seconds_text(amount),
        times=_on_each(_times, amounts),
        calls=_on_each(_calls, amounts),
        count=UNKNOWN if amount is None else f"{amount:,.0f}",
        percent=share_text(None if amount is None else abs(amount)),
        percent_of=share_of(None if amount is None else abs(amount)),
        correlation=UNKNOWN if amount is None else f"{amount:.2f}",
        slower="slower" if amount is None or amount >= 0 else "faster",
        moved=_moved(amount),
        others=_others(amount) if len(same) == 1 else "other processes were",
        unsteady=_unsteady(amount),
        groups=_groups(flag),
        names=f": {listed(flag.names)}" if flag.names else "",
        libraries=listed(flag.names) or "a library",
        device=_devices(same, setting),
        it="it" if len(same) == 1 else "them",
    )
    return Note(words.kind, text, words.hint.format(kind=setting.kind))


def short_words(kinds: Iterable[FlagKind]) -> str:
    """Flags in a word each, for a table of many cells."""
    return ", ".join(WORDS[kind].short for kind in kinds)


def listed(names: tuple[str, ...]) -> str:
    """Names in a row, the first few of many."""
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _devices(same: list[Flag], setting: Setting) -> str:
    known = [each.device for each in same if each.device is not None]
    return devices_text(setting.kind, known) if known else "the device"


def _on_each(said: Callable[[float | None], str], amounts: list[float | None]) -> str:
    """A count for each device where it is the same, else for all of them."""
    if len(amounts) == 1:
        return said(amounts[0])
    if len(set(amounts)) == 1:
        return f"{said(amounts[0])} on each"
    known = [amount for amount in amounts if amount is not None]
    whole = sum(known) if len(known) == len(amounts) else None
    return f"{said(whole)} in all"


def _calls(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of calls"
    return "1 call" if amount == 1 else f"{amount:,.0f} calls"


def _times(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of times"
    return "once" if amount == 1 else f"{amount:,.0f} times"


def _others(amount: float | None) -> str:
    if amount is None:
        return "an unknown number of other processes were"
    if amount == 1:
        return "1 other process was"
    return f"{amount:,.0f} other processes were"


def _moved(change: float | None) -> str:
    if change is None:
        return "changed"
    return f"{'rose' if change >= 0 else 'fell'} by {share_text(abs(change))}"


def _unsteady(spread: float | None) -> str:
    if spread is not None and spread > _GROSS_SPREAD:
        return "the samples are unstable"
    return "the samples differ"


def _groups(flag: Flag) -> str:
    """Around which times they lie, as far as the flag tells it."""
    if flag.names:
        return f", around {' and '.join(map(_as_time, flag.names))}"
    if flag.amount is not None:
        return f", one {times_text(flag.amount)} times the other"
    return ""


def _as_time(text: str) -> str:
    """Seconds with their unit, where only a number is told."""
    try:
        return seconds_text(float(text))
    except ValueError:
        return text
