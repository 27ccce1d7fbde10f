"""Where this rank is in the order of its collectives, by torch's flight recorder.

The recorder is on by default, also on gloo and without a GPU. Its way out is private to
torch and differs by version, so it is looked for; without it, stacks have to do. To ask
for the numbers alone takes some ten microseconds; names come with all that it has
recorded, which takes a tenth of a second, and is asked for only where one is open.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMES = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_BACKEND = ":"  # what stands behind it is the collective: gloo:all_reduce


def flight() -> dict[str, Any] | None:
    """The last collective of each group, and those that are open; None if unknown.

    In the shape in which it travels: see `answers.Flight`.
    """
    numbers = _told(with_calls=False).get("pg_status")
    if not isinstance(numbers, dict):
        return None
    called = {group: _number(said, "enqueued") for group, said in numbers.items()}
    maybe_open = {
        group
        for group in called
        if called[group] > _number(numbers[group], "completed")
    }
    calls = _last_calls() if maybe_open else {}
    under_way, last = [], []
    for group, number in called.items():
        if number < 0:
            continue
        call = calls.get(group, {})
        # torch learns late that one of gloo has ended: `retired` is what it knows.
        is_open = group in maybe_open and not call.get("retired", False)
        (under_way if is_open else last).append(_row(group, number, call))
    return {"under_way": under_way, "last": last}


def _row(group: str, number: int, call: Mapping[str, Any]) -> list[Any]:
    name = str(call.get("profiling_name", "")).rpartition(_BACKEND)[2]
    sizes = call.get("input_sizes")
    return [group, number, name, "" if sizes is None else json.dumps(sizes)]


def _last_calls() -> dict[str, dict[str, Any]]:
    """The newest call of each group, by the name of the group."""
    found = {}
    for each in _told(with_calls=True).get("entries", ()):
        if isinstance(each, dict) and not each.get("is_p2p"):
            group = each.get("process_group") or ["0"]
            found[str(group[0])] = each
    return found


def _number(said: object, what: str) -> int:
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return int(said.get(f"last_{what}_collective", -1))  # type: ignore[attr-defined]
    return -1


def _told(*, with_calls: bool) -> dict[str, Any]:
    """What the recorder says; empty where there is none, or it has another shape."""
    dump = _way_out()
    if dump is None:
        return {}
    with contextlib.suppress(Exception):  # private: it may take other words tomorrow
        told = json.loads(dump(with_calls, False))
        if isinstance(told, dict):
            return told
    return {}


def _way_out() -> Callable[..., Any] | None:
    """The function that tells; torch is not imported to find it."""
    module = sys.modules.get("torch._C._distributed_c10d")
    found = (getattr(module, name, None) for name in _NAMES)
    return next((each for each in found if each is not None), None)
