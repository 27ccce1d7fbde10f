"""Reads torch's flight recorder: where a rank is, and when it has called what.

The recorder is on by default, also on gloo and without a GPU. Its way out is private to
torch and differs by version, so it is looked for. To ask for numbers takes some ten
microseconds; names come with all that it has recorded, which takes a tenth of a second.
It keeps the newest calls in a ring, with the moment of each. It does not say when a
collective of gloo has ended; but none ends before the last rank has called it, which is
enough for waits once clocks are put together.

Numbers come by what this process alone calls its groups; calls have that beside the
name that all ranks know. A torch with NCCL has two recorders, one for its collectives
and one for those of gloo.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.gpu_ranks.answers import EVERYBODYS
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_WAYS_OUT = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_NUMBER = "collective_seq_id"
_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def flight(*, asks_for_calls: bool = True) -> dict[str, Any] | None:
    """The last collective of each group, and those that are open; None if unknown.

    In the shape in which it travels: see `answers.Flight`.
    """
    if (roll := _roll()) is not None:
        is_open = roll.under_way
        return {
            "under_way": [_row_of(is_open)] if is_open else [],
            "last": [_row_of(call) for call in tuple(roll.last.values())],
        }
    told = _told(with_calls=asks_for_calls)
    if not told:
        return None
    entries = [call for _, its in told for call in its]
    status = {group: its for each, _ in told for group, its in each.items()}
    last, under_way = _calls(entries, status)
    named = _named(status)
    return {
        "under_way": [
            _row(name, under_way[its])
            for name, its in named.items()
            if its in under_way
        ],
        "last": [
            _row(name, last[its]) if its in last else [name, status[its], "", ""]
            for name, its in named.items()
            if status[its] >= 0
        ],
    }


def numbers() -> dict[str, int]:
    """The number of the last call in each group, -1 for none; empty if unknown."""
    if (roll := _roll()) is not None:
        return {name: call.number for name, call in tuple(roll.last.items())}
    status = {group: its for each, _ in _told() for group, its in each.items()}
    return {name: status[group] for name, group in _named(status).items()}


def _roll() -> Any:
    """What groups of simulated GPUs have written down, which is read in its place."""
    roll = getattr(simulated_box(), "roll", None)
    return roll if roll is not None and roll.last else None


def _row_of(call: Any) -> list[Any]:
    return [call.group, call.number, call.name, bytes_text(call.nbytes)]


def calls() -> list[dict[str, Any]]:
    """All that NCCL's recorder holds, else gloo's, in order of calls; it is dear."""
    told = [entries for _, entries in _told(with_calls=True) if entries]
    found = [each for each in told[-1] if "record_id" in each] if told else []
    return sorted(found, key=lambda each: int(each["record_id"]))


def group_of(call: Mapping[str, Any]) -> str:
    """The name of a call's group, the same on all ranks; "" for one of our own."""
    return str((call.get("process_group") or [EVERYBODYS])[0])


def _named(status: Mapping[str, int]) -> dict[str, str]:
    """What this process calls each group, by name; of several the newest.

    A group that nobody has seen a call of is one that no other rank knows.
    """
    used = frozenset(each for each, its in status.items() if its >= 0)
    names = {"0": EVERYBODYS} | _names_of(used - {"0"})
    found = {}
    for group in sorted(status, key=lambda each: (len(each), each)):
        name = names.get(group, f"{group} of process {os.getpid()}")
        if name:
            found[name] = group
    return found


@functools.lru_cache(maxsize=1)  # until another group is used: it is dear
def _names_of(groups: frozenset[str]) -> dict[str, str]:
    """By what this process calls a group the name that all ranks know."""
    told = _told(with_calls=True) if groups else ()
    return {call["pg_id"]: group_of(call) for _, its in told for call in its}


def _row(group: str, call: Mapping[str, Any]) -> list[Any]:
    name = str(call.get("profiling_name", "")).rpartition(":")[2]
    sizes = call.get("input_sizes")
    return [group, call[_NUMBER], name, "" if sizes is None else json.dumps(sizes)]


def _calls(
    entries: list[dict[str, Any]], status: Mapping[str, int]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """By group: its last call, and its first one that has not ended.

    The recorder keeps what a group of the same name has left open before it was begun
    anew: going back in time, it begins where numbers do not fall any more.
    """
    last: dict[str, dict[str, Any]] = {}
    under_way: dict[str, dict[str, Any]] = {}
    least = {group: its + 1 for group, its in status.items()}
    for each in reversed(entries):
        group, number = each["pg_id"], each.get(_NUMBER, -1)
        if each.get("is_p2p") or group not in least:
            continue
        if not 0 <= number < least[group]:
            del least[group]
            continue
        least[group] = number
        last.setdefault(group, each)
        if not each.get("retired", False):
            under_way[group] = each
    return last, under_way


def _told(
    *, with_calls: bool = False
) -> list[tuple[dict[str, int], list[dict[str, Any]]]]:
    """How far each group is, and calls, the oldest first; of NCCL's recorder last.

    Where there are two, what they call a group begins with the recorder.
    """
    module = sys.modules.get("torch._C._distributed_c10d")
    dumps = {name: getattr(module, name, None) for name in _WAYS_OUT}
    there = {name: each for name, each in dumps.items() if each is not None}
    found = []
    for name, dump in there.items():
        prefix = f"{name} " if len(there) > 1 else ""
        with contextlib.suppress(Exception):  # private: tomorrow it may be otherwise
            found.append(_read(json.loads(dump(with_calls, False)), prefix))
    return found


def _read(
    told: dict[str, Any], prefix: str
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    status = {
        f"{prefix}{group}": int(its.get("last_enqueued_collective", -1))
        for group, its in told["pg_status"].items()
    }
    entries = [
        each | {"pg_id": f"{prefix}{each.get('pg_id', group_of(each))}"}
        for each in told.get("entries", ())
        if isinstance(each, dict)
    ]
    return status, entries


# ------------------------------------------------------------- what a block has called


def is_recorded() -> bool:
    """Whether this torch has a recorder for all backends, and it is on."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    ring = next((int(each) for each in said if each.isdecimal()), _RING)
    module = sys.modules.get("torch._C._distributed_c10d")
    return ring > 0 and getattr(module, _WAYS_OUT[0], None) is not None


def recorded(since_ns: int) -> tuple[list[list[Any]], int | None]:
    """The calls since a moment; and from when on, where the recorder has lost some."""
    there = calls()
    entries = [each for each in there if _created_ns(each) >= since_ns]
    # All that is there is new: so what came before it is gone.
    is_lost = len(entries) == len(there) and bool(there) and there[0]["record_id"] > 0
    rows = [row for each in entries if (row := _travelling(each)) is not None]
    return rows, rows[0][4] if is_lost and rows else None


def _travelling(entry: Mapping[str, Any]) -> list[Any] | None:
    """As a collective travels; None for what only two have to do with."""
    group = group_of(entry)
    if entry.get("is_p2p") or not group:
        return None
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    number, at_ns = int(entry.get("collective_seq_id", 0)), _created_ns(entry)
    return [group, number, name, None, at_ns, at_ns]


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))
