"""How devices, names and findings are called in every answer about memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.records import LONGEST_NAME, BadgeKind
from gpumagic.report.units import (
    bytes_text,
    count_text,
    devices_text,
    how_often,
    known_sum,
    listed,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import CellBadge, Setting

_MOST_LISTED = 6
_MOST_BADGES = 3


def device_name(setting: Setting, device: int | None) -> str:
    """The device as torch calls it."""
    return "the device" if device is None else f"{setting.kind}:{device}"


def on_devices(setting: Setting, *devices: int | None) -> str:
    """Where bytes are, to be put behind them; of several devices their number."""
    if len(devices) > 1:
        return f"on {count_text(len(devices), 'device')}"
    return f"on {device_name(setting, *devices)}"


def short_name(name: str) -> str:
    """A name that fits into a sentence."""
    return shortened(name, LONGEST_NAME)


def names_listed(names: Sequence[str]) -> str:
    """Names in a row, the first few of many."""
    return listed([short_name(each) for each in names], ", ", _MOST_LISTED)


def figures(
    heading: str,
    figure: Callable[[Any], int | None],
    text: Callable[[int], str] = bytes_text,
) -> kit.Property:
    """A column of numbers, each unknown or in words."""
    from gpumagic import drawing as kit

    def cell(thing: Any) -> str | None:
        amount = figure(thing)
        return None if amount is None else text(amount)

    return kit.Property(kit.Column(heading, number=True), cell)


def words(heading: str, cell: Callable[[Any], Any]) -> kit.Property:
    """A column of words."""
    from gpumagic import drawing as kit

    return kit.Property(kit.Column(heading), cell)


def devices(setting: Setting) -> kit.Property:
    """The column of devices, of whatever has a `device`."""
    return words("Device", lambda each: device_name(setting, each.device))


# ------------------------------------------------------------------------ badges


class _Words(NamedTuple):
    """How a badge is told, with names in braces to be filled in."""

    kind: kit.NoteKind  # how much it matters
    text: str  # what is so
    hint: str  # what to do or to type next
    lasts: bool = False  # it is so of the machine: said once in a row of reports


BADGES = {
    BadgeKind.RETRY: _Words(
        "warning",
        "{device} had no memory left: torch emptied its cache and asked again, {times}",
        "free unused tensors, or use a smaller batch",
    ),
    BadgeKind.OOM_CAUGHT: _Words(
        "problem",
        "an out-of-memory error of {device} was raised and caught, {times}",
        "%gpu_mem why",
    ),
    BadgeKind.DRIVER_CALLS: _Words(
        "note",
        "memory of {device} was taken from the driver, or given back, {times}: each "
        "call is slow",
        "run it once more: torch keeps the memory that it has got",
        lasts=True,
    ),
    BadgeKind.FLUSHED: _Words(
        "note",
        "{bytes} of torch's cache went back to the driver of {device}: taking it "
        "again is slow",
        "if the cell calls torch.{kind}.empty_cache(), leave it out; settings of the "
        "allocator and torch.{kind}.graph do the same",
    ),
    BadgeKind.UNCOUNTED: _Words(
        "note",
        "this allocator does not keep every counter: what is missing here is unknown",
        "take PYTORCH_NO_CUDA_MEMORY_CACHING and PYTORCH_CUDA_ALLOC_CONF out of the "
        "environment and restart the kernel",
        lasts=True,
    ),
    BadgeKind.SHARED: _Words(
        "note",
        "{device} is shared with {others}: what is free there can change at any time",
        "%gpu_select free chooses another, before CUDA is started",
        lasts=True,
    ),
    BadgeKind.SILENT: _Words(
        "problem",
        "{device} does not tell what is free: after an error on it nothing works there",
        "restart the kernel: CUDA does not recover from it",
    ),
}


def notes(badges: Iterable[CellBadge], setting: Setting) -> tuple[kit.Note, ...]:
    """A note for each kind of badge, the most serious first, with all its devices."""
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import gravest_first

    same: dict[BadgeKind, list[CellBadge]] = {}
    for badge in badges:
        same.setdefault(badge.kind, []).append(badge)
    found = []
    for kind, its in same.items():
        said, amount = BADGES[kind], known_sum([each.amount for each in its])
        numbers = [each.device for each in its if each.device is not None]
        text = said.text.format(
            device=devices_text(setting.kind, numbers) or "the device",
            times=how_often(amount),
            bytes=bytes_text(amount),
            others=count_text(amount, "other process", "other processes"),
        )
        hint = said.hint.format(kind=setting.kind)
        found.append(kit.Note(said.kind, text, hint, kind.value if said.lasts else ""))
    return gravest_first(found)


def short_badges(badges: Iterable[CellBadge]) -> str:
    """Badges in a word or two each, for one line."""
    said = list(dict.fromkeys(each.kind.value for each in badges))
    return listed(said, ", ", _MOST_BADGES) if said else ""
