"""What a rank has called together with others, by torch's flight recorder.

The recorder keeps the newest calls in a ring, with the moment of each, and costs
nothing that was not paid before. To read it takes some 50 us a call, with Python's lock
held. So it is read at the end, and before the ring is full only where the code tells
its steps: there all ranks read at the step that rank 0 has said before, and none waits
for one that reads. A job that calls too often for that, by the clock of rank 0, is told
of the newest calls alone.

It does not say when a collective has ended. But none ends before the last rank has
called it: that is enough for waits, once the clocks are put together. What the transfer
takes stays unknown, and is part of what a rank does by itself.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpumagic.gpu_ranks import flight_recorder
from gpumagic.gpu_ranks.gloo_marks import (
    Mark,
    Place,
    RecordedCall,
    groups_of_threads,
    placed,
)
from gpumagic.report.events import length, merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumagic.gpu_open.trace_events import HostEvent
    from gpumagic.gpu_open.trace_records import Collective

_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_READING_S = 100e-6  # a call: 68 us measured
_MOST_OF_TIME = 0.01  # that reading may take while the block runs
# Parts of the ring: when it is said at which step all read, heard, and done.
_SAY, _HEAR, _READ = 3 / 8, 7 / 16, 5 / 8
UNKNOWN = "unknown"  # what an answer says of its ends where the recorder has told
_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
}
_LARGE = 8  # bytes of an element of all other kinds

# As a collective travels: group, number, name, bytes, arrived, ended, during.
Row = list[Any]


def last_numbers() -> dict[str, int]:
    """The number of the last collective of each group; empty without a recorder."""
    told = flight_recorder.numbers() or {}
    return {group: its.called for group, its in told.items()}


def is_recorded() -> bool:
    """Whether this torch has a recorder, and it is on.

    It knows of no group before the first call of one.
    """
    return flight_recorder.knows_a_group() and ring() > 0


def ring() -> int:
    """How many calls the recorder keeps."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    return next((int(each) for each in said if each.isdecimal()), _RING)


class Schedule(Protocol):
    """At which step ranks read next, as one of them says it to all."""

    @property
    def is_ours(self) -> bool:
        """Whether it is this rank that says it."""

    def say(self, step: int | None) -> None:
        """Say it; None for never again."""

    def heard(self) -> tuple[int | None] | None:
        """What has been said since it was heard last; None for nothing."""


class Alone:
    """The schedule of one rank, which has nobody to say it to."""

    is_ours = True

    def say(self, step: int | None) -> None:
        """Nobody hears it."""

    def heard(self) -> tuple[int | None] | None:
        """Nobody says anything."""
        return None


class Seen:
    """The calls of this rank from now on.

    Args:
        since_ns: When that is, by the clock of the recorder.

        most: How many are kept; what comes later is not known.

        schedule: Shared with the other ranks of the job.
    """

    def __init__(
        self, since_ns: int, *, most: int, schedule: Schedule | None = None
    ) -> None:
        self._since_ns = since_ns
        self._most = most
        self._schedule = schedule or Alone()
        self._began_s = time.monotonic()
        self._next_look = 1
        self._steps = self._read_last = 0
        self._read_next: int | None = None
        self._is_dear = False
        self._called_before = self._called()
        self._read_to: int | None = None
        self._last: dict[str, int] = {}  # by group, what of its calls came last
        self.rows: list[Row] = []
        self.sends = 0  # at least: of these only those between two collectives show
        self.from_ns: int | None = None
        self.until_ns: int | None = None

    def step(self) -> None:
        """Read before the ring is full; at the same step on all ranks.

        One of them says a while before at which. Where it has said nothing in time, as
        it has fewer calls, a rank reads by itself rather than lose some.
        """
        self._steps += 1
        if self._steps < self._next_look or self._is_dear:
            return
        called = self._called() - self._called_before
        is_late = self._steps_until(ring(), called) < 1
        self._is_dear = self._read_next is None and self._may_not_read(called, is_late)
        if self._is_dear:
            return
        if is_late or (self._read_next or math.inf) <= self._steps:
            self.read()
            self._began_s = time.monotonic()
            called, self._called_before = 0, self._called()
            self._read_last, self._read_next = self._steps, None
        # Halves, as steps may come to call more than they did.
        left = self._steps_until(self._mark() * ring(), called)
        self._next_look = self._steps + max(1, int(left / 2))
        if self._read_next is not None:
            self._next_look = min(self._next_look, self._read_next)

    def _mark(self) -> float:
        """At which part of the ring there is something to do next."""
        if self._read_next is not None:
            return _READ
        return _SAY if self._schedule.is_ours else _HEAR

    def _may_not_read(self, called: int, is_late: bool) -> bool:  # noqa: FBT001
        """Whether reading is too dear; else it is found out when all read."""
        if not self._schedule.is_ours:
            said = self._schedule.heard() if called >= _HEAR * ring() else None
            if said is not None:
                (self._read_next,) = said
                return self._read_next is None
            return is_late and self._costs_too_much(called)
        if called < _SAY * ring():
            return False
        if not self._costs_too_much(called):
            left = math.ceil(self._steps_until(_READ * ring(), called))
            full = math.floor(self._steps_until(ring(), called))
            self._read_next = self._steps + max(min(left, full), 0)
        self._schedule.say(self._read_next)
        return self._read_next is None

    def _costs_too_much(self, called: int) -> bool:
        since_s = time.monotonic() - self._began_s
        return called * _READING_S > _MOST_OF_TIME * since_s

    def _steps_until(self, calls: float, called: int) -> float:
        """How many more steps there are until so many calls, if they go on alike."""
        since = self._steps - self._read_last
        each = called / since if since else _READ * ring()
        return (calls - called) / each if each else self._steps

    def read(self) -> None:
        """Take what has been called since; what the ring has lost begins it anew."""
        if self.until_ns is not None:
            return
        there = flight_recorder.calls()
        entries = [each for each in there if self._is_new(each)]
        if not entries:
            return
        if self._read_to is not None:
            lost = _id(entries[0]) > self._read_to + 1
        else:  # all that is there is new: so what came before it is gone
            lost = len(entries) == len(there) and _id(entries[0]) > 0
        if lost:
            self.rows.clear()
            self.from_ns = _created_ns(entries[0])
        self._read_to = _id(entries[-1])
        self.rows += [row for each in entries if (row := self._row(each)) is not None]
        if len(self.rows) > self._most:
            self.until_ns = self.rows[self._most][4]
            del self.rows[self._most :]

    def _is_new(self, entry: Mapping[str, Any]) -> bool:
        if self._read_to is not None:
            return _id(entry) > self._read_to
        return _created_ns(entry) >= self._since_ns

    def _row(self, entry: Mapping[str, Any]) -> Row | None:
        group = flight_recorder.group_of(entry)
        if entry.get("is_p2p") or group == "":
            return None
        # Gloo counts what only two have to do with, and records it not.
        call = int(entry.get("op_id", 0))
        self.sends += max(call - self._last.get(group, call) - 1, 0)
        self._last[group] = call
        at_ns = _created_ns(entry)
        name = str(entry.get("profiling_name", "")).rpartition(":")[2]
        number = int(entry.get("collective_seq_id", 0))
        return [group, number, name, _nbytes(entry), at_ns, at_ns, ""]

    def _called(self) -> int:
        return sum(max(number, 0) for number in last_numbers().values())


def _id(entry: Mapping[str, Any]) -> int:
    return int(entry["record_id"])


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))


def _nbytes(entry: Mapping[str, Any]) -> int | None:
    """What it put in; None where sizes are not told."""
    sizes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    if len(sizes) != len(kinds):
        return None
    return sum(
        _count(size) * _BYTES.get(str(kind), _LARGE)
        for size, kind in zip(sizes, kinds, strict=True)
    )


def _count(size: Iterable[int]) -> int:
    count = 1
    for each in size:
        count *= each
    return count


# ------------------------------------------------------------------ marks of gloo

_FEW = 200  # calls, of which is asked though there is one group alone
_threads: dict[int, str] = {}  # of gloo: the group of each, as far as it was certain
_NOWHERE = "unknown group of process"


def with_groups(
    collectives: Sequence[Collective],
    marks: Sequence[HostEvent],
    before: Mapping[str, int],
    since_ns: int,
) -> list[Collective]:
    """The same with the group of each, as far as it is known.

    What a rank does not know the group of is in one that no other rank is in: it is
    told, and compared with nothing.
    """
    now = last_numbers()
    used = [group for group in now if now[group] != before.get(group, -1)]
    alone = used[0] if len(used) == 1 else None
    if not now:  # without a recorder
        alone = flight_recorder.EVERYBODYS if _groups_here() < 2 else None
    dear = sum(max(number, 0) for number in now.values()) > _FEW
    places = [Place(alone)] * len(marks)
    if now and (alone is None or not dear):
        seen = [Mark(e.name, e.start_ns, e.end_ns, e.thread) for e in marks]
        calls, is_whole = _calls_since(since_ns)
        groups = groups_of_threads(seen, calls, _threads, is_whole=is_whole)
        _threads.update(groups)
        told = placed(seen, calls, groups, is_whole=is_whole)
        places = [its._replace(group=its.group or alone) for its in told]
    nowhere = f"{_NOWHERE} {os.getpid()} on {socket.gethostname()}"
    return [
        replace(
            _gone_on(each, its.beside_ns / 1e9),
            group=its.group or nowhere,
            nbytes=its.nbytes,
        )
        for each, its in zip(collectives, places, strict=True)
    ]


def _gone_on(each: Collective, beside_s: float) -> Collective:
    """The same where the host has gone on at its beginning, whatever else it did."""
    until_s = min(each.start_s + beside_s, each.end_s)
    if until_s <= each.start_s:
        return each
    hidden = merged([(each.start_s, until_s), *each.hidden])
    # What lies between pieces that were told as one is no more than it was.
    between_s = max(length(each.hidden) - (each.hidden_s or 0.0), 0.0)
    hidden_s = max(
        length(hidden) - between_s, until_s - each.start_s, each.hidden_s or 0.0
    )
    return replace(each, hidden_s=hidden_s, hidden=tuple(hidden))


def _groups_here() -> int:
    """How many groups this process is in."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    return len(getattr(getattr(module, "_world", None), "pg_map", ()))


def _calls_since(since_ns: int) -> tuple[list[RecordedCall], bool]:
    """What was called, in order; and whether it is all, or some has been lost."""
    entries = flight_recorder.calls()
    calls = [
        RecordedCall(
            str(each.get("profiling_name")),
            flight_recorder.group_of(each),
            _created_ns(each),
            _nbytes(each),
        )
        for each in entries
        if _created_ns(each) >= since_ns and not each.get("is_p2p")
    ]
    return calls, len(calls) < len(entries) or not entries or _id(entries[0]) == 0


# --------------------------------------------------------------- of all ranks together


def on_one_clock(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The answers of ranks by the clock of rank 0, with ends where none are known."""
    on_one = [shifted(each) for each in answers]
    open_ended = [each for each in on_one if each.get("ends") == UNKNOWN]
    if len(open_ended) > 1 and any(each.get("offset_ns") is None for each in answers):
        for each in open_ended:  # without a common clock calls tell nothing
            each["collectives"], each["told_by"] = [], ""
        return on_one
    _cut_to_common(open_ended)
    latest = _latest(each["collectives"] for each in open_ended)
    for each in open_ended:
        each["collectives"] = with_ends(each["collectives"], latest)
    return on_one


def shifted(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer by the clock of rank 0, as far as its `offset_ns` says.

    What is added from then on is nothing; None stays where it is not known.
    """
    offset_ns = answer.get("offset_ns") or 0
    changed = dict(answer)
    if offset_ns:
        changed["offset_ns"] = 0
    for key in ("began_ns", "ended_ns", "from_ns", "until_ns"):
        if isinstance(changed.get(key), int):
            changed[key] += offset_ns
    changed["collectives"] = [
        [*row[:4], row[4] + offset_ns, row[5] + offset_ns, *row[6:]]
        for row in answer.get("collectives") or ()
    ]
    return changed


def _cut_to_common(answers: Sequence[dict[str, Any]]) -> None:
    """Leave out what is not known of all ranks: recorders keep only so much."""
    begins = [at for each in answers if isinstance(at := each.get("from_ns"), int)]
    ends = [at for each in answers if isinstance(at := each.get("until_ns"), int)]
    for each in answers:
        cut_to(each, max(begins, default=None), min(ends, default=None))


def cut_to(answer: dict[str, Any], from_ns: int | None, until_ns: int | None) -> None:
    """Leave out what is not known of all ranks."""
    began_ns, ended_ns = answer["began_ns"], answer["ended_ns"]
    if from_ns is not None:
        began_ns = max(began_ns, from_ns)
    if until_ns is not None:
        ended_ns = min(ended_ns, until_ns)
    if began_ns >= ended_ns:  # nothing is common: so nothing can be compared
        answer |= {"collectives": [], "beside": [], "told_s": 0.0}
        return
    answer["began_ns"], answer["ended_ns"] = began_ns, ended_ns
    rows = answer["collectives"]
    kept = [at for at, row in enumerate(rows) if began_ns <= row[4] <= ended_ns]
    places = {at: place for place, at in enumerate(kept)}
    answer["collectives"] = [rows[at] for at in kept]
    answer["beside"] = [
        [places[at], *its] for at, *its in answer.get("beside") or () if at in places
    ]


def _latest(rows: Iterable[Sequence[Row]]) -> dict[tuple[Any, ...], int]:
    """When the last rank called each collective, of those that all of a group did."""
    came: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    there: Counter[Any] = Counter()
    for its in rows:
        for row in its:
            came[tuple(row[:3])].append(row[4])
        there.update({row[0] for row in its})
    return {key: max(at) for key, at in came.items() if len(at) == there[key[0]]}


def with_ends(rows: Sequence[Row], latest: Mapping[tuple[Any, ...], int]) -> list[Row]:
    """Each ends with the last call of any rank; whoever calls more meanwhile works.

    So of a collective that runs beside other work, as those of DDP do, a rank waits at
    most from the last of its own calls before the end.
    """
    called = sorted(row[4] for row in rows)
    ended = []
    for row in rows:
        end_ns = max(latest.get(tuple(row[:3]), row[4]), row[4])
        last_call = bisect_left(called, end_ns) - 1
        arrived_ns = max(row[4], called[last_call]) if last_call >= 0 else row[4]
        ended.append([*row[:4], min(arrived_ns, end_ns), end_ns, *row[6:]])
    return ended
