"""Reads memory snapshots of torch: pickles, from which nothing is run, and JSON.

What comes out is as torch 2.13 writes it: whoever works on it need not look again
whether a number is a number.
"""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.gpu_open.files import ends_early, opened
from gpumagic.gpu_open.records import FileRead
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gpumagic.gpu_open.files import Opened

_PLACED = frozenset(
    {
        *("alloc", "free_requested", "free_completed"),
        *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    }
)
_LONGEST_NAME = 60
_LONGEST_SETTING = 500
_HOW = "torch.cuda.memory._dump_snapshot(FILE) writes one"
_BROKEN = (
    *(msgspec.DecodeError, pickle.UnpicklingError, EOFError, ValueError, TypeError),
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
)

_Number = Annotated[int, msgspec.Meta(ge=0)]


class _Block(msgspec.Struct, gc=False):
    size: _Number
    state: str
    requested_size: _Number | None = None
    frames: Any = None


class _Segment(msgspec.Struct, gc=False):
    address: _Number
    total_size: _Number
    device: _Number = 0
    stream: _Number = 0
    segment_type: str = "large"
    segment_pool_id: tuple[_Number, _Number] = (0, 0)
    is_expandable: bool = False
    blocks: list[_Block] = []


class _Entry(msgspec.Struct, gc=False):
    action: str
    size: _Number = 0
    stream: _Number = 0
    addr: _Number | None = None
    device_free: _Number | None = None
    frames: Any = None


class _Whole(msgspec.Struct):
    segments: list[_Segment] = []
    device_traces: list[list[_Entry] | None] = []
    allocator_settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Snapshot:
    """A memory snapshot as plain data, in the shape of torch's own."""

    # as `torch.cuda.memory_snapshot()` tells them; `requested_size` may be None
    segments: Sequence[Mapping[str, Any]]
    # for each device its history, oldest first, as `_Entry` has it; empty where none
    # was recorded
    device_traces: Sequence[Sequence[Mapping[str, Any]]]
    # how the allocator was set, as PYTORCH_CUDA_ALLOC_CONF would say it; None where
    # the file does not tell
    settings: str | None
    file: FileRead  # where from

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of those that have memory or a history."""
        recorded = (n for n, trace in enumerate(self.device_traces) if trace)
        return tuple(sorted({*recorded, *(each["device"] for each in self.segments)}))

    def segments_of(self, device: int) -> list[Mapping[str, Any]]:
        """What torch has taken from the driver on a device."""
        return [each for each in self.segments if each["device"] == device]

    def trace_of(self, device: int) -> Sequence[Mapping[str, Any]]:
        """The history of a device; empty where there is none."""
        return next(iter(self.device_traces[device : device + 1]), ())


def read(path: str | Path) -> Snapshot:
    """A snapshot out of a file."""
    with without_collecting():
        return snapshot_in(opened(path))


def snapshot_in(file: Opened) -> Snapshot:
    """The snapshot in a file that has been opened."""
    name = printable(file.name, _LONGEST_NAME)
    found = _plain(file, name)
    try:
        whole = msgspec.convert(found, _Whole)
    except (msgspec.ValidationError, TypeError) as error:
        why = printable(first_line(error), 90)
        raise GpuMagicError(f"{name} is no memory snapshot: {why}", _HOW) from None
    if found.keys().isdisjoint(("segments", "device_traces")):
        raise GpuMagicError(f"{name} is no memory snapshot: it has no segments", _HOW)
    traces = [list(_entries(each or ())) for each in whole.device_traces]
    return Snapshot(
        [_segment(each) for each in whole.segments],
        traces,
        _settings(whole.allocator_settings or {}),
        FileRead(file.name, len(file.data), sum(map(len, traces)), folder=file.folder),
    )


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, numbers and text; all that has a name is refused."""

    def __init__(self, data: bytes | bytearray, name: str) -> None:
        super().__init__(io.BytesIO(data))
        self._name = name

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        called = printable(f"{module_name}.{global_name}", 80)
        plain = re.fullmatch(r"[\w.+-]+", self._name, re.ASCII)
        file = self._name if plain else "FILE"
        raise GpuMagicError(
            f"{self._name} needs {called}, and reading it runs nothing: no plain "
            "memory snapshot",
            "if you trust it, convert it where it was made: python -c "
            f"\"import json, pickle; json.dump(pickle.load(open('{file}', 'rb')), "
            f"open('{file}.json', 'w'), default=str)\"",
        )


def _plain(file: Opened, name: str) -> Any:
    """The plain data of a pickle or of JSON; nothing of it is run."""
    kind = "pickle" if file.data[:1] == b"\x80" else "JSON"
    try:
        if kind == "pickle":
            return _PlainUnpickler(file.data, name).load()
        return msgspec.json.decode(file.data)
    except _BROKEN as error:
        if isinstance(error, EOFError) or "truncated" in str(error):
            raise ends_early(file.name) from None
        why = printable(first_line(error), _LONGEST_NAME)
        problem = f"{name} is no whole {kind}: {why}"
        raise GpuMagicError(problem, "write or copy it again") from None


def _segment(found: _Segment) -> dict[str, Any]:
    address, blocks = found.address, []
    for each in found.blocks:
        block = {"address": address, **msgspec.structs.asdict(each)}
        # Older versions have another word for it.
        block["state"] = each.state.replace("awaiting", "pending")
        blocks.append(block)
        address += each.size
    return {**msgspec.structs.asdict(found), "blocks": blocks}


def _entries(trace: Sequence[_Entry]) -> Iterator[dict[str, Any]]:
    """Those of which it is known what they are about."""
    for each in trace:
        if each.action == "oom" or (each.action in _PLACED and each.addr is not None):
            yield msgspec.structs.asdict(each)


def _settings(found: Mapping[str, Any]) -> str | None:
    """As PYTORCH_CUDA_ALLOC_CONF was set; "" where it was not, None if nobody says."""
    for kind in ("CUDA_", "", "HIP_"):
        written = found.get(f"PYTORCH_{kind}ALLOC_CONF")
        if isinstance(written, str):
            return written.strip()[:_LONGEST_SETTING]
    return None
