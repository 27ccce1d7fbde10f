"""Where this rank is in the order of its collectives, by torch's flight recorder.

The recorder is on by default, also on gloo and without a GPU. Its way out is private to
torch and differs by version, so it is looked for; without it, stacks have to do. To ask
for the numbers alone takes some ten microseconds; names come with all that it has
recorded, which takes a tenth of a second, and is asked for only where one is open.

Numbers come by what this process alone calls its groups: 0, 1, ... in the order in
which it has entered them. Calls have that beside the name that all ranks know.

A torch with NCCL has two recorders, one of which knows its collectives and the other
those of gloo; both begin to count groups at 0.

Groups of simulated GPUs keep a record of their own, which is read in its place: what
the recorder sees of them is how gloo moves their data.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SIMULATED = "simulated GPUs"  # who has told, where it was not the recorder
_NAMES = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_NUMBER = "collective_seq_id"
_BACKEND = ":"  # what stands behind it is the collective: gloo:all_reduce


def flight(*, asks_for_calls: bool = True) -> dict[str, Any] | None:
    """The last collective of each group, and those that are open; None if unknown.

    In the shape in which it travels: see `answers.Flight`.
    """
    roll, status = _roll(), _status()
    if roll is None and status is None:
        return None
    ours = {} if roll is None else roll.last
    status = status or {}
    named = {name: its for name, its in _named(status).items() if name not in ours}
    asked = {its: status[its] for its in named.values()} if asks_for_calls else {}
    last, under_way = _calls(asked) if asked else ({}, {})
    told: dict[str, Any] = {
        "under_way": [
            _row(name, under_way[its])
            for name, its in named.items()
            if its in under_way
        ],
        "last": [
            _row(name, last[its]) if its in last else [name, status[its].called, "", ""]
            for name, its in named.items()
            if status[its].called >= 0
        ],
    }
    if roll is not None:
        wait, broken_off = roll.wait, roll.broken_off
        is_open = broken_off if wait is None else wait.call
        has_place = is_open is not None and not is_open.of_two
        told["under_way"] += [_row_of(is_open)] if has_place else []
        told["last"] += [_row_of(call) for call in tuple(ours.values())]
        told["by"] = SIMULATED
    return told


def simulated_wait_s() -> float | None:
    """How long the host has been waiting in a collective of simulated GPUs."""
    roll = _roll()
    wait = None if roll is None else roll.wait
    return None if wait is None else time.monotonic() - wait.since_s


def group_timeout_s() -> float | None:
    """How long the group of all ranks lets one wait; None if unknown."""
    groups: Any = sys.modules.get("torch.distributed.distributed_c10d")
    with contextlib.suppress(Exception):  # private to torch as well
        group = groups._get_default_group()  # noqa: SLF001
        kinds = {device.type: device for device in group._device_types}  # noqa: SLF001
        backend = group._get_backend(kinds.get("cuda") or kinds["cpu"])  # noqa: SLF001
        return float(backend.options._timeout.total_seconds())  # noqa: SLF001
    return None


def _roll() -> Any:
    """What groups of simulated GPUs have written down; None where there are none."""
    roll = getattr(simulated_box(), "roll", None)
    return roll if roll is not None and (roll.last or roll.wait) else None


def _row_of(call: Any) -> list[Any]:
    return [call.group, call.number, call.name, bytes_text(call.nbytes)]


class Numbers(NamedTuple):
    """How far a rank is in the order of one group; -1 before the first."""

    called: int  # how many were called, with what only two have to do with
    ended: int  # how many torch knows to have ended; of gloo it learns that late


def numbers() -> dict[str, Numbers] | None:
    """How far this rank is in the order of each group; None if unknown."""
    roll, status = _roll(), _status()
    told = (
        None
        if status is None
        else {name: status[its] for name, its in _named(status).items()}
    )
    if roll is None:
        return told
    wait = roll.wait
    has_place = wait is not None and not wait.call.of_two
    waits_in = {wait.call.group: wait.call.number} if has_place else {}
    return (told or {}) | {
        name: Numbers(call.number, waits_in.get(name, call.number + 1) - 1)
        for name, call in tuple(roll.last.items())
    }


def knows_a_group() -> bool:
    """Whether anything was recorded at all, if only of a group of our own."""
    return bool(_status()) or bool(numbers())


def calls() -> list[dict[str, Any]]:
    """All that NCCL's recorder holds, else gloo's, in order of calls; it is dear."""
    told = [each.entries for each in _told(with_calls=True) if each.entries]
    found = [each for each in told[-1] if "record_id" in each] if told else []
    _learn(found)
    return sorted(found, key=lambda each: int(each["record_id"]))


def group_of(call: Mapping[str, Any]) -> str:
    """The name of a call's group, the same on all ranks; "" for one of our own."""
    return str((call.get("process_group") or [EVERYBODYS])[0])


def _status() -> dict[str, Numbers] | None:
    """How far it is, by what this process calls its groups."""
    told = _told(with_calls=False)
    if not told:
        return None
    return {
        group: Numbers(_number(its, "enqueued"), _number(its, "completed"))
        for each in told
        for group, its in each.status.items()
    }


EVERYBODYS = "0"  # what torch calls the group that all ranks are in
_names = {"0": EVERYBODYS}  # by what this process calls a group
_asked_at: dict[str, int] = {}  # how far it was when its name was not to be found


def _named(status: Mapping[str, Numbers]) -> dict[str, str]:
    """What this process calls each group, by name; of several the newest.

    A group that nobody has seen a call of is one that no other rank knows.
    """
    unknown = {group: its.called for group, its in status.items() if its.called >= 0}
    unknown = {
        group: called
        for group, called in unknown.items()
        if group not in _names and called >= 2 * _asked_at.get(group, 0)
    }
    if unknown:
        _learn(_entries())
        _asked_at.update({group: max(1, called) for group, called in unknown.items()})
    found = {}
    for group in sorted(status, key=lambda each: (len(each), each)):
        name = _names.get(group, f"{group} of process {os.getpid()}")
        if name:
            found[name] = group
    return found


def _learn(entries: Iterable[dict[str, Any]]) -> None:
    for each in entries:
        _names[_own_word(each)] = group_of(each)


def _own_word(call: Mapping[str, Any]) -> str:
    """What this process calls the group of a call."""
    return str(call.get("pg_id", group_of(call)))


def _row(group: str, call: Mapping[str, Any]) -> list[Any]:
    name = str(call.get("profiling_name", "")).rpartition(_BACKEND)[2]
    sizes = call.get("input_sizes")
    return [group, call[_NUMBER], name, "" if sizes is None else json.dumps(sizes)]


def _calls(
    status: Mapping[str, Numbers],
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """By group: its last call, and its first one that has not ended.

    The recorder keeps what a group of the same name has left open before it was begun
    anew: going back in time, it begins where numbers do not fall any more.
    """
    last: dict[str, dict[str, Any]] = {}
    under_way: dict[str, dict[str, Any]] = {}
    least = {group: its.called + 1 for group, its in status.items()}
    entries = _entries()
    _learn(entries)
    for each in reversed(entries):
        group = _own_word(each)
        number = each.get(_NUMBER, -1)
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


def _number(said: object, what: str) -> int:
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return int(said.get(f"last_{what}_collective", -1))  # type: ignore[attr-defined]
    return -1


class _Recorder(NamedTuple):
    """What a recorder says."""

    status: dict[str, Any]  # by what this process calls its groups
    # its calls, from the oldest on; none where they were not asked for
    entries: list[dict[str, Any]]


def _entries() -> list[dict[str, Any]]:
    return [call for each in _told(with_calls=True) for call in each.entries]


def _told(*, with_calls: bool) -> list[_Recorder]:
    """What the recorders say, NCCL's last; none that has another shape.

    Where there are two, what they call a group begins with the recorder.
    """
    found = []
    dumps = _ways_out()
    for name, dump in dumps.items():
        prefix = f"{name} " if len(dumps) > 1 else ""
        with contextlib.suppress(Exception):  # private: tomorrow it may be otherwise
            found.append(_read(json.loads(dump(with_calls, False)), prefix))
    return found


def _read(told: dict[str, Any], prefix: str) -> _Recorder:
    status = {f"{prefix}{each}": its for each, its in told["pg_status"].items()}
    entries = [
        each | {"pg_id": f"{prefix}{_own_word(each)}"}
        for each in told.get("entries", ())
        if isinstance(each, dict)
    ]
    return _Recorder(status, entries)


def _ways_out() -> dict[str, Callable[..., Any]]:
    """The functions that tell, by name; torch is not imported to find them."""
    module = sys.modules.get("torch._C._distributed_c10d")
    found = {name: getattr(module, name, None) for name in _NAMES}
    return {name: each for name, each in found.items() if each is not None}
