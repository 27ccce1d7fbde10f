"""Reads a trace of torch's profiler, of any version and device, into plain rows.

What the entries mean is `devices/kineto.py`'s: it reads the traces that are made here.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from gpumagic.devices import kineto
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import trace_words as words
from gpumagic.gpu_open.entries import Entries
from gpumagic.gpu_open.files import MOST_BYTES, unpacking
from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.events import SpanKind
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpumagic.gpu_open.files import Unpacking

    Progress: TypeAlias = Callable[[float], object]

_ID = "External id"  # an entry's own
_MOST_UNKNOWN = 20
_MOST_NS = 2**61  # so that two of them added are a number of 64 bits
_EXACT_US = 2**40  # a float below it is still exact when multiplied
_FIRST_NS = 10**18  # in 2001: a clock that is later counts from 1970 on


def read(
    path: str | Path,
    progress: Progress | None = None,
    *,
    most_bytes: int = MOST_BYTES,
) -> TraceEvents:
    """Read one file."""
    with unpacking(path, most_bytes=most_bytes) as file, without_collecting():
        if file.kind != "trace":
            raise GpuMagicError(
                f"{_shown(file)} is a memory snapshot, no trace",
                f"type: %gpu_open {_shown(file)}",
            )
        entries = Entries(_told(file, progress), words.KEYS)
        rows = _Rows()
        for each in entries:
            rows.take(each)
        if not entries.count:
            raise _nothing_there(file, entries)
        return rows.events(file, entries)


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

# Rows before calls are known: plain tuples, as very many are made. Name, start and end
# in nanoseconds, then of a call its thread, of both the correlation by which they find
# each other, how much was copied, and of work all that `Work` has more.
_Call: TypeAlias = "tuple[str, int, int, int, int | None, int | None]"
_Piece: TypeAlias = (
    "tuple[str, int, int, int | None, int | None, SpanKind, bool,"
    " int | None, int | None, _Entry | None]"
)
_Told: TypeAlias = "tuple[int, int, dict[str, Any]]"  # start, end, arguments
_event = functools.partial(tuple.__new__, HostEvent)
_work = functools.partial(tuple.__new__, Work)


class _Rows:
    """Sorts entries into rows; what is none is counted."""

    def __init__(self) -> None:
        self._work: list[_Piece] = []
        self._calls: list[_Call] = []
        self._operators: list[HostEvent] = []
        self._marks: list[HostEvent] = []
        self._python: list[HostEvent] = []
        self._began: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._told: dict[int, list[_Told]] = {}  # by thread
        self._names: dict[str, _Name] = {}
        self._threads: dict[Any, int] = {}
        self._unknown: Counter[str] = Counter()
        self._left_out = 0
        self._takers: dict[str, _Taker] = {}

    # ---------------------------------------------------------------- one by one

    def take(self, entries: Iterable[Any]) -> None:
        """Make rows of entries, whatever they are."""
        takers, names = self._takers, self._names
        for entry in entries:
            try:
                if entry["ph"] != "X":
                    self._take_other(entry)
                    continue
                began, took = entry["ts"], entry["dur"]
                start_ns = began * 1000 if type(began) is int else _ns(began)
                end_ns = start_ns + _ns(took)
                if not -_MOST_NS < start_ns <= end_ns < _MOST_NS:
                    self._left_out += 1
                    continue
                taker = takers.get(entry.get("cat", "")) or self._taker_for(entry)
                name = entry["name"]
                taker(names.get(name) or self._name(name), start_ns, end_ns, entry)
            except (
                TypeError,
                ValueError,
                LookupError,
                ArithmeticError,
                AttributeError,
            ):
                self._left_out += 1

    def _take_other(self, entry: _Entry) -> None:
        """Of what is no span, two make one, and some names a process."""
        phase = entry["ph"]
        if phase == "B":
            _ns(entry["ts"])
            self._began.setdefault((entry["pid"], entry["tid"]), []).append(entry)
        elif phase == "E":
            began = self._began[entry["pid"], entry["tid"]].pop()
            # Seldom: microseconds digit by digit lose nothing in a difference.
            took_us = Decimal(_ns(entry["ts"]) - _ns(began["ts"])) / 1000
            self.take([{**began, "ph": "X", "dur": took_us}])
        elif phase not in words.NO_SPANS:
            self._unknown[f"phase {shortened(words.clean(phase), 20)}"] += 1

    def _taker_for(self, entry: _Entry) -> _Taker:
        """What makes rows of entries of a kind."""
        kind = entry.get("cat") or words.BY_PROCESS.get(entry.get("pid", ""))
        if not kind:
            self._unknown["without a kind"] += 1
            return _take_nothing
        small = kind.lower()
        taker: _Taker
        if small in words.WORK:
            taker = functools.partial(self._take_work, words.WORK[small])
        elif small.startswith(words.MTIA):
            taker = self._take_work_of_mtia
        elif small in words.CALLS or small.endswith(kineto.CALLS):
            taker = self._take_call
        elif small in words.OPERATORS:
            taker = self._take_operator
        elif small == kineto.MARK:
            taker = functools.partial(self._take_host, self._marks)
        elif small == words.PYTHON:
            taker = functools.partial(self._take_host, self._python)
        elif small in words.NO_ROWS:
            taker = _take_nothing
        else:
            self._unknown[shortened(words.clean(kind), 40)] += 1
            return _take_nothing
        if "cat" in entry:
            self._takers[kind] = taker
        return taker

    def _name(self, name: str) -> _Name:
        clean = words.clean(name)
        named = self._names[name] = _Name(
            clean,
            is_mark=clean.startswith(words.MARKED),
            is_ours=clean.startswith(kineto.OWN_TRACES),
            communicates=words.communicates(clean),
        )
        return named

    def _take_work(
        self, kind: SpanKind, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        args = entry.get("args") or {}
        get = args.get
        device, stream, key = get("device"), get("stream"), get("correlation")
        nbytes, sent = get("bytes"), None
        if "launched_us" in args:  # of ours: a call ends when its work is in the queue
            key = _ns(args["launched_us"])
        if kind is SpanKind.KERNEL and name.communicates:
            nbytes, sent = words.sent_bytes(args), _plain(args)
        self._work.append(
            (
                name.text,
                start_ns,
                end_ns,
                key if type(key) is int and key > 0 else None,
                words.whole(nbytes),
                kind,
                sent is not None,
                words.whole(entry.get("pid") if device is None else device),
                words.whole(entry.get("tid") if stream is None else stream),
                sent,
            )
        )

    def _take_work_of_mtia(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        if name.text.startswith(words.MTIA_COPIES):
            args = entry.get("args") or {}
            entry = {**entry, "args": {**args, "bytes": args.get("size")}}
            self._take_work(SpanKind.COPY, name, start_ns, end_ns, entry)
        elif not name.text.startswith(words.MTIA_EVENTS):  # recorded and waited for
            self._take_work(SpanKind.KERNEL, name, start_ns, end_ns, entry)

    def _take_call(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        args = entry.get("args") or {}
        thread, key = entry.get("tid"), args.get("correlation")
        text, nbytes = name.text, None
        if "size" in args:  # HIP tells it with the call only, and as text
            nbytes = int(args["size"]) if str(args["size"]).isdecimal() else None
        if entry["cat"] in words.SIMULATED_CALLS:
            text, key = words.SIMULATED_CALLS[entry["cat"]].format(text), end_ns
        self._calls.append(
            (
                text,
                start_ns,
                end_ns,
                thread if type(thread) is int else self._thread(thread),
                key if type(key) is int and key > 0 else None,
                nbytes,
            )
        )

    def _take_operator(
        self, name: _Name, start_ns: int, end_ns: int, entry: _Entry
    ) -> None:
        if name.is_ours:
            return
        thread, args = entry.get("tid"), entry.get("args")
        number = args.get("Sequence number") if args else None
        if number is not None and not (
            type(number) is int and 0 <= number < kineto.OF_NO_FORWARD
        ):
            number = None
        if type(thread) is not int:
            thread = self._thread(thread)
        if name.text == words.COLLECTIVE and args:
            told = start_ns, end_ns, _plain(args)
            self._told.setdefault(thread, []).append(told)
        row = _event((name.text, start_ns, end_ns, thread, number))
        (self._marks if name.is_mark else self._operators).append(row)

    def _take_host(
        self,
        rows: list[HostEvent],
        name: _Name,
        start_ns: int,
        end_ns: int,
        entry: _Entry,
    ) -> None:
        thread = self._thread(entry.get("tid"))
        rows.append(_event((name.text, start_ns, end_ns, thread, None)))

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
        calls = [_event((*row[:4], None)) for row in _in_order(self._calls)]
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
            rank=words.rank_of(values, file.name),
            world_size=words.of_all_ranks(values, "world_size"),
            device_names=words.device_names(values),
        )
        if words.is_simulated(values):
            events.simulated = True
            events.device_names = self._simulated_names(values)
            since_ns = words.simulated_beginning(values)
        if since_ns is not None:
            events.since_1970 = True
            _shift(events, since_ns)
        return events

    def _called(self) -> list[Work]:
        """Work in order, each piece with its call."""
        work, calls = _in_order(self._work), _in_order(self._calls)
        for told in self._told.values():
            told.sort(key=itemgetter(0))
        callers = kineto.callers_of(
            (row[3] for row in work),
            ((row[4], row[2]) for row in calls),
            graphs={row[4] for row in calls if words.launches_a_graph(row[0])},
        )
        rows = []
        for name, start_ns, end_ns, key, nbytes, kind, sends, *where, args in work:
            call = callers.get(key)
            sent, more = nbytes, args
            if call is not None and kind is not SpanKind.KERNEL:
                sent = calls[call][5] if nbytes is None else nbytes
            elif call is not None and sends:
                more = {**self._told_at(calls[call]), **(args or {})}
                sent = words.sent_bytes(more)
            rows.append(
                _work((name, kind, sends, start_ns, end_ns, *where, sent, call, more))
            )
        return rows

    def _told_at(self, call: _Call) -> dict[str, Any]:
        """What the operator tells that the call was made in; kernels tell less."""
        told = self._told.get(call[3], [])
        at = bisect_right(told, call[1], key=itemgetter(0)) - 1
        if at < 0 or told[at][1] < call[1]:
            return {}
        return {key: value for key, value in told[at][2].items() if key != _ID}

    def _main_thread(self) -> int | None:
        steps = (row[3] for row in self._marks if row[0].startswith(words.STEP))
        names = {row[0] for row in self._calls}
        starts = {name for name in names if words.launches(name)}
        launches = (row[3] for row in self._calls if row[0] in starts)
        for threads in (steps, launches, (row[3] for row in self._operators)):
            most = Counter(threads).most_common(1)
            if most:
                return most[0][0]
        return None

    def _since_ns(self, base: Any) -> int | None:
        """What is to be added to count from 1970 on; None where that is not known."""
        rows = self._operators or self._work or self._marks or self._calls
        starts = [row[1] for row in rows[len(rows) // 2 :][:1]]
        if starts and starts[0] > _FIRST_NS:
            return 0
        return base if type(base) is int and _FIRST_NS < base < _MOST_NS else None

    def _simulated_names(self, values: dict[str, Any]) -> dict[int, str]:
        label = words.clean(values["otherData"]["machine"])
        devices = (row[7] for row in self._work)
        return {device: label for device in devices if device is not None}

    def _missing(self, file: Unpacking, entries: Entries) -> str | None:
        """What could not be read, in sentences."""
        said, read = [], _counted(entries.count)
        if file.missing:
            said.append(f"{file.missing}; {read} could be read")
        elif entries.is_listed and (entries.is_cut or entries.is_damaged):
            said.append(
                f"the file has no end, but all of its entries: {entries.count:,}"
            )
        elif entries.is_cut:
            said.append(f"the file was cut after {read}: the rest is missing")
        elif entries.is_damaged:
            share = 1 - entries.place / max(entries.nbytes, 1)
            # Of a file that was given up nobody knows how long it would have been.
            rest = f" ({share_text(share)})" if file.share == 1 else ""
            said.append(f"the file is damaged after {read}: the rest{rest} is missing")
        left_out = self._left_out + entries.left_out
        left_out += sum(len(began) for began in self._began.values())
        if left_out:
            said.append(
                f"{_counted(left_out)} left out: "
                "no event, or without a time that can be true"
            )
        return "; ".join(said) or None


# -------------------------------------------------------------------- small things


def _counted(entries: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}"


def _take_nothing(*_: Any) -> None:
    """Known, and nothing that anybody did."""


def _ns(microseconds: Any) -> int:
    """A time in nanoseconds, as exactly as the file has it."""
    if type(microseconds) is int:
        return microseconds * 1000
    if type(microseconds) is float:
        if microseconds < _EXACT_US:
            return round(microseconds * 1000)
        # Both parts are exact; their product with 1000 at once would not be.
        whole = int(microseconds)
        return whole * 1000 + round((microseconds - whole) * 1000)
    if type(microseconds) is Decimal:
        return round(microseconds * 1000)
    raise TypeError


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """The same with floats, where numbers were read digit by digit."""
    return {
        words.clean(key): float(value) if type(value) is Decimal else value
        for key, value in args.items()
    }


_Row = TypeVar("_Row", bound="tuple[Any, ...]")


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
