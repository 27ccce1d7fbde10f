"""What a process sees of itself as a rank: its group, its calls, where it is just now.

Of collectives torch's flight recorder tells. It is on by default, also on gloo and
without a GPU. Its way out is private to torch and differs by version, so it is looked
for. To ask for numbers takes some ten microseconds; names come with all that it has
recorded, which takes a tenth of a second. It keeps the newest calls in a ring, with the
moment of each. It does not say when a collective of gloo has ended; but none ends
before the last rank has called it, which is enough for waits where ranks share a clock.

Numbers come by what this process alone calls its groups; calls have that beside the
name that all ranks know. A torch with NCCL has two recorders, one for its collectives
and one for those of gloo.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpumagic.devices.simulated import simulated_box
from gpumagic.gpu_ranks.answers import EVERYBODYS, VERSION
from gpumagic.report.frontend import running_cell, running_shell
from gpumagic.report.places import Places, cell_number, line_in
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

_MODULE = "torch._C._distributed_c10d"
_WAYS_OUT = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_NUMBER = "collective_seq_id"
_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDS_S = 5.0  # within which the thread ends
_COLLECTIVES = "distributed_c10d.py"
_WRAPPERS = frozenset({"wrapper", "all_reduce_wrapper"})


def own_clock() -> str:
    """The same for all processes that share a clock, also in several containers."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def distributed_here() -> Any:
    """torch.distributed, where this process has a group; else None."""
    module = sys.modules.get("torch.distributed")
    has_group = module and module.is_available() and module.is_initialized()
    return module if has_group else None


def common_store(distributed: Any) -> Any:
    """The store by which the ranks of this process's group have met."""
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001


# ----------------------------------------------------------- what the recorder knows


def flight(*, asks_for_calls: bool = True) -> dict[str, Any] | None:
    """The last collective of each group, and those that are open; None if unknown.

    In the shape in which it travels: see `answers.Flight`.
    """
    if roll := _roll():
        return {
            "under_way": [_row_of(call) for call in (roll.open,) if call],
            "last": [_row_of(call) for call in tuple(roll.last.values())],
        }
    status, entries = _told(with_calls=asks_for_calls)
    if not status:
        return None
    last, under_way = _calls(entries, status)
    named = _named(status)
    return {
        "under_way": [
            _row(name, under_way[its])
            for name, its in named.items()
            if its in under_way
        ],
        "last": [
            _row(name, last.get(its, {_NUMBER: status[its]}))
            for name, its in named.items()
            if status[its] >= 0
        ],
    }


def numbers() -> dict[str, int]:
    """The number of the last call in each group, -1 for none; empty if unknown."""
    if roll := _roll():
        return {name: call.number for name, call in tuple(roll.last.items())}
    status, _ = _told()
    return {name: status[group] for name, group in _named(status).items()}


def _roll() -> Any:
    """What groups of simulated GPUs have written down, which is read in its place."""
    roll = getattr(simulated_box(), "roll", None)
    return roll if roll and roll.last else None


def _row_of(call: Any) -> list[Any]:
    return [call.group, call.number, call.name, bytes_text(call.nbytes)]


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
    entries = _told(with_calls=True)[1] if groups else []
    return {call["pg_id"]: group_of(call) for call in entries}


def _row(group: str, call: Mapping[str, Any]) -> list[Any]:
    sizes = call.get("input_sizes") and json.dumps(call["input_sizes"])
    return [group, call[_NUMBER], _name(call), sizes or ""]


def _name(call: Mapping[str, Any]) -> str:
    return str(call.get("profiling_name", "")).rpartition(":")[2]


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


def _told(*, with_calls: bool = False) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """How far each group is, and calls, the oldest first; of NCCL's recorder last.

    Where there are two, what they call a group begins with the recorder.
    """
    module = sys.modules.get(_MODULE)
    there = [name for name in _WAYS_OUT if hasattr(module, name)]
    status: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    for name in there:
        prefix = f"{name} " if len(there) > 1 else ""
        with contextlib.suppress(Exception):  # private: tomorrow it may be otherwise
            told = json.loads(getattr(module, name)(with_calls, False))
            status |= {
                f"{prefix}{group}": int(its.get("last_enqueued_collective", -1))
                for group, its in told["pg_status"].items()
            }
            for each in told.get("entries", ()):
                group = f"{prefix}{each.get('pg_id', group_of(each))}"
                entries.append(each | {"pg_id": group, "recorder": name})
    return status, entries


# ------------------------------------------------------------- what a block has called


def is_recorded() -> bool:
    """Whether this torch has a recorder for all backends, and it is on."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    ring = next((int(each) for each in said if each.isdecimal()), _RING)
    return ring > 0 and hasattr(sys.modules.get(_MODULE), _WAYS_OUT[0])


def recorded(since_ns: int) -> tuple[list[list[Any]], int | None]:
    """The calls since a moment; and from when on, where the recorder has lost some.

    They are of NCCL's recorder where that has any, else of gloo's.
    """
    _, told = _told(with_calls=True)
    there = sorted(
        (
            each
            for each in told
            if "record_id" in each and each["recorder"] == told[-1]["recorder"]
        ),
        key=lambda each: int(each["record_id"]),
    )
    entries = [each for each in there if _created_ns(each) >= since_ns]
    # All that is there is new: so what came before it is gone.
    is_lost = len(entries) == len(there) and bool(there) and there[0]["record_id"] > 0
    rows: list[list[Any]] = [
        [group, int(each.get(_NUMBER, 0)), _name(each), None, at_ns, at_ns]
        for each in entries
        if (group := group_of(each)) and not each.get("is_p2p")
        for at_ns in (_created_ns(each),)
    ]
    return rows, rows[0][4] if is_lost and rows else None


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))


# ------------------------------------------------------------------- where a rank is


class Lookout:
    """A thread that tells of this rank until the block has ended.

    Nothing is asked that is dear until nothing was called for `quiet_s`.
    """

    def __init__(
        self,
        tell: Callable[[dict[str, Any]], object],
        *,
        rank: int | None,
        every_s: float = 1.0,
        quiet_s: float = 0.0,
    ) -> None:
        self._tell, self._rank = tell, rank
        self._every_s, self._quiet_s = every_s, quiet_s
        self._ended = threading.Event()
        self._main = threading.get_ident()
        self._before: Any = None  # how many calls there were at the last look
        self._since_s = 0.0
        self._flight: dict[str, Any] | None = None
        self._thread = threading.Thread(
            target=self._run, name="gpumagic-lookout", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_ENDS_S)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            # What cannot be told is not told; the cell is the user's, and goes on.
            with contextlib.suppress(Exception):
                self._tell(self.said())

    def said(self) -> dict[str, Any]:
        """Where this rank is just now."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 -- as faulthandler
        recorded, stuck_s = self._flown()
        return {
            "version": VERSION,
            "kind": "alive",
            "rank": self._rank,
            "flight": recorded,
            "line": _innermost(
                (each.f_code.co_filename, each.f_lineno) for each in _outwards(frame)
            ),
            "inside": _inside(frame),
            "stuck_s": stuck_s,
        }

    def _flown(self) -> tuple[dict[str, Any] | None, float]:
        """What the recorder says, and how long the same collective has been open.

        Calls are asked for where none has come since the last look, and again as long
        as one of them is open.
        """
        at, now_s = numbers(), time.monotonic()
        if at != self._before:
            self._before, self._since_s, self._flight = at, now_s, None
        stuck_s = now_s - self._since_s
        if not at or (not self._flight and stuck_s <= self._quiet_s):
            return flight(asks_for_calls=False), 0.0
        if not self._flight or self._flight["under_way"]:
            self._flight = flight()
        is_open = bool(self._flight and self._flight["under_way"])
        return self._flight, stuck_s * is_open


def _inside(frame: FrameType | None) -> str:
    """The outermost function of torch.distributed that is running; "" for none."""
    found = ""
    for each in _outwards(frame):
        code = each.f_code
        if code.co_filename.endswith(_COLLECTIVES) and code.co_name not in _WRAPPERS:
            found = code.co_name
    return found


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


def line_of(error: BaseException | None) -> dict[str, Any] | None:
    """The innermost line of the user's that an error came through, if any."""
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(getattr(error, "__traceback__", None))
    ]
    return _innermost(lines[::-1])


def _innermost(lines: Iterable[tuple[str, int]]) -> dict[str, Any] | None:
    """The user's line, as it is told of a rank: without the number of its cell.

    Of another cell the number is an engine's own: to whoever reads the notebook it
    would name the wrong one.
    """
    torch = sys.modules.get("torch")
    places = Places((str(Path(torch.__file__ or "").parent),) if torch else ())
    for file, number in lines:
        if places.is_users(file):
            line, cell = line_in(file, number), cell_number(file)
            if cell is not None:
                is_this = cell == running_cell(running_shell())
                earlier = "" if is_this else "an earlier cell, "
                line = replace(line, where=f"{earlier}line {number}")
            return line.to_dict()
    return None
