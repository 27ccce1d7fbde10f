"""Tells now and then where this rank is, also while its main thread waits in C++."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.gpu_ranks.flight_recorder import flight, numbers
from gpumagic.report.frontend import running_cell, running_shell
from gpumagic.report.places import Places, cell_number, line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from gpumagic.report.places import CodeLine

EVERY_S = 1.0
_ENDS_S = 5.0  # within which the thread ends
THREAD = "gpumagic-lookout"
_COLLECTIVES = "distributed_c10d.py"
_WRAPPERS = frozenset({"wrapper", "all_reduce_wrapper"})


class Lookout:
    """A thread that tells of this rank until the block has ended.

    Nothing is asked that is dear until nothing was called for `quiet_s`.
    """

    def __init__(
        self,
        tell: Callable[[dict[str, Any]], object],
        *,
        rank: int | None,
        every_s: float = EVERY_S,
        quiet_s: float = 0.0,
    ) -> None:
        self._tell, self._rank = tell, rank
        self._every_s, self._quiet_s = every_s, quiet_s
        self._ended = threading.Event()
        self._main = threading.get_ident()
        self._began_s = time.monotonic()
        self._before: Any = None  # how many calls there were at the last look
        self._since_s = 0.0
        self._flight: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
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
            "since_s": time.monotonic() - self._began_s,
            "flight": recorded,
            "line": _users_line(frame),
            "inside": _inside(frame),
            "stuck_s": stuck_s,
        }

    def _flown(self) -> tuple[dict[str, Any] | None, float | None]:
        """What the recorder says, and since when the same collective has been open.

        Calls are asked for where none has come since the last look, and again as long
        as one of them is open.
        """
        at, now_s = numbers(), time.monotonic()
        if at != self._before:
            self._before, self._since_s, self._flight = at, now_s, None
        stuck_s = now_s - self._since_s
        if not at or (self._flight is None and stuck_s <= self._quiet_s):
            return flight(asks_for_calls=False), None
        if self._flight is None or self._flight["under_way"]:
            self._flight = flight()
        is_open = bool(self._flight and self._flight["under_way"])
        return self._flight, stuck_s if is_open else None


def _inside(frame: FrameType | None) -> str | None:
    """The outermost function of torch.distributed that is running; None for none."""
    found = None
    for each in _outwards(frame):
        code = each.f_code
        if code.co_filename.endswith(_COLLECTIVES) and code.co_name not in _WRAPPERS:
            found = code.co_name
    return found


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _users_line(frame: FrameType | None) -> dict[str, Any] | None:
    """The innermost line of the user's."""
    lines = [(each.f_code.co_filename, each.f_lineno) for each in _outwards(frame)]
    return _innermost(lines)


def line_of(error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the user's that an error came through."""
    lines: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        lines.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return _innermost(lines)


def _innermost(lines: list[tuple[str, int]]) -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    places = Places(() if torch is None else (str(Path(torch.__file__ or "").parent),))
    users = next((each for each in lines if places.is_users(each[0])), None)
    return None if users is None else _line_of_rank(*users).to_dict()


def _line_of_rank(file: str, number: int) -> CodeLine:
    """A line as it is told of a rank: without the number of the cell that it runs.

    Of another cell the number is an engine's own: to whoever reads the notebook it
    would name the wrong one.
    """
    line, cell = line_in(file, number), cell_number(file)
    if cell is None:
        return line
    is_this = cell == running_cell(running_shell())
    where = f"line {number}" if is_this else f"an earlier cell, line {number}"
    return replace(line, where=where)
