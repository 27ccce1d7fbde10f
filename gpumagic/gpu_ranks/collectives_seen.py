"""What a rank has called together with others, by torch's flight recorder.

The recorder keeps the newest calls in a ring, with the moment of each, and costs
nothing that was not paid before. To read it takes some 50 us a call, with Python's lock
held. So it is read at the end, and before the ring is full only where the code tells
its steps: there all ranks read at the same step, and none waits for one that reads. A
job that calls too often for that is told of the newest calls alone.

It does not say when a collective has ended. But none ends before the last rank has
called it: that is enough for waits, once the clocks are put together. What the transfer
takes stays unknown, and is part of what a rank does by itself.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks import flight_recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_READING_S = 50e-6  # a call
_MOST_OF_TIME = 0.01  # that reading may take while the block runs
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


def numbers() -> dict[str, int]:
    """The number of the last collective of each group; empty without a recorder."""
    told = flight_recorder._told(with_calls=False).get("pg_status")  # noqa: SLF001
    if not isinstance(told, dict):
        return {}
    return {
        str(group): flight_recorder._number(said, "enqueued")  # noqa: SLF001
        for group, said in told.items()
    }


def is_recorded() -> bool:
    """Whether this torch has a recorder, and it is on.

    It knows of no group before the first call of one.
    """
    return bool(numbers()) and ring() > 0


def ring() -> int:
    """How many calls the recorder keeps."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    return next((int(each) for each in said if each.isdecimal()), _RING)


class Seen:
    """The calls of this rank from now on.

    Args:
        since_ns: When that is, by the clock of the recorder.

        without: The name of a group that does not count.

        most: How many are kept; what comes later is not known.
    """

    def __init__(self, since_ns: int, without: str | None, *, most: int) -> None:
        self._since_ns = since_ns
        self._without = without
        self._most = most
        self._read_at = ring() // 2
        self._began_s = time.monotonic()
        self._next_check = 1
        self._steps = 0
        self._is_dear = False
        self._from: int | None = None
        self._checked_at = self._called()
        self._read_to: int | None = None
        self._last: dict[str, int] = {}  # by group, what of its calls came last
        self.rows: list[Row] = []
        self.sends = 0  # at least: of these only those between two collectives show
        self.from_ns: int | None = None
        self.until_ns: int | None = None

    def step(self) -> None:
        """Read before the ring is full; at the same step on all ranks."""
        self._steps += 1
        if self._steps < self._next_check or self._is_dear:
            return
        called = self._called() - self._checked_at
        if called >= self._read_at:
            since_s = time.monotonic() - self._began_s
            self._is_dear = called * _READING_S > _MOST_OF_TIME * since_s
            if self._is_dear:
                return
            self.read()
            self._began_s = time.monotonic()
            called, self._checked_at = 0, self._called()
            self._from = self._steps
        since = self._steps - (self._from or 0)
        each = called / since if since else self._read_at
        left = (self._read_at - called) / each if each else self._steps
        # Halves, as steps may come to call more than they did.
        self._next_check = self._steps + max(1, int(left / 2))

    def read(self) -> None:
        """Take what has been called since; what the ring has lost begins it anew."""
        if self.until_ns is not None:
            return
        there = _entries()
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
        group = str((entry.get("process_group") or ["0"])[0])
        if entry.get("is_p2p") or group == self._without:
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
        return sum(max(number, 0) for number in numbers().values())


def _entries() -> list[dict[str, Any]]:
    """What the ring holds, in order of the calls."""
    told = flight_recorder._told(with_calls=True).get("entries", ())  # noqa: SLF001
    found = [each for each in told if isinstance(each, dict) and "record_id" in each]
    return sorted(found, key=_id)


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


# --------------------------------------------------------------- of all ranks together


def on_one_clock(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The answers of ranks by the clock of rank 0, with ends where none are known.

    Args:
        answers: Of kind "done", each with `offset_ns`. Those without `"ends":
            "unknown"` know theirs, and are shifted alone.
    """
    shifted = [_shifted(each) for each in answers]
    open_ended = [each for each in shifted if each.get("ends") == UNKNOWN]
    if len(open_ended) > 1 and any(each.get("offset_ns") is None for each in answers):
        for each in open_ended:  # without a common clock calls tell nothing
            each["collectives"], each["told_by"] = [], ""
        return shifted
    _cut(open_ended)
    latest = _latest(each["collectives"] for each in open_ended)
    for each in open_ended:
        each["collectives"] = _with_ends(each["collectives"], latest)
    return shifted


def _shifted(answer: Mapping[str, Any]) -> dict[str, Any]:
    offset_ns = answer.get("offset_ns") or 0
    changed = dict(answer)
    for key in ("began_ns", "ended_ns", "from_ns", "until_ns"):
        if isinstance(changed.get(key), int):
            changed[key] += offset_ns
    changed["collectives"] = [
        [*row[:4], row[4] + offset_ns, row[5] + offset_ns, *row[6:]]
        for row in answer.get("collectives") or ()
    ]
    return changed


def _cut(answers: Sequence[dict[str, Any]]) -> None:
    """Leave out what is not known of all ranks: recorders keep only so much."""
    begins = [at for each in answers if isinstance(at := each.get("from_ns"), int)]
    ends = [at for each in answers if isinstance(at := each.get("until_ns"), int)]
    from_ns = max(begins, default=None)
    until_ns = min(ends, default=None)
    for each in answers:
        began_ns, ended_ns = each["began_ns"], each["ended_ns"]
        if from_ns is not None:
            began_ns = max(began_ns, from_ns)
        if until_ns is not None:
            ended_ns = min(ended_ns, until_ns)
        if began_ns >= ended_ns:  # nothing is common: so nothing can be compared
            each["collectives"] = []
            continue
        each["began_ns"], each["ended_ns"] = began_ns, ended_ns
        each["collectives"] = [
            row for row in each["collectives"] if began_ns <= row[4] <= ended_ns
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


def _with_ends(rows: Sequence[Row], latest: Mapping[tuple[Any, ...], int]) -> list[Row]:
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
