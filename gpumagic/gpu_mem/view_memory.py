"""How things stand: a sentence, and who has which part of each device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Paragraph, Stack, Stacks, Table
from gpumagic.gpu_mem.view_names import names_headline
from gpumagic.gpu_mem.view_terms import device_name, known_sum, of_host, on_device
from gpumagic.report.units import UNKNOWN, bytes_text, count_text, part_text

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
_COUNTERS: tuple[tuple[str, Callable[[Counters], int | None]], ...] = (
    ("Rounding", lambda counters: counters.rounding_bytes),
    ("Pending", lambda counters: counters.pending_bytes),
    ("Stuck", lambda counters: counters.stuck_bytes),
    ("Peak", lambda counters: counters.peak_bytes),
)
_TIMES: tuple[tuple[str, Callable[[Counters], int | None]], ...] = (
    ("Driver calls", lambda counters: counters.driver_calls),
    ("Cache emptied", lambda counters: counters.retries),
    ("OOMs", lambda counters: counters.ooms),
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


def _out_of(part: int, whole: int | None) -> str:
    return bytes_text(part) if whole is None else part_text(part, whole)


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
            _allocated_of(each.counters.allocated_bytes, each.total_bytes),
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


def _allocated_of(part: int | None, whole: int | None) -> str:
    return bytes_text(part) if whole is None else part_text(part, whole)


# ------------------------------------------------------------------- figures


def _one(memory: DeviceMemory, setting: Setting) -> Table:
    columns = (Column("Memory"), Column("Bytes", number=True), Column("What it is"))
    caption = _caption((memory,), setting) if of_host(setting) else ""
    return Table(caption, columns, tuple(_lines(memory, setting)))


def _lines(memory: DeviceMemory, setting: Setting) -> Iterator[tuple[Cell, ...]]:
    allocated = _known(memory.counters.allocated_bytes)
    if of_host(setting):
        yield _ALLOCATED, allocated, "host memory that the notebook's names hold"
        yield "free", _known(memory.free_bytes), "RAM that this process can still use"
        return
    yield _ALLOCATED, allocated, "handed out to tensors, by torch's own counter"
    cached = _known(memory.cached_bytes)
    yield _CACHED, cached, "taken from the driver and not in use"
    yield _OUTSIDE, *_outside(memory)
    yield _OTHERS, _known(memory.others_bytes), _who(memory.other_processes)
    yield "free", _known(memory.free_bytes), "as the driver tells"
    yield "total", _known(memory.total_bytes), ""
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
    heads = ("Allocated", "Cached", "Outside", "Others", "Free", "Total")
    rows = tuple(
        (
            _name(each, devices, setting),
            _known(each.counters.allocated_bytes),
            _known(each.cached_bytes),
            _outside(each)[0],
            _known(each.others_bytes),
            _known(each.free_bytes),
            _known(each.total_bytes),
        )
        for each in devices
    )
    columns = (Column("Device"), *(Column(head, number=True) for head in heads))
    return Table("", columns, rows)


def _counters(devices: Sequence[DeviceMemory], setting: Setting) -> Iterator[Part]:
    """What else the allocator counts; what it does not count for any has no column."""
    all_counters = [each.counters for each in devices]
    columns, cells = [Column("Device")], []
    for (heading, counter), text in (
        *((each, bytes_text) for each in _COUNTERS),
        *((each, _count) for each in _TIMES),
    ):
        amounts = [counter(counters) for counters in all_counters]
        if any(amount is not None for amount in amounts):
            columns.append(Column(heading, number=True))
            cells.append([text(amount) for amount in amounts])
    if cells:
        names = [device_name(setting, counters.device) for counters in all_counters]
        rows = tuple(zip(names, *cells, strict=True))
        table = Table("", tuple(columns), rows)
        yield Details("More of the allocator's counters", (table, Paragraph(_MEANINGS)))


def _known(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)


def _count(times: float | None) -> str:
    return UNKNOWN if times is None else f"{times:,.0f}"
