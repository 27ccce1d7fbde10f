"""How things stand: a sentence, and who has which part of each device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
)
from gpumagic.gpu_mem.view_names import names_headline, unwanted
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    known_bytes,
    of_host,
    on_device,
)
from gpumagic.report.units import UNKNOWN, bytes_text, count_text, known_sum, part_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import Counters, DeviceMemory, HostMemory, Setting
    from gpumagic.gpu_mem.report import MemoryReport

_MOST_TOLD = 2  # devices
_IN_USE = "in use"
_CACHED = "cached"
_OUTSIDE = "outside torch"
_OTHERS = "others"
_REST = "unknown"
_FREE = "free"
_MEANINGS = {
    _IN_USE: "in tensors",
    _CACHED: "kept by torch for its next tensors",
    _OUTSIDE: "context, kernels, libraries",
    _OTHERS: "other processes",
    _REST: "in use, by whom nobody tells",
}
_LEGEND = tuple(_MEANINGS.items())
_ENDS_AT = 1.1  # times what is in use, where a bar shows no more than that
_WORTH_A_ZOOM = 0.25  # of the device
_Counted = tuple[str, "Callable[[Counters], int | None]", "Callable[[int], str]"]
_COUNTERS: tuple[_Counted, ...] = (
    ("Rounding", lambda counters: counters.rounding_bytes, bytes_text),
    ("Pending", lambda counters: counters.pending_bytes, bytes_text),
    ("In parts", lambda counters: counters.stuck_bytes, bytes_text),
    ("Peak", lambda counters: counters.peak_bytes, bytes_text),
    ("Driver calls", lambda counters: counters.driver_calls, "{:,}".format),
    ("Cache emptied", lambda counters: counters.retries, "{:,}".format),
    ("Out of memory", lambda counters: counters.ooms, "{:,}".format),
)
_OF_COUNTERS = (
    "Rounding: handed out beyond what was asked for.\n"
    "Pending: given back, but still used by another stream.\n"
    "In parts: free parts of segments that are in use.\n"
    "Peak: the most since somebody reset the peaks."
)


def memory_headline(report: MemoryReport) -> str:
    """How much is allocated where, and who holds most of it."""
    if report.why_not is not None:
        return "nothing can be told of the memory yet"
    if not report.devices:
        return "no device is in use, so that nothing is allocated"
    devices, setting, holdings = report.devices, report.setting, report.holdings
    if holdings is not None and (first := unwanted(holdings)):
        allocated = known_sum([each.counters.allocated_bytes for each in devices])
        where = _where(devices, setting)
        return f"{_out_of(first.nbytes, allocated)} {where} is held by {first.words}"
    held = names_headline(holdings)
    said = _devices(devices, setting)
    return f"{said}; {held}" if held else said


def _where(devices: Sequence[DeviceMemory], setting: Setting) -> str:
    if len(devices) > 1:
        return f"allocated on {count_text(len(devices), 'device')}"
    where = on_device(setting, devices[0].counters.device)
    return where if of_host(setting) else f"allocated {where}"


def _devices(devices: tuple[DeviceMemory, ...], setting: Setting) -> str:
    if len(devices) <= _MOST_TOLD:
        return ", ".join(_device(each, setting) for each in devices)
    count = count_text(len(devices), "device")
    allocated = known_sum([each.counters.allocated_bytes for each in devices])
    total = known_sum([each.total_bytes for each in devices])
    if allocated is None:
        return f"how much is allocated on {count} is not counted"
    where = _where_most(devices, setting) if allocated else ""
    return f"{_out_of(allocated, total)} allocated on {count}{where}"


def _where_most(devices: tuple[DeviceMemory, ...], setting: Setting) -> str:
    """On which device; of equal ones none is said to have most."""
    largest = sorted(devices, key=lambda each: -(each.counters.allocated_bytes or 0))
    sizes = [bytes_text(each.counters.allocated_bytes) for each in largest]
    if len(set(sizes)) == 1:
        return f", {sizes[0]} on each"
    if sizes[0] == sizes[1]:
        return ""
    return f", most on {device_name(setting, largest[0].counters.device)}"


def _device(memory: DeviceMemory, setting: Setting) -> str:
    allocated, device = memory.counters.allocated_bytes, memory.counters.device
    where = on_device(setting, device)
    if of_host(setting):
        return f"{bytes_text(allocated)} {where}"
    if allocated is not None:
        return f"{_out_of(allocated, memory.total_bytes)} allocated {where}"
    used = memory.used_bytes
    if used is None:
        return f"what is allocated {where} is unknown"
    in_use = _out_of(used, memory.total_bytes)
    return f"{in_use} used {where}; how much of it by tensors is not counted"


def _out_of(part: int | None, whole: int | None) -> str:
    return bytes_text(part) if whole is None else part_text(part, whole)


# ----------------------------------------------------------- the balance of each device


def bars(devices: Sequence[DeviceMemory], setting: Setting) -> Stacks:
    """A bar for each device, to one scale: whose memory it is.

    Where little of it is in use, the bars end soon behind that, and it is said.
    """
    end = _end_of_bars(devices)
    stacks = tuple(
        Stack(
            device_name(setting, each.counters.device),
            tuple(_pieces(each, end)),
            _beside(each, alone=len(devices) == 1),
        )
        for each in devices
    )
    legend = _with_sizes(devices[0]) if len(devices) == 1 else _LEGEND
    return Stacks(_caption(devices, end), stacks, legend)


def _sizes(memory: DeviceMemory) -> dict[str, int]:
    """Each kind with its size; what is left of the used is by nobody known."""
    sizes = {
        _IN_USE: memory.counters.allocated_bytes or 0,
        _CACHED: memory.cached_bytes or 0,
        _OUTSIDE: memory.outside_bytes or 0,
        _OTHERS: memory.others_bytes or 0,
    }
    sizes[_REST] = max((memory.used_bytes or 0) - sum(sizes.values()), 0)
    return sizes


def _end_of_bars(devices: Sequence[DeviceMemory]) -> int | None:
    """Where bars end that would be nearly empty; None where they are whole."""
    totals = [each.total_bytes for each in devices if each.total_bytes is not None]
    used = max(sum(_sizes(each).values()) for each in devices)
    if len(totals) < len(devices) or not 0 < used < _WORTH_A_ZOOM * max(totals):
        return None
    return min(1 << int(used * _ENDS_AT).bit_length(), max(totals))


def _pieces(memory: DeviceMemory, end: int | None) -> Iterator[tuple[str, float]]:
    sizes = _sizes(memory)
    yield from ((kind, size) for kind, size in sizes.items() if size)
    if memory.total_bytes is not None:
        length = memory.total_bytes if end is None else min(end, memory.total_bytes)
        yield _FREE, max(length - sum(sizes.values()), 0)


def _beside(memory: DeviceMemory, *, alone: bool) -> str:
    """The figure at the end of a bar: of one bar the legend tells the others."""
    if alone and memory.free_bytes is not None:
        return f"{bytes_text(memory.free_bytes)} free"
    return _out_of(memory.counters.allocated_bytes, memory.total_bytes)


def _with_sizes(memory: DeviceMemory) -> tuple[tuple[str, str], ...]:
    sizes = _sizes(memory)
    return tuple(
        (kind, f"{bytes_text(sizes[kind])} {meaning}") for kind, meaning in _LEGEND
    )


def _caption(devices: Sequence[DeviceMemory], end: int | None) -> str:
    """What the bars are of; the model where all have the same."""
    if end is not None:
        total = max(each.total_bytes or 0 for each in devices)
        ends = "the bar ends" if len(devices) == 1 else "the bars end"
        return f"Memory now: {ends} at {part_text(end, total)}"
    models = {each.name for each in devices}
    model = models.pop() if len(models) == 1 else None
    count = f"{len(devices)} x " if len(devices) > 1 else ""
    return "Memory now" if model is None else f"Memory now, {count}{model}"


# ----------------------------------------------------------------- all of its figures


def balance_details(
    devices: Sequence[DeviceMemory], setting: Setting, host: HostMemory | None = None
) -> Details:
    """The figures behind the bars, and the allocator's other counters."""
    one = len(devices) == 1
    table = _one(devices[0], setting) if one else _several(devices, setting)
    parts: list[Part] = [table]
    if host is not None:
        kept = part_text(host.allocated_bytes, host.reserved_bytes)
        parts.append(
            Paragraph(f"Page-locked host memory: {kept} that torch keeps is in use.")
        )
    parts += _counters([each.counters for each in devices], setting)
    return Details("All figures of the memory", tuple(parts), "counters")


def _one(memory: DeviceMemory, setting: Setting) -> Grid:
    return Grid("", tuple(_lines(memory, setting)))


def _lines(memory: DeviceMemory, setting: Setting) -> Iterator[tuple[str, Cell]]:
    if memory.name is not None:
        yield device_name(setting, memory.counters.device), memory.name
    yield _IN_USE, known_bytes(memory.counters.allocated_bytes)
    if not of_host(setting):
        yield _CACHED, known_bytes(memory.cached_bytes)
        yield _OUTSIDE, _outside(memory)
        yield _OTHERS, _others(memory)
    yield _FREE, known_bytes(memory.free_bytes)
    if not of_host(setting):
        yield "total", known_bytes(memory.total_bytes)
    if memory.cap_bytes is not None:
        yield "limit of this process", bytes_text(memory.cap_bytes)


def _outside(memory: DeviceMemory) -> str | None:
    if memory.outside_bytes is not None:
        return bytes_text(memory.outside_bytes)
    used, reserved = memory.used_bytes, memory.counters.reserved_bytes
    if used is None or reserved is None:
        return None
    return f"at most {bytes_text(max(used - reserved, 0))}"


def _others(memory: DeviceMemory) -> str | None:
    """What other processes hold, and how many they are, as far as either is known."""
    held = known_bytes(memory.others_bytes)
    if memory.other_processes is None:
        return held
    count = count_text(memory.other_processes, "process", "processes")
    return f"{held or UNKNOWN} ({count})"


def _several(devices: Sequence[DeviceMemory], setting: Setting) -> Table:
    same = len({each.name for each in devices}) == 1

    def name(memory: DeviceMemory) -> str:
        device = device_name(setting, memory.counters.device)
        return device if same or not memory.name else f"{device}, {memory.name}"

    properties = (
        Property(Column("Device"), name),
        figures("In use", lambda each: each.counters.allocated_bytes),
        figures("Cached", lambda each: each.cached_bytes),
        Property(Column("Outside", number=True), _outside),
        figures("Others", lambda each: each.others_bytes),
        figures("Free", lambda each: each.free_bytes),
        figures("Total", lambda each: each.total_bytes),
    )
    return Table.of("", properties, devices)


def _counters(counters: Sequence[Counters], setting: Setting) -> Iterator[Part]:
    """What else the allocator counts; what it does not count for any is left out."""
    known = [
        (heading, figure, text)
        for heading, figure, text in _COUNTERS
        if any(figure(each) is not None for each in counters)
    ]
    none = [
        heading.lower()
        for heading, figure, _ in known
        if all(figure(each) == 0 for each in counters)
    ]
    some = [figures(*each) for each in known if each[0].lower() not in none]
    if len(counters) == 1 and some:
        pairs = ((each.column.heading, each.cell(counters[0])) for each in some)
        yield Grid("The allocator's other counters", tuple(pairs))
    elif some:
        name = Property(
            Column("Device"), lambda each: device_name(setting, each.device)
        )
        yield Table.of("The allocator's other counters", (name, *some), counters)
    if none:
        yield Paragraph(f"Counted, and zero: {', '.join(none)}.")
    if known:
        yield Paragraph(_OF_COUNTERS)
