"""How things stand: a sentence, and who has which part of each device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Paragraph, Property, Stack, Stacks, Table
from gpumagic.drawing.document import known_sum
from gpumagic.gpu_mem.view_names import names_headline
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    known_bytes,
    of_host,
    on_device,
)
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import Counters, DeviceMemory, HostMemory, Setting
    from gpumagic.gpu_mem.report import MemoryReport

_MOST_TOLD = 2  # devices
_ALLOCATED = "allocated"
_CACHED = "cached"
_OUTSIDE = "outside the allocator"
_OTHERS = "other processes"
_REST = "used, by whom is unknown"
_LEGEND = (
    (_ALLOCATED, "in tensors"),
    (_CACHED, "kept by torch for its next tensors"),
    (_OUTSIDE, "context, kernels, libraries"),
    (_OTHERS, ""),
    (_REST, ""),
)
_Counted = tuple[str, "Callable[[Counters], int | None]", "Callable[[int], str]"]
_COUNTERS: tuple[_Counted, ...] = (
    ("Rounding", lambda counters: counters.rounding_bytes, bytes_text),
    ("Pending", lambda counters: counters.pending_bytes, bytes_text),
    ("Stuck", lambda counters: counters.stuck_bytes, bytes_text),
    ("Peak", lambda counters: counters.peak_bytes, bytes_text),
    ("Driver calls", lambda counters: counters.driver_calls, "{:,}".format),
    ("Cache emptied", lambda counters: counters.retries, "{:,}".format),
    ("OOMs", lambda counters: counters.ooms, "{:,}".format),
)
_MEANINGS = (
    "Rounding: handed out beyond what was asked for. Pending: given back, but awaited "
    "by another stream. Stuck: free parts of segments that are in use. Peak: the most "
    "since somebody reset the peaks."
)


def memory_headline(report: MemoryReport) -> str:
    """How much is allocated where, and who holds most of it."""
    if report.why_not is not None:
        return "nothing can be told of the memory yet"
    if not report.devices:
        return "no device is in use, so that nothing is allocated"
    held = names_headline(report.holdings)
    said = _devices(report.devices, report.setting)
    return f"{said}; {held}" if held else said


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
    used = used_bytes(memory)
    if used is None:
        return f"what is allocated {where} is unknown"
    in_use = _out_of(used, memory.total_bytes)
    return f"{in_use} used {where}; how much of it by tensors is not counted"


def _out_of(part: int | None, whole: int | None) -> str:
    return bytes_text(part) if whole is None else part_text(part, whole)


# ----------------------------------------------------------- the balance of each device


def balance_parts(
    devices: Sequence[DeviceMemory], setting: Setting, host: HostMemory | None = None
) -> Iterator[Part]:
    """The bar of each device, its figures, and the counters behind them."""
    if not devices:
        return
    if not of_host(setting):  # of the host no total is known: a bar would be full
        yield bars(devices, setting)
    if len(devices) == 1:
        yield _one(devices[0], setting)
    else:
        yield _several(devices, setting)
    if host is not None:
        kept = part_text(host.allocated_bytes, host.reserved_bytes)
        yield Paragraph(f"Page-locked host memory: {kept} that torch keeps is in use.")
    yield from _counters(devices, setting)


def bars(devices: Sequence[DeviceMemory], setting: Setting) -> Stacks:
    """A bar for each device, to one scale: whose memory it is."""
    legend = ((_ALLOCATED, "by names"),) if of_host(setting) else _LEGEND
    stacks = tuple(
        Stack(
            device_name(setting, each.counters.device),
            tuple(_pieces(each)),
            _out_of(each.counters.allocated_bytes, each.total_bytes),
        )
        for each in devices
    )
    return Stacks(_caption(devices, setting), stacks, legend)


def used_bytes(memory: DeviceMemory) -> int | None:
    """What of the device is in use, by whomever."""
    if memory.total_bytes is None or memory.free_bytes is None:
        return None
    return memory.total_bytes - memory.free_bytes


def _pieces(memory: DeviceMemory) -> Iterator[tuple[str, float]]:
    """Each kind with its size; what is left of the used is by nobody known."""
    sizes = {
        _ALLOCATED: memory.counters.allocated_bytes or 0,
        _CACHED: memory.cached_bytes or 0,
        _OUTSIDE: memory.outside_bytes or 0,
        _OTHERS: memory.others_bytes or 0,
    }
    used = used_bytes(memory)
    sizes[_REST] = max((used or 0) - sum(sizes.values()), 0)
    yield from ((kind, size) for kind, size in sizes.items() if size)
    if memory.total_bytes is not None:
        yield "", max(memory.total_bytes - sum(sizes.values()), 0)


def _caption(devices: Sequence[DeviceMemory], setting: Setting) -> str:
    """What the bars are of; the model where all have the same."""
    if of_host(setting):
        return "Memory of this machine now"
    models = {each.name for each in devices}
    model = models.pop() if len(models) == 1 else None
    if model is None:
        return "Memory now"
    count = f"{len(devices)} x " if len(devices) > 1 else ""
    return f"Memory now, {count}{model}"


def _name(
    memory: DeviceMemory, devices: Sequence[DeviceMemory], setting: Setting
) -> str:
    """The device, with its model where not all have the same."""
    name = device_name(setting, memory.counters.device)
    same = len({each.name for each in devices}) == 1
    return name if same or not memory.name else f"{name}, {memory.name}"


# ------------------------------------------------------------------- figures


def _one(memory: DeviceMemory, setting: Setting) -> Table:
    columns = (Column("Memory"), Column("Bytes", number=True), Column("What it is"))
    caption = _caption((memory,), setting) if of_host(setting) else ""
    return Table(caption, columns, tuple(_lines(memory, setting)))


def _lines(memory: DeviceMemory, setting: Setting) -> Iterator[tuple[Cell, ...]]:
    allocated = known_bytes(memory.counters.allocated_bytes)
    if of_host(setting):
        yield _ALLOCATED, allocated, "host memory that the notebook's names hold"
        yield (
            "free",
            known_bytes(memory.free_bytes),
            "RAM that this process can still use",
        )
        return
    yield _ALLOCATED, allocated, "handed out to tensors, by torch's own counter"
    cached = known_bytes(memory.cached_bytes)
    yield _CACHED, cached, "taken from the driver and not in use"
    yield _OUTSIDE, *_outside(memory)
    yield _OTHERS, known_bytes(memory.others_bytes), _who(memory.other_processes)
    yield "free", known_bytes(memory.free_bytes), "as the driver tells"
    yield "total", known_bytes(memory.total_bytes), ""
    if memory.cap_bytes is not None:
        yield "limit", bytes_text(memory.cap_bytes), "what this process may take"


def _outside(memory: DeviceMemory) -> tuple[Cell, Cell]:
    said = "context, loaded kernels, libraries: in no counter of torch"
    if memory.outside_bytes is not None:
        return bytes_text(memory.outside_bytes), said
    used, reserved = used_bytes(memory), memory.counters.reserved_bytes
    if used is None or reserved is None:
        return None, said
    most = max(used - reserved, 0)
    return f"at most {bytes_text(most)}", f"{said}; other processes may be in it"


def _who(processes: int | None) -> str:
    if processes is None:
        return "whether there are any cannot be told here"
    return count_text(processes, "process", "processes")


def _several(devices: Sequence[DeviceMemory], setting: Setting) -> Table:
    properties = (
        Property(Column("Device"), lambda each: _name(each, devices, setting)),
        figures("Allocated", lambda each: each.counters.allocated_bytes),
        figures("Cached", lambda each: each.cached_bytes),
        Property(Column("Outside", number=True), lambda each: _outside(each)[0]),
        figures("Others", lambda each: each.others_bytes),
        figures("Free", lambda each: each.free_bytes),
        figures("Total", lambda each: each.total_bytes),
    )
    return Table.of("", properties, devices)


def _counters(devices: Sequence[DeviceMemory], setting: Setting) -> Iterator[Part]:
    """What else the allocator counts; what it does not count for any has no column."""
    counters = [each.counters for each in devices]
    properties = [
        figures(heading, figure, text)
        for heading, figure, text in _COUNTERS
        if any(figure(each) is not None for each in counters)
    ]
    if properties:
        name = Property(
            Column("Device"), lambda each: device_name(setting, each.device)
        )
        table = Table.of("", (name, *properties), counters)
        yield Details("More of the allocator's counters", (table, Paragraph(_MEANINGS)))
