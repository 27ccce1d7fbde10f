"""How devices, peaks and badges are called in every answer about memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.records import BadgeKind
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    count_text,
    devices_text,
    how_often,
    known_sum,
    range_text,
    shortened,
)
from gpumagic.report.units import listed as listed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import CellBadge, Peak, Setting
    from gpumagic.report.places import CodeLine

_HOST = "cpu"
_LONGEST_NAME = 48
_MOST_LISTED = 6
_MOST_BADGES = 3


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


def on_devices(setting: Setting, devices: Sequence[int]) -> str:
    """The same of several: their number."""
    if len(devices) == 1:
        return on_device(setting, devices[0])
    return f"on {count_text(len(devices), 'device')}"


def short_name(name: str) -> str:
    """A name that fits into a sentence."""
    return shortened(name, _LONGEST_NAME)


def listed(names: Sequence[str], most: int = _MOST_LISTED) -> str:
    """Names in a row, the first few of many."""
    return listed_words([short_name(each) for each in names], ", ", most)


def names_or_none(names: Sequence[str]) -> str:
    """The names that lie in a block."""
    return listed(names) if names else "no name found"


def recorded_in(line: CodeLine | None) -> str:
    """The line that a block was allocated in."""
    return "not recorded" if line is None else line.where


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


# ------------------------------------------------------------------------- peaks


def peak_text(peak: Peak, between: str = " and ") -> str:
    """The peak in a sentence: a figure, or between which figures it lies."""
    if peak.low_bytes is None:
        return UNKNOWN
    low, high = bytes_text(peak.low_bytes), bytes_text(peak.high_bytes)
    if peak.high_bytes is None:
        return f"at least {low}"
    if low == high:
        return low if peak.low_bytes == peak.high_bytes else f"about {low}"
    before = "between " if between == " and " else ""
    return f"{before}{range_text(low, high, between)}"


def peak_short(peak: Peak) -> str:
    """The peak for a bar or a row of a table."""
    return peak_text(peak, " to ")


# ------------------------------------------------------------------------ badges


class _Words(NamedTuple):
    """How a badge is told, with names in braces to be filled in."""

    short: str  # in one line with others
    kind: kit.NoteKind  # how much it matters
    text: str  # what is so
    hint: str  # what to do or to type next
    lasts: bool = False  # it is so of the machine: said once in a row of reports


_LESS = "free unused tensors, or use a smaller batch"
BADGES = {
    BadgeKind.RETRY: _Words(
        "cache emptied",
        "warning",
        "{device} had no memory left: torch emptied its cache and asked again, {times}",
        _LESS,
    ),
    BadgeKind.OOM_CAUGHT: _Words(
        "OOM caught",
        "problem",
        "an out-of-memory error of {device} was raised and caught, {times}",
        "%gpu_mem why",
    ),
    BadgeKind.DRIVER_CALLS: _Words(
        "driver calls",
        "note",
        "memory of {device} was taken from the driver, or given back, {times}: each "
        "call is slow",
        "run it once more: torch keeps the memory that it has got",
        lasts=True,
    ),
    BadgeKind.PENDING: _Words(
        "pending",
        "note",
        "{bytes} on {device} was given back, but another stream still uses it",
        "new tensors can have it once that stream has come so far",
    ),
    BadgeKind.FLUSHED: _Words(
        "cache given back",
        "note",
        "{bytes} of torch's cache went back to the driver of {device}: taking it "
        "again is slow",
        "if the cell calls torch.{kind}.empty_cache(), leave it out; settings of the "
        "allocator and torch.{kind}.graph do the same",
    ),
    BadgeKind.STARTED: _Words(
        "first use",
        "note",
        "{device} was used for the first time in this process: its context takes "
        "memory that torch does not count",
        "%gpu_mem shows it as outside torch",
    ),
    BadgeKind.UNCOUNTED: _Words(
        "no counters",
        "note",
        "this allocator does not keep every counter: what is missing here is unknown",
        "take PYTORCH_NO_CUDA_MEMORY_CACHING and PYTORCH_CUDA_ALLOC_CONF out of the "
        "environment and restart the kernel",
        lasts=True,
    ),
    BadgeKind.SHARED: _Words(
        "shared",
        "note",
        "{device} is shared with {others}: what is free there can change at any time",
        "%gpu_select free chooses another, before CUDA is started",
        lasts=True,
    ),
    BadgeKind.SILENT: _Words(
        "no answer",
        "problem",
        "{device} does not tell what is free: after an error on it nothing works there",
        "restart the kernel: CUDA does not recover from it",
    ),
}


def notes(badges: Iterable[CellBadge], setting: Setting) -> tuple[kit.Note, ...]:
    """A note for each kind of badge, the most serious first, with all its devices."""
    from gpumagic.drawing.document import gravest_first

    same: dict[BadgeKind, list[CellBadge]] = {}
    for badge in badges:
        same.setdefault(badge.kind, []).append(badge)
    return gravest_first(_note(kind, its, setting) for kind, its in same.items())


def _note(kind: BadgeKind, its: list[CellBadge], setting: Setting) -> kit.Note:
    from gpumagic import drawing as kit

    said = BADGES[kind]
    devices = [each.device for each in its if each.device is not None]
    amount = known_sum([each.amount for each in its])
    text = said.text.format(
        device=devices_text(setting.kind, devices) if devices else "the device",
        times=how_often(amount),
        bytes=bytes_text(amount),
        others=count_text(amount, "other process", "other processes"),
    )
    hint = said.hint.format(kind=setting.kind)
    return kit.Note(said.kind, text, hint, said.short if said.lasts else "")


def short_badges(kinds: Iterable[BadgeKind]) -> str:
    """Badges in a word or two each, for one line."""
    said = list(dict.fromkeys(BADGES[kind].short for kind in kinds))
    return listed_words(said, ", ", _MOST_BADGES) if said else ""
