"""Reads memory snapshots of torch, as pickles and as JSON, of all its versions.

What comes out is as torch 2.13 writes it, and only that: whoever works on it need not
look again whether a number is a number. A field that is missing has its default. An
entry without which nothing can be told is left out, and it is said how many there are.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.gpu_open.files import opened
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.gpu_open.unpickler import CutPickle, unpickled
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import count_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpumagic.gpu_open.files import Opened

MIB = 1 << 20
_MOST_BYTES = 2 << 30  # unpacked; Python makes some ten times as much of it
_MOST = (1 << 64) - 1  # of an address or a size
_JSON = (b"{", b"[", b" ", b"\t", b"\r", b"\n", b"\xef")  # no pickle begins so
_PLACED = frozenset(
    {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
    }
)
_OTHERS = frozenset({"annotate", "oom", "snapshot"})
_STATES = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",  # as older versions spell it
    "inactive": "inactive",
}
_MOST_UNKNOWN = 20
_LONGEST_NAME = 60
_LONGEST_SETTING = 500
_INTERVALS = 16  # of sizes, each up to twice as large as the last
_SEGMENTS = re.compile(rb'\s*\{\s*"segments"\s*:\s*(?=\[)')
_STACK = re.compile(r'"frames"\s*:\s*\[')  # in a string, quotes are not bare
_MOST_ENDS = 8  # in one stack, before it is read in the usual way
_CUT = "the file ends in the middle: the history is missing"
_HOW = "torch.cuda.memory._dump_snapshot(FILE) writes one"


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


def read(path: str | Path) -> Snapshot:
    """A snapshot out of a file: pickle or JSON, plain, gzip or zip.

    Nothing of the file is run.
    """
    with without_collecting():
        return snapshot_in(opened(path, most_bytes=_MOST_BYTES))


def snapshot_in(file: Opened) -> Snapshot:
    """The snapshot in a file that has been opened."""
    found, missing = _plain(file)
    if isinstance(found, list):  # of `torch.cuda.memory_snapshot()`
        found = {"segments": found}
    if not isinstance(found, dict) or not found.keys() & {"segments", "device_traces"}:
        raise _none_in(file, _is(found))
    segments = _listed(found, "segments", file)
    traces = [_of_device(each, file) for each in _listed(found, "device_traces", file)]
    _require_each_once(segments, traces, file)
    wrong: Counter[tuple[str, ...]] = Counter()
    unknown: Counter[str] = Counter()
    kept_segments = list(_segments(segments, wrong))
    kept_traces = [_entries(each, wrong, unknown) for each in traces]
    if wrong and not kept_segments and not any(kept_traces):
        raise _none_in(file, _missing(missing, wrong) or "")
    return Snapshot(
        segments=kept_segments,
        device_traces=kept_traces,
        settings=_settings_text(found.get("allocator_settings")),
        file=FileRead(
            name=file.name,
            nbytes=len(file.data),
            events=sum(map(len, kept_traces)),
            missing=_missing(missing, wrong),
            unknown=tuple(unknown.most_common(_MOST_UNKNOWN)),
        ),
    )


def _plain(file: Opened) -> tuple[Any, str | None]:
    """What is in it, and what of that is missing."""
    if file.kind == "trace":
        raise _none_in(file, "it is a trace of the profiler")
    if not file.data:
        raise _none_in(file, "it is empty")
    try:
        if file.data.startswith(_JSON):
            return _read_json(file)
        return _read_pickle(file)
    except GpuMagicError as error:
        if file.missing is None:
            raise
        raise GpuMagicError(f"{error.problem}; {file.missing}", error.hint) from None


def _read_pickle(file: Opened) -> tuple[Any, str | None]:
    try:
        return unpickled(file.data, file.name), file.missing
    except CutPickle as cut:
        segments = _finished_segments(cut.objects)
        if not segments:
            raise
        return segments, _CUT


def _finished_segments(objects: Sequence[Any]) -> list[Any]:
    """Segments come before the history: they are whole once that has begun."""
    if "device_traces" not in (each for each in objects if isinstance(each, str)):
        return []
    lists = (each for each in objects if isinstance(each, list) and each)
    return next((each for each in lists if _is_segment(each[0])), [])


def _is_segment(value: Any) -> bool:
    return isinstance(value, dict) and {"address", "blocks"} <= value.keys()


def _read_json(file: Opened) -> tuple[Any, str | None]:
    try:
        return _decoded(file.data), file.missing
    except (ValueError, RecursionError, MemoryError) as broken:
        segments = _segments_alone(file.data)
        if segments:
            return segments, _CUT
        raise GpuMagicError(
            f"{printable(file.name, _LONGEST_NAME)} is no whole JSON: "
            f"{printable(first_line(broken), _LONGEST_NAME)}",
            "it may have been cut: write or copy it again",
        ) from None


def _decoded(data: bytes) -> Any:
    """A whole JSON whose stacks, nine tenths of it, are each read but once.

    Those that are alike are one list, as they are in a pickle.

    >>> _decoded(b'[{"frames": [{"name": "a[{0}]"}]}, {"frames":[]}, {"frames": 1}]')
    [{'frames': [{'name': 'a[{0}]'}]}, {'frames': []}, {'frames': 1}]
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    mark = os.urandom(16).hex()  # no file can have it, in whatever way it is written
    first, *others = _STACK.split(text.removeprefix("\ufeff"))
    read: dict[str, tuple[int, Any]] = {}  # by its text, each with its place
    pieces = [first]
    for each in others:
        end = 1 if each.startswith("]") else 0
        for _ in range(_MOST_ENDS):
            end = end or each.find("}]") + 2
            stack = each[:end]
            if stack in read or _is_read(stack, read):
                break
            end = each.find("}]", end) + 2
        else:  # written over many lines, or cut
            return json.loads(data)
        pieces += f'"frames":{{"{mark}":{read[stack][0]}}}', each[end:]
    stacks = [stack for _, stack in read.values()]

    def put_in(found: dict[str, Any]) -> Any:
        return stacks[found[mark]] if mark in found else found

    return json.loads("".join(pieces), object_hook=put_in)


def _is_read(stack: str, read: dict[str, tuple[int, Any]]) -> bool:
    """Whether it is whole, and not cut at a bracket in a name."""
    try:
        read[stack] = len(read), json.loads(f"[{stack}")
    except ValueError:
        return False
    return True


def _segments_alone(data: bytes) -> list[Any]:
    """The segments of a JSON whose history has been cut."""
    begin = _SEGMENTS.match(data)
    if begin is None:
        return []
    try:
        text = data[begin.end() :].decode(errors="replace")
        found, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []


# ------------------------------------------------------------------------- the whole


def _is(found: Any) -> str:
    """What a file has instead, in words."""
    if isinstance(found, dict):
        keys = ", ".join(printable(str(key), _LONGEST_NAME) for key in islice(found, 5))
        return f"its keys are {keys}" if keys else "it has no keys"
    return f"it holds one {type(found).__name__}"


def _none_in(file: Opened, why: str) -> GpuMagicError:
    name = printable(file.name, _LONGEST_NAME)
    return GpuMagicError(f"{name} is no memory snapshot: {why}", _HOW)


def _listed(found: Mapping[str, Any], key: str, file: Opened) -> list[Any]:
    value = found.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _none_in(file, f"its {key} are no list but one {type(value).__name__}")
    return value


def _of_device(trace: Any, file: Opened) -> list[Any]:
    return _listed({"device_traces": trace}, "device_traces", file)


def _require_each_once(
    segments: Iterable[Any], traces: Iterable[list[Any]], file: Opened
) -> None:
    """A pickle can name a list a thousand times: no snapshot is larger inside."""
    blocks = (_blocks_of(each) for each in segments if isinstance(each, dict))
    if sum(map(len, traces)) + sum(map(len, blocks)) > len(file.data):
        raise _none_in(file, "it has the same lists more often than a snapshot does")


def _missing(missing: str | None, wrong: Counter[tuple[str, ...]]) -> str | None:
    told = [] if missing is None else [missing]
    if wrong:
        counts = [count_text(count, *words) for words, count in wrong.items()]
        told.append(f"not as torch writes them: {', '.join(counts)}")
    return "; ".join(told) or None


# -------------------------------------------------------------------- what is in it


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST


def _number(value: Any, default: int = 0) -> int:
    return value if _is_number(value) else default


def _segments(
    segments: Iterable[Any], wrong: Counter[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    for each in segments:
        if isinstance(each, dict) and _is_number(each.get("address")):
            yield _segment(each, wrong)
        else:
            wrong["segment",] += 1


def _segment(
    found: Mapping[str, Any], wrong: Counter[tuple[str, ...]]
) -> dict[str, Any]:
    address = found["address"]
    blocks = list(_blocks(_blocks_of(found), address, wrong))
    inside = sum(each["size"] for each in blocks)
    kind = found.get("segment_type")
    return {
        "device": _number(found.get("device")),
        "address": address,
        "total_size": _number(found.get("total_size"), inside),
        "stream": _number(found.get("stream")),
        "segment_type": kind if kind in ("small", "large") else "large",
        "segment_pool_id": _pool(found.get("segment_pool_id")),
        "is_expandable": found.get("is_expandable") is True,
        "frames": _frames(found),
        "blocks": blocks,
    }


def _blocks_of(segment: Mapping[str, Any]) -> list[Any]:
    blocks = segment.get("blocks")
    return blocks if isinstance(blocks, list) else []


def _blocks(
    blocks: Iterable[Any], address: int, wrong: Counter[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    for each in blocks:
        state = each.get("state") if isinstance(each, dict) else None
        known = _STATES.get(state) if isinstance(state, str) else None
        if known is None or not _is_number(each.get("size")):
            wrong["block",] += 1
            continue
        owner = _owner(each)
        requested = each.get("requested_size", owner.get("real_size"))
        yield {
            "address": address,
            "size": each["size"],
            "requested_size": requested if _is_number(requested) else None,
            "state": known,
            "frames": _frames(each) or _frames(owner),
        }
        address += each["size"]


def _owner(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Torch 1.13 and 2.0 list who has had a block, the latest first."""
    history = block.get("history")
    latest = history[0] if isinstance(history, list) and history else None
    return latest if isinstance(latest, dict) else {}


def _frames(found: Mapping[str, Any]) -> list[Any]:
    frames = found.get("frames")
    return frames if isinstance(frames, list) else []


def _pool(found: Any) -> tuple[int, int]:
    if (
        isinstance(found, list | tuple)
        and len(found) == 2
        and all(map(_is_number, found))
    ):
        return found[0], found[1]
    return 0, 0


def _entries(
    trace: Iterable[Any], wrong: Counter[tuple[str, ...]], unknown: Counter[str]
) -> list[dict[str, Any]]:
    """Those that say what they are about, in order."""
    kept = []
    for each in trace:
        action = each.get("action") if type(each) is dict else None
        if type(action) is not str:
            wrong["entry", "entries"] += 1
        elif action not in _PLACED and action not in _OTHERS:
            unknown[printable(action, _LONGEST_NAME)] += 1
        elif _is_whole(each, action):
            kept.append(each)
        else:
            wrong["entry", "entries"] += 1
    return kept


def _is_whole(entry: dict[str, Any], action: str) -> bool:
    """Whether all it needs is there; what it has besides, and is wrong, goes."""
    size, stream = entry.get("size"), entry.get("stream", 0)
    address = entry.get("addr") if action in _PLACED else 0
    if (
        type(size) is not int
        or type(stream) is not int
        or type(address) is not int
        or not 0 <= size <= _MOST
        or not 0 <= address <= _MOST
    ):
        return False
    frames, time_us = entry.get("frames"), entry.get("time_us")
    if frames is not None and type(frames) is not list:
        del entry["frames"]
    if time_us is not None and not _is_number(time_us):
        del entry["time_us"]
    return True


# -------------------------------------------------------------------------- settings


def _settings_text(found: Any) -> str | None:
    """As it was written; where it was set otherwise, as it would be written."""
    if not isinstance(found, dict):
        return None
    for key in (
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
    ):
        written = found.get(key)
        if isinstance(written, str) and written.strip():
            return written.strip()[:_LONGEST_SETTING]
    return ",".join(_settings(found))


def _settings(found: Mapping[Any, Any]) -> Iterator[str]:
    if found.get("expandable_segments") is True:
        yield "expandable_segments:True"
    most = found.get("max_split_size")
    if _is_number(most) and 0 < most < sys.maxsize:
        yield f"max_split_size_mb:{most // MIB}"
    threshold = found.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        yield f"garbage_collection_threshold:{threshold:g}"
    divisions = _divisions(found.get("roundup_power2_divisions"))
    if len(set(divisions.values())) == 1 and len(divisions) == _INTERVALS:
        yield f"roundup_power2_divisions:{divisions.popitem()[1]}"
    elif any(divisions.values()):  # torch fills what is left out: so all of them
        pairs = ",".join(f"{size}:{steps}" for size, steps in divisions.items())
        yield f"roundup_power2_divisions:[{pairs}]"


def _divisions(found: Any) -> dict[int, int]:
    """Steps by size in MiB, by size."""
    if not isinstance(found, dict):
        return {}
    sizes = {str(1 << each): 1 << each for each in range(_INTERVALS)}
    divisions = {
        sizes[key]: _number(steps) for key, steps in found.items() if key in sizes
    }
    return {} if not any(divisions.values()) else dict(sorted(divisions.items()))
