"""What a rank has called together with others, by torch's flight recorder.

The recorder keeps the newest calls in a ring, with the moment of each, and costs
nothing that was not paid before. It does not say when a collective has ended; but none
ends before the last rank has called it, which is enough for waits once clocks are put
together. A profiler's marks of gloo have ends, and no groups: calls tell those.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_ranks import flight_recorder
from gpumagic.gpu_ranks.answers import EVERYBODYS
from gpumagic.report.events import length, merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.gpu_open.trace_records import Collective

_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FEW = 200  # calls, of which is asked though there is one group alone
_OFF_NS = 2_000_000  # how far a profiler's clock may be from the recorder's
_SURE_NS = 5_000_000  # that a mark goes on after a call: else its end may just be late
_BYTES = {"Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4}
_BYTES |= dict.fromkeys(("Byte", "Char", "Bool"), 1)
_LARGE = 8  # bytes of an element of all other kinds


def last_numbers() -> dict[str, int]:
    """The number of the last collective of each group; empty without a recorder."""
    return {group: its.called for group, its in flight_recorder.numbers().items()}


def is_recorded() -> bool:
    """Whether this torch has a recorder for all backends, and it is on."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    ring = next((int(each) for each in said if each.isdecimal()), _RING)
    return ring > 0 and flight_recorder.is_there()


def recorded(since_ns: int, most: int) -> tuple[list[list[Any]], int | None]:
    """The last calls since a moment; and from when on, where there were more."""
    there = flight_recorder.calls()
    entries = [each for each in there if _created_ns(each) >= since_ns]
    # All that is there is new: so what came before it is gone.
    is_lost = len(entries) == len(there) and bool(there) and there[0]["record_id"] > 0
    rows = [row for each in entries if (row := _row(each)) is not None]
    if len(rows) > most:
        rows, is_lost = rows[-most:], True
    return rows, rows[0][4] if is_lost and rows else None


def _row(entry: Mapping[str, Any]) -> list[Any] | None:
    """As a collective travels; None for what only two have to do with."""
    group = flight_recorder.group_of(entry)
    if entry.get("is_p2p") or not group:
        return None
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    number, at_ns = int(entry.get("collective_seq_id", 0)), _created_ns(entry)
    return [group, number, name, _nbytes(entry), at_ns, at_ns]


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))


def _nbytes(entry: Mapping[str, Any]) -> int | None:
    """What it put in; None where sizes are not told."""
    sizes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    each = zip(sizes, kinds, strict=False)
    its = (math.prod(size) * _BYTES.get(str(kind), _LARGE) for size, kind in each)
    return int(sum(its))


# ------------------------------------------------------------------ marks of gloo


class Mark(NamedTuple):
    """A collective that a thread of gloo has worked on, by a profiler."""

    name: str
    start_ns: int
    end_ns: int


class RecordedCall(NamedTuple):
    """A collective that the host has called, by the recorder."""

    name: str
    group: str
    at_ns: int
    nbytes: int | None = None


def calls_of_marks(
    marks: Sequence[Mark], calls: Sequence[RecordedCall], alone: str | None
) -> list[RecordedCall | None]:
    """The call of each mark; None where that is not certain.

    One group works in the order of its calls. Of several that is known only where each
    call was made after the one before it had ended.
    """
    order = sorted(range(len(marks)), key=lambda at: marks[at].start_ns)
    found: list[RecordedCall | None] = [None] * len(marks)
    if len(marks) != len(calls):
        return found
    if alone is not None:
        left: dict[str, list[RecordedCall]] = defaultdict(list)
        for call in reversed(calls):
            left[call.name].append(call)
        for at in order:
            found[at] = left[marks[at].name].pop() if left[marks[at].name] else None
        return found
    pairs = [(marks[at], call) for at, call in zip(order, calls, strict=True)]
    alike = all(mark.name == call.name for mark, call in pairs)
    if alike and all(
        mark.end_ns <= min(after.start_ns, call.at_ns + _OFF_NS)
        for (mark, _), (after, call) in pairwise(pairs)
    ):
        for at, call in zip(order, calls, strict=True):
            found[at] = call
    return found


def with_groups(
    collectives: Sequence[Collective],
    marks: Sequence[Mark],
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
        module = sys.modules.get("torch.distributed.distributed_c10d")
        groups = getattr(getattr(module, "_world", None), "pg_map", ())
        alone = EVERYBODYS if len(groups) < 2 else None
    is_dear = sum(max(number, 0) for number in now.values()) > _FEW
    entries = [] if is_dear and alone is not None else flight_recorder.calls()
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
    called = sorted(call.at_ns for call in calls)
    nowhere = f"unknown group of process {os.getpid()} on {socket.gethostname()}"
    found = []
    its_calls = calls_of_marks(marks, calls, alone)
    for each, mark, call in zip(collectives, marks, its_calls, strict=True):
        group = alone if call is None else call.group
        # Until the host called something else it has certainly gone on.
        later = bisect_left(called, mark.end_ns - _SURE_NS) - 1
        beside_ns = called[later] - mark.start_ns if later >= 0 and call else 0
        nbytes = None if call is None else call.nbytes
        told = replace(each, group=group or nowhere, nbytes=nbytes)
        found.append(_gone_on(told, beside_ns / 1e9))
    return found


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
