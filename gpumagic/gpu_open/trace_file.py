"""Reads a trace of torch's profiler, of any version and device, into plain rows.

What the entries mean is `devices/kineto.py`'s: it reads the traces that are made here.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import re
from collections import Counter
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from gpumagic.devices import kineto
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.entries import Entries
from gpumagic.gpu_open.files import MOST_BYTES, unpacking
from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.events import SpanKind
from gpumagic.report.units import count_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpumagic.gpu_open.files import Unpacking

    Progress: TypeAlias = Callable[[float], object]

_KEYS = frozenset(
    {"distributedInfo", "deviceProperties", "baseTimeNanoseconds", "otherData"}
)

# By the category of an entry, in small letters: as Kineto spells it today, as it did
# before torch 1.13, and as our own traces have it.
_WORK = {
    **kineto.DEVICE_WORK,
    "memcpy": SpanKind.COPY,
    "memset": SpanKind.FILL,
    "copy": SpanKind.COPY,
    "fill": SpanKind.FILL,
}
_MTIA = "mtia_ccp_"
_CALLS = frozenset({"runtime", "driver", "hip", "launch", "wait"})
# Of ours, by names that `kineto.kind_of_call` understands.
_SIMULATED_CALLS = {"launch": "Launch {}", "wait": "{} (Synchronize)"}
_OPERATORS = frozenset({kineto.OPERATION, "operator", "host"})
_PYTHON = "python_function"
# Known, and nothing that anybody did: what a device was doing for an annotation, or was
# waiting for; what the profiler itself took; the time that it was on.
_NO_ROWS = frozenset(
    {"gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "trace"}
)
_NO_SPANS = frozenset("stfiIRCPbneNODSTpFvVca(),=")  # arrows, moments, counters, ...
# Traces without categories, of the profiler before Kineto, name their processes so.
_BY_PROCESS = {
    "CPU functions": kineto.OPERATION,
    "CUDA functions": "kernel",
    "XPU functions": "kernel",
}
_STEP = "ProfilerStep#"
# Before torch 1.11 marks were operators.
_MARKED = (_STEP, "Optimizer.", "enumerate(DataLoader)#")
_MTIA_COPIES, _MTIA_EVENTS = "dma", "event_"

_COMMUNICATES = re.compile(
    r"""^\W*(void\ +)?
    ( nccl | rccl | hccl | hcom_ | msccl | oneapi::ccl | oneccl | ccl::
    | c10d::(?!checkForNaN)
    | nvshmem | deep_ep:: | .*cross_device_reduce | .*multimem_
    | .*(one|two)_shot_all_?reduce
    )
    | nccl(Dev)?Kernel | mscclpp | oneapi::ccl
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What the profiler calls the types of what is sent, and their bytes.
_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "complexfloat": 8,
    "complexdouble": 16,
}
_RANK = (
    re.compile(r"(?<![a-z])rank[-_= ]?(\d{1,6})(?![\d])", re.IGNORECASE),
    # Accelerate's ProfileKwargs, and Lightning's PyTorchProfiler.
    re.compile(r"^profile_(\d{1,6})\.json"),
    re.compile(r"^(?:fit|validate|test|predict)-.*?-(\d{1,6})\.\d{10,}\.pt\.trace\."),
)
_MOST_UNKNOWN = 20
_MOST_NS = 2**62
_FIRST_NS = 10**18  # in 2001: a clock that is later counts from 1970 on


def read(
    path: str | Path,
    progress: Progress | None = None,
    *,
    most_bytes: int = MOST_BYTES,
) -> TraceEvents:
    """Read one file.

    Args:
        path: Plain or packed.

        progress: Called now and then with the share of the file that has been read.

        most_bytes: How large it may be, unpacked.

    Raises:
        GpuMagicError: There is no such file, it is no trace, or not one entry of it
            can be read.
    """
    with unpacking(path, most_bytes=most_bytes) as file, _no_collection():
        if file.kind != "trace":
            raise GpuMagicError(
                f"{_shown(file)} is a memory snapshot, no trace",
                f"type: %gpu_open {_shown(file)}",
            )
        entries = Entries(_told(file, progress), _KEYS)
        rows = _Rows()
        for each in entries:
            rows.take(each)
        if not entries.count:
            raise _nothing_there(file, entries)
        return rows.events(file, entries)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Rows are no garbage: looking for it among them takes as long as reading them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _told(file: Unpacking, progress: Progress | None) -> Iterator[bytes]:
    for piece in file:
        yield piece
        if progress is not None:
            progress(file.share)


def _shown(file: Unpacking) -> str:
    return shortened(file.name, 60)


def _nothing_there(file: Unpacking, entries: Entries) -> GpuMagicError:
    why = "its list of events is empty"
    if entries.is_cut or file.missing:
        why = "it ends before its first event does"
    elif entries.is_damaged:
        why = "what it begins with is damaged"
    return GpuMagicError(
        f"there is no event in {_shown(file)}: {why}",
        "open the file of another rank or step; a profiler writes it when it stops",
    )


class _Name(NamedTuple):
    """What a name tells, found out once for each."""

    text: str
    is_mark: bool
    is_ours: bool
    communicates: bool


_Entry: TypeAlias = "dict[str, Any]"
_Taker: TypeAlias = "Callable[[_Name, int, int, _Entry], None]"


class _WorkRow(NamedTuple):
    """A piece of work before its call is known."""

    name: _Name
    start_ns: int
    end_ns: int
    kind: SpanKind
    device: int | None
    stream: int | None
    nbytes: int | None
    key: int | None
    args: dict[str, Any] | None


class _CallRow(NamedTuple):
    """A call before its place is known."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    key: int | None
    nbytes: int | None


class _Rows:
    """Sorts entries into rows; what is none is counted."""

    def __init__(self) -> None:
        self._work: list[_WorkRow] = []
        self._calls: list[_CallRow] = []
        self._operators: list[HostEvent] = []
        self._marks: list[HostEvent] = []
        self._python: list[HostEvent] = []
        self._began: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._names: dict[str, _Name] = {}
        self._threads: dict[Any, int] = {}
        self._processes: dict[int, str] = {}
        self._unknown: Counter[str] = Counter()
        self._left_out = 0
        self._takers: dict[str, _Taker] = {}

    # ---------------------------------------------------------------- one by one

    def take(self, entries: Iterable[Any]) -> None:
        """Make rows of entries, whatever they are."""
        for entry in entries:
            try:
                self._take(entry)
            except (
                TypeError,
                ValueError,
                LookupError,
                ArithmeticError,
                AttributeError,
            ):
                self._left_out += 1

    def _take(self, entry: dict[str, Any]) -> None:
        phase = entry["ph"]
        if phase == "X":
            start_ns = _ns(entry["ts"])
            self._span(entry, start_ns, start_ns + _ns(entry["dur"]))
        elif phase == "B":
            _ns(entry["ts"])
            self._began.setdefault((entry["pid"], entry["tid"]), []).append(entry)
        elif phase == "E":
            began = self._began[entry["pid"], entry["tid"]].pop()
            self._span(began, _ns(began["ts"]), _ns(entry["ts"]))
        elif phase == "M":
            if entry["name"] == "process_name" and type(entry["pid"]) is int:
                self._processes[entry["pid"]] = str(entry["args"]["name"])
        elif phase not in _NO_SPANS:
            self._unknown[f"phase {shortened(_clean(phase), 20)}"] += 1

    def _span(self, entry: dict[str, Any], start_ns: int, end_ns: int) -> None:
        if not -_MOST_NS < start_ns <= end_ns < _MOST_NS:
            raise ValueError
        taker = self._takers.get(entry.get("cat", "")) or self._taker_for(entry)
        if taker is not None:
            name = entry["name"]
            taker(self._names.get(name) or self._name(name), start_ns, end_ns, entry)

    def _taker_for(self, entry: dict[str, Any]) -> _Taker | None:
        """What makes rows of entries of a kind; None where nothing does."""
        kind = entry.get("cat") or _BY_PROCESS.get(entry.get("pid", ""))
        if not kind:
            self._unknown["without a kind"] += 1
            return None
        small = kind.lower()
        taker: _Taker
        if small in _WORK:
            taker = functools.partial(self._take_work, _WORK[small])
        elif small.startswith(_MTIA):
            taker = self._take_work_of_mtia
        elif small in _CALLS or small.endswith(kineto.CALLS):
            taker = self._take_call
        elif small in _OPERATORS:
            taker = self._take_operator
        elif small == kineto.MARK:
            taker = self._take_mark
        elif small == _PYTHON:
            taker = self._take_python
        elif small in _NO_ROWS:
            taker = _take_nothing
        else:
            self._unknown[shortened(_clean(kind), 40)] += 1
            return None
        if "cat" in entry:
            self._takers[kind] = taker
        return taker

    def _name(self, name: str) -> _Name:
        clean = _clean(name)
        named = self._names[name] = _Name(
            clean,
            is_mark=clean.startswith(_MARKED),
            is_ours=clean.startswith(kineto.OWN_TRACES),
            communicates=_COMMUNICATES.search(clean) is not None,
        )
        return named

    def _take_work(
        self, kind: SpanKind, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        args = entry.get("args") or {}
        device, stream = args.get("device"), args.get("stream")
        key = args.get("correlation")
        communicates = name.communicates and kind is SpanKind.KERNEL
        row = _WorkRow(
            name,
            start_ns,
            end_ns,
            kind,
            _whole(entry.get("pid") if device is None else device),
            _whole(entry.get("tid") if stream is None else stream),
            _sent(args) if communicates else _whole(args.get("bytes")),
            key if type(key) is int and key > 0 else None,
            _plain(args) if communicates else None,
        )
        if "launched_us" in args:  # of ours: a call ends when its work is in the queue
            row = row._replace(key=_ns(args["launched_us"]))
        self._work.append(row)

    def _take_work_of_mtia(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        if name.text.startswith(_MTIA_EVENTS):  # recorded and waited for
            return
        is_copy = name.text.startswith(_MTIA_COPIES)
        kind = SpanKind.COPY if is_copy else SpanKind.KERNEL
        self._take_work(kind, name, start_ns, end_ns, entry)
        if is_copy:
            nbytes = _whole((entry.get("args") or {}).get("size"))
            self._work[-1] = self._work[-1]._replace(nbytes=nbytes)

    def _take_call(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        args = entry.get("args") or {}
        key, nbytes, text = args.get("correlation"), None, name.text
        if "size" in args:  # HIP tells it with the call only, and as text
            nbytes = int(args["size"]) if str(args["size"]).isdecimal() else None
        if entry["cat"] in _SIMULATED_CALLS:
            text, key = _SIMULATED_CALLS[entry["cat"]].format(text), end_ns
        key = key if type(key) is int and key > 0 else None
        thread = self._thread(entry.get("tid"))
        self._calls.append(_CallRow(text, start_ns, end_ns, thread, key, nbytes))

    def _take_operator(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        if name.is_ours:
            return
        args = entry.get("args") or {}
        number = args.get("Sequence number")
        if type(number) is not int or not 0 <= number < kineto.OF_NO_FORWARD:
            number = None
        thread = self._thread(entry.get("tid"))
        row = HostEvent(name.text, start_ns, end_ns, thread, number)
        (self._marks if name.is_mark else self._operators).append(row)

    def _take_mark(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        thread = self._thread(entry.get("tid"))
        self._marks.append(HostEvent(name.text, start_ns, end_ns, thread))

    def _take_python(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        thread = self._thread(entry.get("tid"))
        self._python.append(HostEvent(name.text, start_ns, end_ns, thread))

    def _thread(self, number: Any) -> int:
        """The thread's number; a name has one of its own, below zero."""
        if type(number) is int:
            return number
        return self._threads.setdefault(number, -1 - len(self._threads))

    # ---------------------------------------------------------------- altogether

    def events(self, file: Unpacking, entries: Entries) -> TraceEvents:
        """All rows in order, with what the file tells beside them."""
        values = entries.values
        since_ns = self._since_ns(values.get("baseTimeNanoseconds"))
        calls = [
            HostEvent(name, start_ns, end_ns, thread)
            for name, start_ns, end_ns, thread, _, _ in _in_order(self._calls)
        ]
        events = TraceEvents(
            FileRead(
                shortened(file.name, 200),
                entries.nbytes,
                entries.count,
                self._missing(file, entries),
                tuple(self._unknown.most_common(_MOST_UNKNOWN)),
            ),
            self._called(),
            calls,
            _in_order(self._operators),
            _in_order(self._marks),
            _in_order(self._python),
            main_thread=self._main_thread(),
            rank=_rank(values, file.name),
            world_size=_of_all(values, "world_size"),
            device_names=_device_names(values),
        )
        if _is_ours(values):
            events.simulated = True
            events.device_names = self._simulated_names(values)
        if since_ns is not None:
            events.since_1970 = True
            _shift(events, since_ns)
        return events

    def _called(self) -> list[Work]:
        """Work in order, each piece with its call."""
        work, calls = _in_order(self._work), _in_order(self._calls)
        callers = kineto.callers_of(
            (row.key for row in work), ((row.key, row.end_ns) for row in calls)
        )
        rows = []
        for row in work:
            call = None if row.key is None else callers.get(row.key)
            nbytes = row.nbytes
            if nbytes is None and call is not None and row.kind is not SpanKind.KERNEL:
                nbytes = calls[call].nbytes
            rows.append(
                Work(
                    row.name.text,
                    row.kind,
                    row.args is not None,
                    row.start_ns,
                    row.end_ns,
                    row.device,
                    row.stream,
                    nbytes,
                    call,
                    row.args,
                )
            )
        return rows

    def _main_thread(self) -> int | None:
        steps = Counter(row.thread for row in self._marks if row.name.startswith(_STEP))
        launches = Counter(
            row.thread
            for row in self._calls
            if kineto.kind_of_call(row.name) is SpanKind.LAUNCH
        )
        operators = Counter(row.thread for row in self._operators)
        for counts in (steps, launches, operators):
            if counts:
                return counts.most_common(1)[0][0]
        return None

    def _since_ns(self, base: Any) -> int | None:
        """What is to be added to count from 1970 on; None where that is not known."""
        rows: list[Any] = self._operators or self._work or self._marks or self._calls
        if not rows:
            return None
        if rows[len(rows) // 2].start_ns > _FIRST_NS:
            return 0
        return base if type(base) is int and _FIRST_NS < base < _MOST_NS // 2 else None

    def _simulated_names(self, values: dict[str, Any]) -> dict[int, str]:
        label = _clean(values["otherData"]["machine"])
        devices = (row.device for row in self._work)
        return {device: label for device in devices if device is not None}

    def _missing(self, file: Unpacking, entries: Entries) -> str | None:
        """What could not be read, in sentences."""
        read = count_text(entries.count, "entry", "entries")
        said = []
        if file.missing:
            said.append(f"{file.missing}; {read} could be read")
        elif entries.is_cut:
            said.append(f"the file ends within its list, after {read}")
        elif entries.is_damaged:
            share = share_text(1 - entries.place / max(entries.nbytes, 1))
            said.append(
                f"the file is damaged after {read}: the rest ({share}) is missing"
            )
        left_out = self._left_out + entries.left_out
        left_out += sum(len(began) for began in self._began.values())
        if left_out:
            said.append(
                f"{count_text(left_out, 'entry', 'entries')} left out: "
                "no event, or without a time that can be true"
            )
        return "; ".join(said) or None


# -------------------------------------------------------------------- small things


def _take_nothing(*_: Any) -> None:
    """Known, and nothing that anybody did."""


def _ns(microseconds: Any) -> int:
    """A time in nanoseconds, as exactly as the file has it."""
    if type(microseconds) is int:
        return microseconds * 1000
    if type(microseconds) is float:
        # Both parts are exact; their product with 1000 at once would not be.
        whole = int(microseconds)
        return whole * 1000 + round((microseconds - whole) * 1000)
    if type(microseconds) is Decimal:
        return round(microseconds * 1000)
    raise TypeError


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value if -_MOST_NS < value < _MOST_NS else None
    return None


def _clean(text: Any) -> str:
    """A text that can be written; halves of characters cannot."""
    if not isinstance(text, str):
        raise TypeError
    return text.encode("utf-8", "replace").decode()


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """The same with floats, where numbers were read digit by digit."""
    return {
        _clean(key): float(value) if type(value) is Decimal else value
        for key, value in args.items()
    }


def _sent(args: dict[str, Any]) -> int | None:
    """How much this rank put into what it did with others."""
    count, kind = args.get("In msg nelems"), args.get("dtype")
    if type(count) is not int or not isinstance(kind, str):
        return None
    size = _BYTES.get(kind.lower())
    return None if size is None else _whole(count * size)


_Row = TypeVar("_Row", bound="_WorkRow | _CallRow | HostEvent")


def _in_order(rows: list[_Row]) -> list[_Row]:
    """By their beginnings; of those that begin together the longest first."""
    rows.sort(key=itemgetter(2), reverse=True)
    rows.sort(key=itemgetter(1))
    return rows


def _shift(events: TraceEvents, by_ns: int) -> None:
    """Count all times from another moment on."""
    if not by_ns:
        return
    events.work = [
        row._replace(start_ns=row.start_ns + by_ns, end_ns=row.end_ns + by_ns)
        for row in events.work
    ]
    for rows in (events.calls, events.operators, events.marks, events.python):
        rows[:] = [
            HostEvent(name, start_ns + by_ns, end_ns + by_ns, thread, sequence)
            for name, start_ns, end_ns, thread, sequence in rows
        ]


def _of_all(values: dict[str, Any], key: str) -> int | None:
    """A number that the ranks know of each other."""
    told = values.get("distributedInfo")
    number = _whole(told.get(key)) if isinstance(told, dict) else None
    return None if number is None or number < 0 else number


def _rank(values: dict[str, Any], name: str) -> int | None:
    """The rank that the file tells, or its name."""
    told = _of_all(values, "rank")
    if told is not None:
        return told
    found = (each.search(name) for each in _RANK)
    return next((int(each[1]) for each in found if each), None)


def _device_names(values: dict[str, Any]) -> dict[int, str]:
    told = values.get("deviceProperties")
    return {
        each["id"]: _clean(each["name"])
        for each in (told if isinstance(told, list) else [])
        if isinstance(each, dict)
        and _whole(each.get("id")) is not None
        and isinstance(each.get("name"), str)
    }


def _is_ours(values: dict[str, Any]) -> bool:
    """Whether it is a trace of the simulated GPU: `simulator/tracing.py` writes it."""
    told = values.get("otherData")
    return isinstance(told, dict) and isinstance(told.get("machine"), str)
