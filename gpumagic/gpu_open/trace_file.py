"""Reads a trace of torch's profiler, of any version and device, into plain rows.

`msgspec` decodes of each entry only the fields that are needed. What calls do, and what
is device work, is `devices/kineto.py`'s: it reads the traces that are made here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from gpumagic.devices import kineto
from gpumagic.errors import GpuMagicError, first_line
from gpumagic.gpu_open.files import AGAIN, HOW, ends_early, opened
from gpumagic.gpu_open.host import STEP, is_users
from gpumagic.gpu_open.records import FileRead
from gpumagic.report.events import SpanKind
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import UNKNOWN, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpumagic.gpu_open.files import Opened


class HostEvent(NamedTuple):
    """What a thread of the host did; the first three are a row of a timeline."""

    start_ns: int
    end_ns: int
    name: str
    thread: Any  # as the file numbers or names them


class Work(NamedTuple):
    """What a device did."""

    name: str  # as the file has it
    kind: SpanKind  # kernel, copy or fill
    communicates: bool  # whether it is a kernel of NCCL, RCCL or the like
    start_ns: int  # by the clock of the file
    end_ns: int  # not before the start
    device: int | str | None  # which one, as the file numbers them
    stream: int | str | None  # likewise
    # that launched it; None where none is known. All that a graph holds has the call
    # that launched it.
    call: HostEvent | None = None
    args: Mapping[str, Any] = MappingProxyType(
        {}
    )  # of what communicates, all that the file tells


@dataclass
class TraceEvents:
    """One file, each list in order of the beginnings, what lasts longer first."""

    file: FileRead
    work: list[Work] = field(default_factory=list)  # what devices did
    # calls of the runtime and the driver of the device
    calls: list[HostEvent] = field(default_factory=list)
    operators: list[HostEvent] = field(default_factory=list)  # of torch
    # what the user, or a library, has annotated; also steps
    marks: list[HostEvent] = field(default_factory=list)
    # the user's own functions, where the trace has stacks: names as the file has them,
    # such as `train.py(12): step`
    python: list[HostEvent] = field(default_factory=list)
    # the thread that steps are marked on, or that launched most
    main_thread: Any = None
    rank: int | None = None
    world_size: int | None = None
    # by device, where the file tells
    device_names: dict[int, str] = field(default_factory=dict)
    simulated: bool = False
    # whether the clock of the file counts from then; a simulated one counts from the
    # beginning of its machine, for all processes alike
    since_1970: bool = False


_MOST_UNKNOWN = 20
_AT_ONCE = 1_000  # entries: more of them do not fit into the processor's cache
# So that two of them added are a number of 64 bits.
_Whole = Annotated[int, msgspec.Meta(gt=-(2**61), lt=2**61)]
_MOST_US = 2e15
_FIRST_NS = 10**18  # in 2001: a clock that is later counts from 1970 on

# By the category of an entry, in small letters: as Kineto spells it, and our own.
_WORK = {**kineto.DEVICE_WORK, "copy": SpanKind.COPY, "fill": SpanKind.FILL}
# Of ours, by names that `kineto.kind_of_call` understands.
_SIMULATED_CALLS = {"launch": "Launch {}", "wait": "{} (Synchronize)"}
_CALLS = (*kineto.CALLS, "hip")
_OPERATORS = frozenset({kineto.OPERATION, "host"})
# Known, and nothing that anybody did: what a device was doing for an annotation, or was
# waiting for; what the profiler itself took; the time that it was on.
_NO_ROWS = frozenset(
    {"gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "trace"}
)
_COLLECTIVE = "record_param_comms"
_COMMUNICATES = re.compile(
    r"""^\W*(void\ +)?(nccl|rccl|hccl|hcom_|msccl|oneccl|ccl::|nvshmem|deep_ep::)
    | ^\W*(void\ +)?c10d::(?!checkForNaN)  # that one only looks at its own
    | nccl(Dev)?Kernel | mscclpp | oneapi::ccl
    | cross_device_reduce | multimem_ | (one|two)_shot_all_?reduce
    """,
    re.VERBOSE | re.IGNORECASE,
)
# The last two are of Accelerate's ProfileKwargs and Lightning's PyTorchProfiler.
_RANK = re.compile(
    r"""(?<![a-z])rank[-_= ]?(\d{1,6})(?!\d)
    | ^profile_(\d{1,6})\.json
    | ^(?:fit|validate|test|predict)-.*?-(\d{1,6})\.\d{10,}\.pt\.trace\.
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Kineto writes some figures that are no JSON.
_NO_NUMBER = re.compile(rb'(?<=":)\s*[+-]?(?:inf|nan|NaN|Infinity)(?=\s*[,}])')
_TOLD = {  # of what ranks do together
    "collective": "Collective name",
    "count": "In msg nelems",
    "dtype": "dtype",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "members": "Process Group Ranks",
    "group_size": "Group size",
    "number": "Seq",
}


class _Args(msgspec.Struct, gc=False, rename=_TOLD):
    """What an entry tells beside its times, as far as anybody here asks for it."""

    device: int | str | None = None
    stream: int | str | None = None
    correlation: Any = None
    launched_us: float | None = None
    collective: Any = None
    count: Any = None
    dtype: Any = None
    group: Any = None
    description: Any = None
    members: Any = None
    group_size: Any = None
    number: Any = None


class _Entry(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = UNKNOWN
    ts: float = math.inf
    dur: float = 0.0
    args: _Args | None = None


class _Device(msgspec.Struct):
    id: int
    name: str


class _File(msgspec.Struct, rename="camel"):
    trace_events: list[msgspec.Raw]
    distributed_info: Any = None
    device_properties: Any = None
    base_time_nanoseconds: Any = None
    other_data: Any = None  # of ours, what `simulator/observing.py` tells


_NOTHING = _Args()
_NOT_TOLD: dict[str, Any] = {}
_event = functools.partial(tuple.__new__, HostEvent)
_work = functools.partial(tuple.__new__, Work)


def read(path: str | Path) -> TraceEvents:
    """Read one file."""
    file = opened(path)
    shown = shortened(file.name, 60)
    if file.kind != "trace":
        problem = f"{shown} is a memory snapshot, no trace"
        raise GpuMagicError(problem, f"type: %gpu_open {shown}")
    with without_collecting():
        try:
            found = _decoded(file.data)
            if not found.trace_events:
                raise GpuMagicError(f"there is no event in {shown}", AGAIN)
            rows = _Rows(found, file)
            if not rows.take(found.trace_events):
                problem = f"no event of {shown} has a duration"
                raise GpuMagicError(f"{problem}: torch's profiler wrote others", HOW)
        except (msgspec.DecodeError, RecursionError) as error:
            if "truncated" in str(error):
                raise ends_early(file.name) from None
            why = printable(first_line(error), 80)
            problem = f"{shown} is not as torch writes a trace: {why}"
            raise GpuMagicError(problem, AGAIN) from None
        found.trace_events.clear()
        file.data.clear()  # so that there is room for what is made of it
        return rows.in_order()


def _decoded(data: bytearray | bytes) -> _File:
    try:
        if data[:64].lstrip().startswith(b"["):
            return _File(msgspec.json.decode(data, type=list[msgspec.Raw]))
        return msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        mended = _NO_NUMBER.sub(b"null", data) if "malformed" in str(error) else data
        if mended == data:
            raise
        return _decoded(mended)


class _Rows:
    """Sorts entries into rows; what is none is counted."""

    def __init__(self, found: _File, file: Opened) -> None:
        job = _as(dict[str, Any], found.distributed_info, {})
        named = _RANK.search(file.name)
        by_name = int(named[named.lastindex or 0]) if named else None
        other = _as(dict[str, Any], found.other_data, {})
        self._machine = _as(str, other.get("machine"), "")
        first = _first(found)
        # What is to be added to count from 1970 on; also 0 where that is not known.
        counts = first.ts * 1000 > _FIRST_NS
        base_ns = _as(_Whole, found.base_time_nanoseconds, 0) * (not counts)
        self._since_ns = base_ns * (base_ns > _FIRST_NS)
        if self._machine:
            counts = "began_ns" in other
            self._since_ns = _as(_Whole, other.get("began_ns"), 0)
        self._zero_us = math.floor(first.ts)
        self._base_ns = self._since_ns + self._zero_us * 1000
        self._sends = functools.cache(_COMMUNICATES.search)
        self._is_users = functools.cache(is_users)
        told = _as(list[Any], found.device_properties, [])
        devices = (_as(_Device, each) for each in told)
        size, count = len(file.data), len(found.trace_events)
        self._events = TraceEvents(
            FileRead(shortened(file.name, 200), size, count, folder=file.folder),
            rank=_as(_Whole, job.get("rank"), by_name),
            world_size=_as(_Whole, job.get("world_size")),
            device_names={each.id: each.name for each in filter(None, devices)},
            simulated=bool(self._machine),
            since_1970=counts or self._since_ns > 0,
        )
        # Before calls are known: work, and calls, with the correlation by which they
        # find each other.
        self._work: list[tuple[Any, ...]] = []
        self._calls: list[tuple[HostEvent, Any]] = []
        # what operators tell of collectives, by thread: start, end, arguments
        self._told: defaultdict[Any, list[tuple[int, int, _Args]]] = defaultdict(list)
        self._names: dict[str, str] = {}  # each kept once
        self._unknown: Counter[str] = Counter()

    def take(self, entries: list[msgspec.Raw]) -> int:
        """Make rows of entries, some thousand at once: few of them are in memory.

        How many had a duration.
        """
        decode, count = msgspec.json.Decoder(_Entry).decode, 0
        for at in range(0, len(entries), _AT_ONCE):
            by_kind: defaultdict[str, list[_Entry]] = defaultdict(list)
            for entry in map(decode, entries[at : at + _AT_ONCE]):
                if entry.ph != "X":
                    continue
                count += 1
                if abs(entry.ts) < _MOST_US and 0 <= entry.dur < _MOST_US:
                    by_kind[entry.cat].append(entry)
                else:
                    self._unknown["without a time that can be true"] += 1
            for kind, its in by_kind.items():
                self._take(kind, its)
        return count

    def _take(self, kind: str, its: list[_Entry]) -> None:
        small = kind.lower()
        if small in _OPERATORS:
            self._take_operators(its)
        elif small in _WORK:
            self._take_work(_WORK[small], its)
        elif small in _SIMULATED_CALLS:
            for row in self._timed(its):
                name = _SIMULATED_CALLS[small].format(row.name)
                self._calls.append((row._replace(name=name), row.end_ns))
        elif small.endswith(_CALLS):
            keys = ((each.args or _NOTHING).correlation for each in its)
            self._calls += zip(self._timed(its), keys, strict=True)
        elif small == kineto.MARK:
            self._events.marks += self._timed(its)
        elif small == "python_function":
            self._events.python += self._timed(
                [e for e in its if self._is_users(e.name)]
            )
        elif small not in _NO_ROWS:
            self._unknown[printable(kind, 40) or "without a kind"] += len(its)

    def _timed(self, entries: list[_Entry]) -> list[HostEvent]:
        # From a moment near to it on: the product of a large time is not exact.
        base_ns, zero_us, name = self._base_ns, self._zero_us, self._names.setdefault
        return [
            _event(
                (
                    start_ns := base_ns + round((entry.ts - zero_us) * 1000),
                    start_ns + round(entry.dur * 1000),
                    name(entry.name, entry.name),
                    entry.tid,
                )
            )
            for entry in entries
        ]

    def _take_operators(self, entries: list[_Entry]) -> None:
        rows, own = self._timed(entries), kineto.OWN_TRACES
        self._events.operators += [each for each in rows if not each[2].startswith(own)]
        for row, entry in zip(rows, entries, strict=True):
            if row[2] == _COLLECTIVE and entry.args:
                self._told[row.thread].append((*row[:2], entry.args))

    def _take_work(self, kind: SpanKind, entries: list[_Entry]) -> None:
        is_kernel = kind is SpanKind.KERNEL
        for row, entry in zip(self._timed(entries), entries, strict=True):
            start_ns, end_ns, name, thread = row
            args = entry.args or _NOTHING
            key, device, stream = args.correlation, args.device, args.stream
            if args.launched_us is not None:
                # Of ours: a call ends when its work is in the queue.
                key = self._since_ns + round(args.launched_us * 1000)
            if type(key) is not int or key <= 0:
                key = None
            sends = is_kernel and bool(self._sends(name))
            told = _told(args) if sends else _NOT_TOLD
            place = (
                entry.pid if device is None else device,
                thread if stream is None else stream,
            )
            self._work.append((start_ns, end_ns, name, kind, *place, key, sends, told))

    # ---------------------------------------------------------------- altogether

    def in_order(self) -> TraceEvents:
        """All rows in order, each piece of work with its call."""
        events = self._events
        unknown = tuple(self._unknown.most_common(_MOST_UNKNOWN))
        events.file = replace(events.file, unknown=unknown)
        if self._machine:
            worked = {row[4] for row in self._work}
            events.device_names = dict.fromkeys(worked, self._machine)
        for rows in (events.operators, events.marks, events.python):
            rows.sort(key=_order)
        self._calls.sort(key=lambda call: _order(call[0]))
        events.calls = [call for call, _ in self._calls]
        events.work = self._called()
        # The thread that steps are marked on, or that launched most.
        kind_of = functools.cache(kineto.kind_of_call)
        for threads in (
            [row.thread for row in events.marks if row.name.startswith(STEP)],
            [e.thread for e in events.calls if kind_of(e.name) is SpanKind.LAUNCH],
            [row.thread for row in events.operators],
        ):
            if threads:
                events.main_thread = Counter(threads).most_common(1)[0][0]
                break
        return events

    def _called(self) -> list[Work]:
        """Work in order, each piece with its call."""
        self._work.sort(key=_order)
        for told in self._told.values():
            told.sort(key=itemgetter(0))
        graphs = {
            key for call, key in self._calls if kineto.launches_a_graph(call.name)
        }
        callers = kineto.callers_of(
            map(itemgetter(6), self._work),
            ((key, call[1]) for call, key in self._calls),
            graphs,
        )
        caller = {key: self._calls[place][0] for key, place in callers.items()}
        rows = []
        for start, end, name, kind, device, stream, key, sends, its in self._work:
            call = caller.get(key)
            told = self._told_at(call) | its if sends and call else its
            rows.append(
                _work((name, kind, sends, start, end, device, stream, call, told))
            )
        return rows

    def _told_at(self, call: HostEvent) -> dict[str, Any]:
        """What the operator tells that the call was made in; kernels tell less."""
        told = self._told.get(call.thread, [])
        at = bisect_right(told, call.start_ns, key=itemgetter(0)) - 1
        return _told(told[at][2]) if at >= 0 and told[at][1] >= call.start_ns else {}


def _order(row: tuple[Any, ...]) -> tuple[int, int]:
    """By their beginnings; of those that begin together the longest first."""
    return row[0], -row[1]


def _first(found: _File) -> _Entry:
    """One of the first entries that tells a time."""
    for raw in found.trace_events[:100]:
        with contextlib.suppress(msgspec.DecodeError):
            entry = msgspec.json.decode(raw, type=_Entry)
            if entry.ph == "X" and abs(entry.ts) < _MOST_US:
                return entry
    return _Entry(ts=0.0)


def _as(kind: Any, told: Any, otherwise: Any = None) -> Any:
    """What a file tells of something, if it is of that kind."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(told, kind)
    return otherwise


def _told(args: _Args) -> dict[str, Any]:
    """What an entry tells of what ranks did together, in the words of the file."""
    told = ((key, getattr(args, field)) for field, key in _TOLD.items())
    return {key: value for key, value in told if value is not None}
