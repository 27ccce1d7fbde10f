"""Reads memory snapshots of torch: pickles, from which nothing is run, and JSON.

What comes out is as torch 2.13 writes it: whoever works on it need not look again
whether a number is a number.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.gpu_open.files import ends_early, opened
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gpumagic.gpu_open.files import Opened

_MIB = 1 << 20
_PLACED = frozenset(
    {
        *("alloc", "free_requested", "free_completed"),
        *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    }
)
_OTHERS = frozenset({"annotate", "oom", "snapshot"})
_MOST_UNKNOWN = 20
_LONGEST_NAME = 60
_LONGEST_SETTING = 500
_INTERVALS = 16  # of sizes, each up to twice as large as the last
_HOW = "torch.cuda.memory._dump_snapshot(FILE) writes one"

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
    device_free: int | None = None
    time_us: _Number | None = None
    pool_id: tuple[_Number, _Number] | None = None
    frames: Any = None


class _Whole(msgspec.Struct):
    segments: list[_Segment] = []
    device_traces: list[list[_Entry] | None] = []
    allocator_settings: Any = None


@dataclass(frozen=True)
class Snapshot:
    """A memory snapshot as plain data, in the shape of torch's own."""

    # as `torch.cuda.memory_snapshot()` tells them: `device`, `address`, `total_size`,
    # `stream`, `segment_type`, `segment_pool_id`, `is_expandable`, and `blocks` in
    # order with `address`, `size`, `requested_size` (or None), `state` and `frames`
    segments: Sequence[Mapping[str, Any]]
    # for each device its history, oldest first, empty where none was recorded.
    # Entries have `action`, `size`, `stream`; `addr`, or `device_free` if they are an
    # "oom" that tells it; `frames`, `time_us` and `pool_id` where the file has them.
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
        traces = self.device_traces
        return traces[device] if device < len(traces) else ()


def read(path: str | Path) -> Snapshot:
    """A snapshot out of a file."""
    with without_collecting():
        return snapshot_in(opened(path))


def snapshot_in(file: Opened) -> Snapshot:
    """The snapshot in a file that has been opened."""
    name, nbytes = printable(file.name, _LONGEST_NAME), len(file.data)
    is_pickle = file.data[:1] == b"\x80"
    found = _unpickled(file, name) if is_pickle else _from_json(file, name)
    if isinstance(found, list):  # of `torch.cuda.memory_snapshot()`
        found = {"segments": found}
    try:
        if not isinstance(found, dict) or not {"segments", "device_traces"} & set(
            found
        ):
            raise msgspec.ValidationError("it has no segments")  # noqa: TRY301
        whole = msgspec.convert(found, _Whole)
    except (msgspec.ValidationError, TypeError) as error:
        why = printable(first_line(error), 90)
        raise GpuMagicError(f"{name} is no memory snapshot: {why}", _HOW) from None
    unknown: Counter[str] = Counter()
    traces = [list(_entries(each or (), unknown)) for each in whole.device_traces]
    return Snapshot(
        segments=[_segment(each) for each in whole.segments],
        device_traces=traces,
        settings=_settings_text(whole.allocator_settings),
        file=FileRead(
            name=file.name,
            nbytes=nbytes,
            events=sum(map(len, traces)),
            unknown=tuple(unknown.most_common(_MOST_UNKNOWN)),
        ),
    )


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, numbers and text; all that has a name is refused."""

    def __init__(self, data: bytes | bytearray, name: str) -> None:
        super().__init__(io.BytesIO(data))
        self._name = name

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        called = printable(f"{module_name}.{global_name}", 80)
        plain = re.fullmatch(r"[\w.+-]+", self._name, re.ASCII) is not None
        file = self._name if plain else "FILE"
        raise GpuMagicError(
            f"{self._name} needs {called}, and reading it runs nothing: no plain "
            "memory snapshot",
            "if you trust it, convert it where it was made: python -c "
            f"\"import json, pickle; json.dump(pickle.load(open('{file}', 'rb')), "
            f"open('{file}.json', 'w'), default=str)\"",
        )


def _unpickled(file: Opened, name: str) -> Any:
    """The plain data of a pickle; nothing of it is run."""
    try:
        return _PlainUnpickler(file.data, name).load()
    except EOFError:
        raise ends_early(file.name) from None
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        if "truncated" in str(error):
            raise ends_early(file.name) from None
        why = printable(first_line(error), _LONGEST_NAME)
        raise GpuMagicError(
            f"{name} is no whole pickle: {why}", "write or copy it again"
        ) from None


def _from_json(file: Opened, name: str) -> Any:
    try:
        return msgspec.json.decode(file.data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise ends_early(file.name) from None
        why = printable(first_line(error), _LONGEST_NAME)
        raise GpuMagicError(
            f"{name} is no whole JSON: {why}", "write or copy it again"
        ) from None


def _segment(found: _Segment) -> dict[str, Any]:
    address, blocks = found.address, []
    for each in found.blocks:
        # Older versions have another word for it.
        state = each.state.replace("awaiting", "pending")
        blocks.append(
            {
                "address": address,
                "size": each.size,
                "requested_size": each.requested_size,
                "state": state,
                "frames": each.frames if isinstance(each.frames, list) else [],
            }
        )
        address += each.size
    kept = {name: getattr(found, name) for name in found.__struct_fields__}
    return {**kept, "blocks": blocks}


def _entries(
    trace: Sequence[_Entry], unknown: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Those of which it is known what they are about, with what they tell."""
    for each in trace:
        if each.action not in _OTHERS and (
            each.action not in _PLACED or each.addr is None
        ):
            unknown[printable(each.action, _LONGEST_NAME)] += 1
            continue
        told = ((name, getattr(each, name)) for name in each.__struct_fields__)
        entry = {name: value for name, value in told if value is not None}
        if not isinstance(each.frames, list | None):
            del entry["frames"]
        yield entry


# -------------------------------------------------------------------------- settings


def _settings_text(found: Any) -> str | None:
    """As it was written; where it was set otherwise, as it would be written."""
    if not isinstance(found, dict):
        return None
    for kind in ("", "CUDA_", "HIP_"):
        written = found.get(f"PYTORCH_{kind}ALLOC_CONF")
        if isinstance(written, str) and written.strip():
            return written.strip()[:_LONGEST_SETTING]
    return ",".join(_settings(found))


def _settings(found: Mapping[Any, Any]) -> Iterator[str]:
    if found.get("expandable_segments") is True:
        yield "expandable_segments:True"
    most = found.get("max_split_size")
    if type(most) is int and 0 < most < sys.maxsize:
        yield f"max_split_size_mb:{most // _MIB}"
    threshold = found.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        yield f"garbage_collection_threshold:{threshold:g}"
    told = found.get("roundup_power2_divisions")
    told = told if isinstance(told, dict) else {}
    steps = {1 << each: told.get(str(1 << each), 0) for each in range(_INTERVALS)}
    steps = {size: each for size, each in steps.items() if str(size) in told}
    if len(set(steps.values())) == 1 and len(steps) == _INTERVALS and steps[1]:
        yield f"roundup_power2_divisions:{steps[1]}"
    elif any(steps.values()):  # torch fills what is left out: so all of them
        pairs = ",".join(f"{size}:{each}" for size, each in steps.items())
        yield f"roundup_power2_divisions:[{pairs}]"
