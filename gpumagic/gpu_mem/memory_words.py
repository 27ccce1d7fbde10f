"""How things stand, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.balance_section import used_bytes
from gpumagic.gpu_mem.device_words import device_name, known_sum, of_host, on_device
from gpumagic.gpu_mem.names_section import names_headline
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records.devices import DeviceMemory
    from gpumagic.gpu_mem.records.setting import Setting
    from gpumagic.gpu_mem.report import MemoryReport

_MOST_TOLD = 2  # devices


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
