"""Reads a trace of torch's profiler, of any version and device, into plain rows.

`msgspec` decodes entry by entry, and of each only the fields that are needed: of the
file itself, which is whole in memory, that takes half as much once more. What calls do,
and what is device work, is `devices/kineto.py`'s: it reads the traces that are made
here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from bisect import bisect_right
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from gpumagic.devices import kineto
from gpumagic.errors import GpuMagicError, first_line
from gpumagic.gpu_open.files import ends_early, opened
from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.events import SpanKind
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpumagic.gpu_open.files import Opened

_MOST_UNKNOWN = 20
_AT_ONCE = 10_000  # entries, before it is told how far it is
_MOST_NUMBER = 2**61  # so that two of them added are a number of 64 bits
_FIRST_NS = 10**18  # in 2001: a clock that is later counts from 1970 on

# By the category of an entry, in small letters: as Kineto spells it, and our own.
_WORK = {**kineto.DEVICE_WORK, "copy": SpanKind.COPY, "fill": SpanKind.FILL}
# Of ours, by names that `kineto.kind_of_call` understands.
_SIMULATED_CALLS = {"launch": "Launch {}", "wait": "{} (Synchronize)"}
_OPERATORS = frozenset({kineto.OPERATION, "host"})
# Known, and nothing that anybody did: what a device was doing for an annotation, or was
# waiting for; what the profiler itself took; the time that it was on.
_NO_ROWS = frozenset(
    {"gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "trace"}
)
_STEP = "ProfilerStep#"
_COLLECTIVE = "record_param_comms"
_COMMUNICATES = re.compile(
    r"""^\W*(void\ +)?(nccl|rccl|hccl|hcom_|msccl|oneccl|ccl::|nvshmem|deep_ep::)
    | ^\W*(void\ +)?c10d::(?!checkForNaN)  # that one only looks at its own
    | nccl(Dev)?Kernel | mscclpp | oneapi::ccl
    | cross_device_reduce | multimem_ | (one|two)_shot_all_?reduce
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What the profiler calls the types of what is sent, and their bytes.
_BYTES = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("short", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "double", "complexfloat"), 8),
    "complexdouble": 16,
}
_RANK = (
    re.compile(r"(?<![a-z])rank[-_= ]?(\d{1,6})(?![\d])", re.IGNORECASE),
    # Accelerate's ProfileKwargs, and Lightning's PyTorchProfiler.
    re.compile(r"^profile_(\d{1,6})\.json"),
    re.compile(r"^(?:fit|validate|test|predict)-.*?-(\d{1,6})\.\d{10,}\.pt\.trace\."),
)
# Kineto writes some figures that are no JSON.
_NO_NUMBER = re.compile(rb'(?<=":)\s*[+-]?(?:inf|nan|NaN|Infinity)(?=\s*[,}])')

_SENT = {
    "collective": "Collective name",
    "count": "In msg nelems",
    "dtype": "dtype",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "members": "Process Group Ranks",
    "group_size": "Group size",
    "number": "Seq",
}


class _Args(
    msgspec.Struct,
    gc=False,
    rename=_SENT | {"sequence": "Sequence number"},
):
    """What an entry tells beside its times, as far as anybody here asks for it."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    size: Any = None
    launched_us: Any = None
    sequence: Any = None
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
    pid: Any = None
    tid: Any = None
    ts: float | None = None
    dur: float = 0.0
    args: _Args | None = None


class _File(msgspec.Struct, rename="camel"):
    trace_events: list[msgspec.Raw]
    distributed_info: Any = None
    device_properties: Any = None
    base_time_nanoseconds: Any = None
    other_data: Any = None


_NOTHING = _Args()


def read(
    path: str | Path, progress: Callable[[float], object] | None = None
) -> TraceEvents:
    """Read one file."""
    file = opened(path)
    shown = shortened(file.name, 60)
    if file.kind != "trace":
        problem = f"{shown} is a memory snapshot, no trace"
        raise GpuMagicError(problem, f"type: %gpu_open {shown}")
    with without_collecting():
        found = _decoded(file, shown)
        if not found.trace_events:
            raise GpuMagicError(
                f"there is no event in {shown}",
                "open the file of another rank or step; a profiler writes it when it "
                "stops",
            )
        rows = _Rows(_since_ns(found))
        nbytes = len(file.data)
        try:
            rows.take(found.trace_events, progress)
        except msgspec.ValidationError as error:
            why = printable(first_line(error), 80)
            problem = f"{shown} is not as torch writes a trace: {why}"
            raise GpuMagicError(
                problem, "open the file as torch has written it"
            ) from None
        found.trace_events = []
        file.data.clear()  # so that there is room for what is made of it
        return rows.events(shortened(file.name, 200), nbytes, found)


def _decoded(file: Opened, shown: str) -> _File:
    """What stands beside the entries, and they themselves unread."""
    if file.data.startswith(b"\xef\xbb\xbf"):  # as Windows marks UTF-8
        del file.data[:3]
    data: bytearray | bytes = file.data
    is_list = data[:64].lstrip()[:1] == b"["
    try:
        for attempt in range(2):
            try:
                if is_list:
                    return _File(msgspec.json.decode(data, type=list[msgspec.Raw]))
                return msgspec.json.decode(data, type=_File)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError as error:
                if attempt or "truncated" in str(error):
                    raise
                data = _NO_NUMBER.sub(b"null", data)
    except (msgspec.DecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise ends_early(file.name) from None
        why = printable(first_line(error), 80)
        raise GpuMagicError(
            f"{shown} is not whole JSON: {why}",
            "copy it again, or open the file of another rank or step",
        ) from None
    raise AssertionError


# Rows before calls are known: plain tuples, as very many are made. Name, start and end
# in nanoseconds, then of a call its thread, of both the correlation by which they find
# each other, how much was copied, and of work all that `Work` has more.
_Call: TypeAlias = "tuple[str, int, int, int, int | None, int | None]"
_Piece: TypeAlias = (
    "tuple[str, int, int, int | None, int | None, SpanKind, bool,"
    " int | None, int | None, dict[str, Any] | None]"
)
_Told: TypeAlias = "tuple[int, int, dict[str, Any]]"  # start, end, arguments
_Row = TypeVar("_Row", bound="tuple[Any, ...]")
_event = functools.partial(tuple.__new__, HostEvent)
_work = functools.partial(tuple.__new__, Work)


class _Rows:
    """Sorts entries into rows; what is none is counted."""

    def __init__(self, since_ns: int | None) -> None:
        self._since_ns = since_ns
        self._work: list[_Piece] = []
        self._calls: list[_Call] = []
        self._operators: list[HostEvent] = []
        self._marks: list[HostEvent] = []
        self._python: list[HostEvent] = []
        self._told: dict[int, list[_Told]] = {}  # by thread
        self._names: dict[str, str] = {}  # each kept once
        self._sends: dict[str, bool] = {}
        self._threads: dict[Any, int] = {}
        self._unknown: Counter[str] = Counter()
        self._takers = self._known_takers()
        self._count = 0

    def _known_takers(self) -> dict[str, Callable[..., None]]:
        """What makes a row of an entry, by its category in small letters."""
        host = functools.partial
        return {
            **{kind: host(self._take_work, its) for kind, its in _WORK.items()},
            **dict.fromkeys((*_SIMULATED_CALLS, "hip"), self._take_call),
            **dict.fromkeys(_OPERATORS, self._take_operator),
            kineto.MARK: host(self._take_host, self._marks),
            "python_function": host(self._take_host, self._python),
            **dict.fromkeys(_NO_ROWS, _take_nothing),
        }

    def take(
        self,
        entries: Sequence[msgspec.Raw],
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Make rows of entries."""
        decode = msgspec.json.Decoder(_Entry).decode
        takers, names, zero_ns = self._takers, self._names, self._since_ns or 0
        self._count = len(entries)
        for begin in range(0, self._count, _AT_ONCE):
            if progress is not None:
                progress(begin / self._count)
            for raw in entries[begin : begin + _AT_ONCE]:
                entry = decode(raw)
                began = entry.ts
                if entry.ph != "X" or began is None:
                    continue
                # The product of a large one with 1000 would not be exact.
                whole = int(began)
                start_ns = zero_ns + whole * 1000 + round((began - whole) * 1000)
                end_ns = start_ns + round(entry.dur * 1000)
                if not -_MOST_NUMBER < start_ns <= end_ns < _MOST_NUMBER:
                    self._unknown["without a time that can be true"] += 1
                    continue
                name = names.setdefault(entry.name, entry.name)
                taker = takers.get(entry.cat) or self._taker_for(entry.cat)
                taker(name, start_ns, end_ns, entry, entry.args or _NOTHING)

    def _taker_for(self, kind: str) -> Callable[..., None]:
        small = kind.lower()
        taker = self._takers.get(small)
        if taker is None and small.endswith(kineto.CALLS):
            taker = self._take_call
        if taker is None:
            self._unknown[printable(kind, 40) or "without a kind"] += 1
            return _take_nothing
        self._takers[kind] = taker
        return taker

    def _take_work(  # noqa: PLR0913, PLR0917 -- as all that take
        self,
        kind: SpanKind,
        name: str,
        start_ns: int,
        end_ns: int,
        entry: _Entry,
        args: _Args,
    ) -> None:
        key, nbytes, sent = args.correlation, args.bytes, None
        if args.launched_us is not None:
            # Of ours: a call ends when its work is in the queue.
            key = (self._since_ns or 0) + round(args.launched_us * 1000)
        if kind is SpanKind.KERNEL:
            sends = self._sends.get(name)
            if sends is None:
                sends = self._sends[name] = bool(_COMMUNICATES.search(name))
            if sends:
                sent = _sent(args)
                nbytes = _sent_bytes(sent)
        device, stream = args.device, args.stream
        self._work.append(
            (
                name,
                start_ns,
                end_ns,
                key if type(key) is int and key > 0 else None,
                _whole(nbytes),
                kind,
                sent is not None,
                _whole(entry.pid if device is None else device),
                _whole(entry.tid if stream is None else stream),
                sent,
            )
        )

    def _take_call(
        self, name: str, start_ns: int, end_ns: int, entry: _Entry, args: _Args
    ) -> None:
        key, size = args.correlation, args.size
        if entry.cat in _SIMULATED_CALLS:
            name, key = _SIMULATED_CALLS[entry.cat].format(name), end_ns
        self._calls.append(
            (
                name,
                start_ns,
                end_ns,
                self._thread(entry.tid),
                key if type(key) is int and key > 0 else None,
                # HIP tells it with the call only, and as text.
                int(size) if str(size).isdecimal() else None,
            )
        )

    def _take_operator(
        self, name: str, start_ns: int, end_ns: int, entry: _Entry, args: _Args
    ) -> None:
        if name.startswith(kineto.OWN_TRACES):
            return
        number, thread = args.sequence, self._thread(entry.tid)
        if type(number) is not int or not 0 <= number < kineto.OF_NO_FORWARD:
            number = None
        if name == _COLLECTIVE:
            told = start_ns, end_ns, _sent(args)
            self._told.setdefault(thread, []).append(told)
        self._operators.append(_event((name, start_ns, end_ns, thread, number)))

    def _take_host(
        self,
        rows: list[HostEvent],
        name: str,
        start_ns: int,
        end_ns: int,
        entry: _Entry,
        _: _Args,
    ) -> None:
        thread = self._thread(entry.tid)
        rows.append(_event((name, start_ns, end_ns, thread, None)))

    def _thread(self, number: Any) -> int:
        """The thread's number; a name has one of its own, below zero."""
        if type(number) is int:
            return number
        return self._threads.setdefault(str(number), -1 - len(self._threads))

    # ---------------------------------------------------------------- altogether

    def events(self, name: str, nbytes: int, found: _File) -> TraceEvents:
        """All rows in order, with what the file tells beside them."""
        of_all = found.distributed_info
        of_all = of_all if isinstance(of_all, dict) else {}
        rank = _whole(of_all.get("rank"))
        if rank is None:
            named = (each.search(name) for each in _RANK)
            rank = next((int(each[1]) for each in named if each), None)
        names = _device_names(found.device_properties)
        machine = _machine(found)
        if machine is not None:
            devices = (row[7] for row in self._work)
            names = {each: machine for each in devices if each is not None}
        unknown = tuple(self._unknown.most_common(_MOST_UNKNOWN))
        return TraceEvents(
            FileRead(name, nbytes, self._count, unknown=unknown),
            self._called(),
            [_event((*row[:4], None)) for row in self._calls],
            _in_order(self._operators),
            _in_order(self._marks),
            _in_order(self._python),
            main_thread=self._main_thread(),
            rank=rank,
            world_size=_whole(of_all.get("world_size")),
            device_names=names,
            simulated=machine is not None,
            since_1970=self._since_ns is not None,
        )

    def _called(self) -> list[Work]:
        """Work in order, each piece with its call."""
        work, calls = _in_order(self._work), _in_order(self._calls)
        for told in self._told.values():
            told.sort(key=itemgetter(0))
        callers = kineto.callers_of(
            (row[3] for row in work),
            ((row[4], row[2]) for row in calls),
            graphs={row[4] for row in calls if kineto.launches_a_graph(row[0])},
        )
        rows = []
        for name, start_ns, end_ns, key, nbytes, kind, sends, *where, args in work:
            call = callers.get(key)
            sent, more = nbytes, args
            if call is not None and kind is not SpanKind.KERNEL:
                sent = calls[call][5] if nbytes is None else nbytes
            elif call is not None and sends:
                more = {**self._told_at(calls[call]), **(args or {})}
                sent = _whole(_sent_bytes(more))
            rows.append(
                _work((name, kind, sends, start_ns, end_ns, *where, sent, call, more))
            )
        return rows

    def _told_at(self, call: _Call) -> dict[str, Any]:
        """What the operator tells that the call was made in; kernels tell less."""
        told = self._told.get(call[3], [])
        at = bisect_right(told, call[1], key=itemgetter(0)) - 1
        return told[at][2] if at >= 0 and told[at][1] >= call[1] else {}

    def _main_thread(self) -> int | None:
        """The one that steps are marked on, or that launched most."""
        launches = {
            name: kineto.kind_of_call(name) is SpanKind.LAUNCH
            for name in {row[0] for row in self._calls}
        }
        for threads in (
            (row[3] for row in self._marks if row[0].startswith(_STEP)),
            (row[3] for row in self._calls if launches[row[0]]),
            (row[3] for row in self._operators),
        ):
            most = Counter(threads).most_common(1)
            if most:
                return most[0][0]
        return None


# -------------------------------------------------------------------- small things


def _since_ns(found: _File) -> int | None:
    """What is to be added to count from 1970 on; None where that is not known."""
    if _machine(found) is not None:
        return _whole(found.other_data.get("began_ns"))
    base = found.base_time_nanoseconds
    for raw in found.trace_events[:100]:
        with contextlib.suppress(msgspec.DecodeError):
            entry = msgspec.json.decode(raw, type=_Entry)
            if entry.ph == "X" and (entry.ts or 0.0) * 1000 > _FIRST_NS:
                return 0
    return base if type(base) is int and _FIRST_NS < base < _MOST_NUMBER else None


def _machine(found: _File) -> str | None:
    """What `simulator/tracing.py` says of the machine; None of a real one."""
    told = found.other_data
    name = told.get("machine") if isinstance(told, dict) else None
    return name if isinstance(name, str) else None


def _take_nothing(*_: Any) -> None:
    """Known, and nothing that anybody did."""


def _whole(value: Any) -> int | None:
    """A number that can be a count; None for anything else."""
    is_one = type(value) is int and -_MOST_NUMBER < value < _MOST_NUMBER
    return value if is_one else None


def _sent(args: _Args) -> dict[str, Any]:
    """What an entry tells of what ranks did together, in the words of the file."""
    told = ((key, getattr(args, field)) for field, key in _SENT.items())
    return {key: value for key, value in told if value is not None}


def _sent_bytes(sent: dict[str, Any]) -> int | None:
    """How much this rank put into it."""
    count, size = sent.get("In msg nelems"), _BYTES.get(str(sent.get("dtype")).lower())
    return None if type(count) is not int or size is None else count * size


def _device_names(told: Any) -> dict[int, str]:
    """What the devices of the machine are called, by their numbers."""
    return {
        each["id"]: each["name"]
        for each in (told if isinstance(told, list) else [])
        if isinstance(each, dict)
        and type(each.get("id")) is int
        and isinstance(each.get("name"), str)
    }


def _in_order(rows: list[_Row]) -> list[_Row]:
    """By their beginnings; of those that begin together the longest first."""
    rows.sort(key=itemgetter(2), reverse=True)
    rows.sort(key=itemgetter(1))
    return rows
