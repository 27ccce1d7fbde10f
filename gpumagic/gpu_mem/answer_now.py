"""How things stand: who has which part of the memory, and whose names hold it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_mem.records import NO_HOLDINGS, BadgeKind, HolderKind, short
from gpumagic.report.record import Report
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    devices_text,
    how_often,
    known_sum,
    listed,
    part_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import (
        CellBadge,
        DeviceMemory,
        Holder,
        Holdings,
        Setting,
    )

NOT_STARTED = "no GPU memory is in use yet"
USE_ONE = 'make a tensor on one; gpumagic.simulate("h100") gives a GPU to look at'
_MOST_TOLD = 2  # devices in the title
_MOST_BADGES = 3
_FEWEST_ROWS = 3  # a name, the others, and the sum
_MOST_FOLDED = 50  # names
_IN_USE, _FREE, _OTHERS, _OUTSIDE = "in use", "free", "others", "outside torch"
_LEGEND = (
    (_IN_USE, "in tensors"),
    ("cached", "kept by torch for its next tensors"),
    (_OUTSIDE, "context, kernels, libraries"),
    (_OTHERS, "other processes"),
    ("unknown", "in use, by whom is unknown"),
)
_ENDS_AT = 1.1  # times what is in use, where a bar shows no more than that
_WORTH_A_ZOOM = 0.25  # of the device
_MEANING = (
    "Holds: all that is reached from a name. Alone: what comes back if only that name "
    "goes.\nMemory that several names reach needs all of them to go."
)
_PARTIAL = (
    "the search for names was ended early: names hold at least this, and no name "
    "found is at most this"
)
_HOW = "In use is torch's own counter; what is free is told by the driver."
_UNWANTED = {
    HolderKind.ERROR: "a failed call: %gpu_mem leaks",
    HolderKind.OUTPUT: "shown results: %gpu_mem leaks",
    HolderKind.UNATTRIBUTED: "no name that was found",
}


@dataclass(frozen=True)
class MemoryReport(Report):
    """How things stand: the balance, and the names that hold most."""

    setting: Setting
    devices: tuple[DeviceMemory, ...]
    holdings: Holdings = NO_HOLDINGS
    badges: tuple[CellBadge, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, the bars, the names, and behind them the figures."""
        return screen(headline(self), _parts(self), self.setting)


def headline(report: MemoryReport) -> str:
    """How much is allocated where, and who holds most of it."""
    devices, setting = report.devices, report.setting
    if not devices:
        return NOT_STARTED
    allocated = known_sum([each.counters.allocated_bytes for each in devices])
    where = setting.on(*(each.counters.device for each in devices))
    if first := unwanted(report.holdings):
        held = f"allocated {where} is held by {first.words}"
        return f"{_out_of(first.nbytes, allocated)} {held}"
    if len(devices) <= _MOST_TOLD:
        said = ", ".join(_device(each, setting) for each in devices)
    else:
        total = known_sum([each.total_bytes for each in devices])
        said = f"{_out_of(allocated, total)} allocated {where}"
    return "; ".join(filter(None, (said, _who_holds_most(report.holdings))))


def _device(memory: DeviceMemory, setting: Setting) -> str:
    allocated, total = memory.counters.allocated_bytes, memory.total_bytes
    where = setting.on(memory.counters.device)
    if allocated is not None:
        return f"{_out_of(allocated, total)} allocated {where}"
    in_use = _out_of(memory.used_bytes, total)
    return f"{in_use} used {where}; how much of it by tensors is not counted"


def _out_of(part: int | None, whole: int | None) -> str:
    return bytes_text(part) if whole is None or part is None else part_text(part, whole)


class Unwanted(NamedTuple):
    """The largest part of the memory where no name of the user's has it."""

    nbytes: int
    delta_bytes: int  # how much more that is than before the cell
    words: str  # what holds it, and what to type


def unwanted(holdings: Holdings) -> Unwanted | None:
    """What is held by an error, by shown results or by nobody, if that is most."""
    sums: Counter[HolderKind] = Counter()
    for _, kind, nbytes in holdings.sums:
        sums[kind] += nbytes
    if holdings.partial:
        del sums[HolderKind.UNATTRIBUTED]
    kind = max(_UNWANTED, key=lambda kind: sums[kind])
    named = (each for each in holdings.holders if each.kind not in _UNWANTED)
    if sums[kind] <= max((each.reachable_bytes for each in named), default=0):
        return None
    deltas = [each.delta_bytes for each in holdings.holders if each.kind is kind]
    return Unwanted(sums[kind], sum(deltas), _UNWANTED[kind])


def _who_holds_most(holdings: Holdings) -> str:
    """Who that is, in half a sentence; empty where nobody is found."""
    rows = together(holdings.holders)
    found = [each for each in rows if each.kind is not HolderKind.UNATTRIBUTED]
    if not found:
        return ""
    first = max(found, key=lambda row: row.reachable_bytes)
    said = [short(first.name), "holds", bytes_text(first.reachable_bytes)]
    if first.kind is HolderKind.LIBRARY:
        said[1] = "hold"
    if holdings.partial:
        said.insert(2, "at least")
    if first.shares_with:
        said[-1] += f", some of it with {short(first.shares_with)}"
    return " ".join(said)


# ------------------------------------------------------------------- the screen


def _parts(report: MemoryReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    devices, setting, holdings = report.devices, report.setting, report.holdings
    if not devices:
        yield kit.Note("note", "a GPU is in use with its first tensor", USE_ONE)
        return
    yield bars(devices, setting)
    told = notes(report.badges, setting)
    yield from told
    room = max(MOST_ROWS - len(told) - len(devices) + 1, _FEWEST_ROWS)
    yield from names_parts(holdings, setting, room=room)
    several = len(devices) > 1
    tables = (
        _figures(each, setting.device(each.counters.device) if several else "")
        for each in devices
    )
    yield kit.Details("All figures of the memory", tuple(tables), "counters")
    yield kit.how_measured(kit.Paragraph(_HOW))


def bars(devices: Sequence[DeviceMemory], setting: Setting) -> kit.Stacks:
    """A bar for each device, to one scale: whose memory it is."""
    from gpumagic import drawing as kit

    largest = max(each.total_bytes or 0 for each in devices)
    end = _end_of_bars(devices, largest)
    stacks = []
    for each in devices:
        sizes = _sizes(each)
        pieces = [(kind, float(size)) for kind, size in sizes.items() if size]
        length = min(end, each.total_bytes or 0)
        pieces.append((_FREE, max(length - sum(sizes.values()), 0)))
        beside = _out_of(each.counters.allocated_bytes, each.total_bytes)
        if len(devices) == 1:  # the legend tells the others
            beside = f"{bytes_text(each.free_bytes)} free"
        name = setting.device(each.counters.device)
        stacks.append(kit.Stack(name, tuple(pieces), beside))
    legend: tuple[tuple[str, str], ...] = _LEGEND
    if len(devices) == 1:
        sizes = _sizes(devices[0])
        legend = tuple((kind, f"{bytes_text(sizes[kind])} {m}") for kind, m in _LEGEND)
    caption = "Memory now"
    if end < largest:
        caption += f": drawn up to {bytes_text(end)} of {bytes_text(largest)}"
    elif len({each.name for each in devices}) == 1 and devices[0].name:
        caption += f", {devices[0].name}"
    return kit.Stacks(caption, tuple(stacks), legend)


def _sizes(memory: DeviceMemory) -> dict[str, int]:
    """Each kind with its size; what is left of the used is by nobody known."""
    known = (
        memory.counters.allocated_bytes,
        memory.cached_bytes,
        memory.outside_bytes,
        memory.others_bytes,
    )
    sizes = [each or 0 for each in known]
    rest = max((memory.used_bytes or 0) - sum(sizes), 0)
    return dict(zip((kind for kind, _ in _LEGEND), (*sizes, rest), strict=True))


def _end_of_bars(devices: Sequence[DeviceMemory], largest: int) -> int:
    """Where bars end: those that would be nearly empty, before the device does."""
    used = max(sum(_sizes(each).values()) for each in devices)
    if not 0 < used < _WORTH_A_ZOOM * largest:
        return largest
    return min(1 << int(used * _ENDS_AT).bit_length(), largest)


def _figures(memory: DeviceMemory, name: str) -> kit.Part:
    """The figures behind a bar, and the allocator's others."""
    from gpumagic import drawing as kit

    counters = memory.counters
    figures = {
        "in use": counters.allocated_bytes,
        "cached": memory.cached_bytes,
        "outside torch": memory.outside_bytes,
        "others": memory.others_bytes,
        "free": memory.free_bytes,
        "total": memory.total_bytes,
        "peak so far": counters.peak_bytes,
    }
    if memory.cap_bytes is not None:
        figures["limit of this process"] = memory.cap_bytes
    told = [("device", memory.name or name)]
    told += [(name, bytes_text(nbytes)) for name, nbytes in figures.items()]
    return kit.Grid(name, tuple(told))


# -------------------------------------------------- every screen, and columns of tables


def screen(title: str, parts: Iterable[kit.Part], setting: Setting) -> kit.Drawing:
    """An answer of one screen, with the label of a simulated machine."""
    from gpumagic import drawing as kit

    return kit.Drawing(title, kit.one_screen(parts), setting.label)


def figures(
    heading: str,
    figure: Callable[[Any], int | None],
    text: Callable[[int | None], str] = bytes_text,
) -> kit.Property:
    """A column of numbers, each unknown or in words."""
    from gpumagic import drawing as kit

    column = kit.Column(heading, number=True)
    return kit.Property(column, lambda each: text(figure(each)))


def words(heading: str, cell: Callable[[Any], Any]) -> kit.Property:
    """A column of words."""
    from gpumagic import drawing as kit

    return kit.Property(kit.Column(heading), cell)


def devices(setting: Setting) -> kit.Property:
    """The column of devices, of whatever has a `device`."""
    return words("Device", lambda each: setting.device(each.device))


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
        "let it out once, without try and except: %gpu_mem why explains it then",
    ),
    BadgeKind.DRIVER_CALLS: _Words(
        "note",
        "memory of {device} was taken from the driver, or given back, {times}: each "
        "call is slow",
        "run it once more: torch keeps the memory that it has got",
        lasts=True,
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
        said, amount = BADGES[kind], sum(each.amount for each in its)
        text = said.text.format(
            device=devices_text(setting.kind, [each.device for each in its]),
            times=how_often(amount),
            others=count_text(amount, "other process", "other processes"),
        )
        word = kind.value if said.lasts else ""
        found.append(kit.Note(said.kind, text, said.hint, word))
    return gravest_first(found)


def short_badges(badges: Iterable[CellBadge]) -> str:
    """Badges in a word or two each, for one line."""
    said = dict.fromkeys(each.kind.value for each in badges)
    return listed([*said], ", ", _MOST_BADGES)


# -------------------------------------------------------------------- the names


def names_parts(
    holdings: Holdings, setting: Setting, *, room: int
) -> Iterator[kit.Part]:
    """The names that hold most, and behind them all that is known of each."""
    from gpumagic import drawing as kit

    if not holdings.holders:
        return  # there is nothing to hold
    if room:
        yield names_table(holdings, room=room)
    if holdings.partial:
        yield kit.Note("note", _PARTIAL, word="search ended early")
    remarks = (kit.Note("note", remark) for remark in holdings.remarks)
    table = _whole_table(holdings, setting)
    summary = "All that is known of the names"
    yield kit.Details(summary, (table, kit.Paragraph(_MEANING), *remarks), "names")


def names_table(holdings: Holdings, *, room: int) -> kit.Table:
    """The largest names, what the others hold, and the sum, in so many rows."""
    from gpumagic import drawing as kit

    sums = list(_sums(holdings))
    rows = sorted(together(holdings.holders), key=lambda row: -row.reachable_bytes)
    room = max(room - len(sums), 1)
    most = max(room - (len(rows) > room), 1)
    # What a cell has changed comes before the rest.
    ordered = sorted(rows, key=lambda row: -abs(row.delta_bytes))
    shown = [row for row in rows if any(row is each for each in ordered[:most])]
    columns = tuple(_columns(holdings))
    if more := [row for row in rows if row not in shown]:
        sums.insert(0, (count_text(len(more), "more name"), _alone(more)))
    # Of several names only what they hold alone can be told.
    cells = (
        (name, *[""] * (len(columns) - 2), bytes_text(nbytes)) for name, nbytes in sums
    )
    table = kit.Table.of("Who holds it", columns, shown)
    return replace(table, rows=(*table.rows, *cells))


def _whole_table(holdings: Holdings, setting: Setting) -> kit.Table:
    """Each name on each device, with whom it shares."""
    from gpumagic import drawing as kit

    holders = holdings.holders
    columns = [*_columns(holdings)]
    if len({each.device for each in holders}) > 1:
        columns.insert(1, devices(setting))
    if any(each.shares_with for each in holders):
        columns.append(words("Shared with", lambda each: each.shares_with))
    rows = holders[:_MOST_FOLDED]
    return kit.Table.of("Who holds it", columns, rows, total=len(holders))


def _columns(holdings: Holdings) -> Iterator[kit.Property]:
    """Those that would say nothing in any row are left out."""
    yield words("Name", lambda each: each.name)
    yield figures("Holds", lambda each: each.reachable_bytes)
    if any(each.delta_bytes for each in holdings.holders):
        yield figures("Change", lambda each: each.delta_bytes, change_text)
    yield figures("Alone", lambda each: each.own_bytes)


def _sums(holdings: Holdings) -> Iterator[tuple[str, int]]:
    """What the rows come to, and what lies between that and the allocator's count."""
    own = _alone(holdings.holders)
    if not holdings.allocated_bytes:
        return
    allocated = sum(nbytes for _, nbytes in holdings.allocated_bytes)
    if allocated > own:
        yield "held by several names", allocated - own
    elif allocated < own:
        yield "held, but not counted by the allocator", allocated - own
    yield "allocated", allocated


def _alone(holders: Iterable[Holder]) -> int:
    return sum(each.own_bytes for each in holders)


def together(holders: Iterable[Holder]) -> list[Holder]:
    """Each name once, with the sums of its devices, in the order of the first."""
    same: dict[tuple[HolderKind, str], Holder] = {}
    for each in holders:
        row, key = each, (each.kind, each.name)
        if before := same.get(key):
            row = replace(
                before,
                own_bytes=before.own_bytes + each.own_bytes,
                reachable_bytes=before.reachable_bytes + each.reachable_bytes,
                shares_with=before.shares_with or each.shares_with,
                delta_bytes=before.delta_bytes + each.delta_bytes,
            )
        same[key] = row
    return list(same.values())
