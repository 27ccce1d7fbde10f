"""Goes round every cell of a notebook: some modes begin before it and end after it.

A cell is what the user runs. What runs cells from within one (`%%capture`, `%rerun`,
`get_ipython().run_cell`) adds nothing to be looked at: it is part of that cell. So
nothing is kept from cell to cell that a nested, interrupted or broken one could leave
behind: all that is put in for a cell goes out in the same call, whatever happens.

IPython has events for before and after a cell, but by the later one it has drawn the
value or the traceback, and others may have run. Hence three layers more: round the
running of the statements, on the display of the last value, and on tracebacks.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gpumagic.errors import GpuMagicError
from gpumagic.notebook.faults import CellEvents, tell_fault
from gpumagic.report.places import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_RUNS_CELLS = "run_ast_nodes"
_DRAW_TRACEBACKS = ("showtraceback", "CustomTB")
_RUNS_A_STATEMENT = "run_code"
# Where IPython shows one value at most, and that at the end.
_ENDS_WITH_ITS_VALUE = ("last_expr", "last_expr_or_assign")


class CellRun(Protocol):
    """What goes on from before a cell until after it."""

    def begin(self) -> None:
        """The cell is about to run; GpuMagicError leaves this cell out."""

    def end(self, *, error: BaseException | None = None) -> None:
        """The cell has run, or has raised this."""


@dataclass(eq=False)
class Mode:
    """Something that goes on round every cell while it is on."""

    magic: str  # the name of the magic; cells that begin with it are left out
    new_run: Callable[[], CellRun]  # makes the run for a cell
    # called after each cell with its run and its code
    tell: Callable[[Any, Code], object]
    # whether it begins last and ends first, before the value or the traceback is
    # drawn: that is not what the cell was run for
    is_timer: bool = False
    is_on: bool = field(default=False, init=False)  # whether cells are looked at

    def leaves_out(self, typed: str) -> bool:
        """Whether a cell begins with the magic itself."""
        return re.match(rf"\s*%%?{self.magic}\b", typed) is not None


class EveryCell:
    """The modes of one shell, and what is put into the shell for them."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._modes: list[Mode] = []
        self._events = CellEvents(
            shell,
            "looking at every cell",
            before=self._before,
            after=self._after,
            on_fault=self._switch_all_off,
        )
        self._layer: _Layer | None = None
        self._typed: str | None = None  # of the cell that is about to run
        self._cell: _Cell | None = None  # the one that runs
        self._ended: _Cell | None = None  # the one that is to be told

    def switch_on(self, mode: Mode) -> None:
        """Look at every cell from the next one on."""
        if mode.is_on:
            return
        mode.is_on = True
        self._modes.append(mode)
        self._modes.sort(key=lambda each: each.is_timer)
        if self._layer is None:
            self._events.put_in()
            self._layer = _Layer(self._shell, _RUNS_CELLS, self._round)
            self._layer.put_in()

    def switch_off(self, mode: Mode) -> None:
        """Look at no more cells; with the last mode everything is taken out."""
        if not mode.is_on:
            return
        mode.is_on = False
        self._modes.remove(mode)
        if not self._modes and self._layer is not None:
            self._events.take_out()
            self._layer.take_out()
            self._layer = None

    # ---------------------------------------------------------- what IPython calls

    def _before(self, info: Any) -> None:
        if not _runs_within_another(self._shell):
            # What Ctrl-C may have left of the last one in the last moment is over, too.
            self._cell = self._ended = None
            self._typed = getattr(info, "raw_cell", None) or ""

    async def _round(
        self, below: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        typed, self._typed = self._typed, None
        if (outer := self._cell) is not None:
            outer.depth += 1
            try:
                return await below(*args, **options)
            finally:
                outer.depth -= 1
        if typed is None or not typed.strip():
            return await below(*args, **options)
        modes = [each for each in self._modes if not each.leaves_out(typed)]
        self._cell = cell = _Cell(self._shell, typed, modes, self._failed)
        try:
            return await cell.run(below, args, options)
        finally:
            self._cell, self._ended = None, cell
            cell.end()
            cell.forget()

    def _after(self, _: Any) -> None:
        if self._cell is not None:
            return
        cell, self._typed, self._ended = self._ended, None, None
        if cell is not None:
            with contextlib.suppress(KeyboardInterrupt):  # the cell itself is over
                cell.tell()

    def _switch_all_off(self) -> None:
        for mode in tuple(self._modes):
            self.switch_off(mode)

    def _failed(self, mode: Mode, fault: Exception) -> None:
        on = f"%{mode.magic} on"
        take_out = functools.partial(self.switch_off, mode)
        tell_fault(on, fault, take_out, again=f"{on} switches it on again")


class _Cell:
    """One cell of the user's, with the runs of those modes that look at it."""

    def __init__(
        self,
        shell: Any,
        typed: str,
        modes: list[Mode],
        failed: Callable[[Mode, Exception], None],
    ) -> None:
        self.depth = 0
        self._shell = shell
        self._typed = typed
        self._new = modes
        self._failed = failed
        self._running: list[tuple[Mode, CellRun]] = []  # in the order of their begin
        self._over: list[tuple[Mode, CellRun]] = []
        self._layers: list[_Layer] = []
        self._late: BaseException | None = None
        self._result: Any = None

    async def run(self, below: Callable[..., Any], args: Any, options: Any) -> Any:
        """Run the cell between the beginning and the end of all runs.

        An interrupt meanwhile, and what only the last wait brings to light, fail
        the cell: IPython is told in its own way, since a cell that is awaited must
        not raise them.
        """
        self._result = options.get("result")
        try:
            self._begin()
        except KeyboardInterrupt as stopped:
            return self._fail(stopped)
        shows_last = options.get("interactivity") in _ENDS_WITH_ITS_VALUE
        with self._stopping_timers_in_time(shows_last=shows_last):
            has_raised = await below(*args, **options)
        self.end()
        if self._late is not None and not has_raised:
            return self._fail(self._late)
        return has_raised

    def end(self) -> None:
        """End what has not ended, the last to begin first; again, it does nothing."""
        _take_out(self._layers)
        names = ("error_in_exec", "error_before_exec")
        errors = (getattr(self._result, name, None) for name in names)
        self._end(next((each for each in errors if each is not None), None))

    def forget(self) -> None:
        """Hold on to no error and no value of the user's."""
        self._result = self._late = None

    def tell(self) -> None:
        """Let each mode that is still on say what came of it."""
        code = Code(self._typed, cell=running_cell(self._shell))
        for mode, run in reversed(self._over):
            if mode.is_on:
                with self._faults_of(mode):
                    mode.tell(run, code)

    def _begin(self) -> None:
        for mode in self._new:
            with self._faults_of(mode):
                run = mode.new_run()
                run.begin()
                self._running.append((mode, run))

    def _end(self, error: BaseException | None, *, timers_only: bool = False) -> None:
        while self._running and (self._running[-1][0].is_timer or not timers_only):
            mode, run = self._running.pop()
            try:
                self._end_one(mode, run, error)
            except KeyboardInterrupt as stopped:
                self._late = stopped

    def _end_one(self, mode: Mode, run: CellRun, error: BaseException | None) -> None:
        with self._faults_of(mode):
            run.end(error=error)
            self._over.append((mode, run))
            self._late = self._late or getattr(run, "late_error", None)

    @contextlib.contextmanager
    def _faults_of(self, mode: Mode) -> Iterator[None]:
        try:
            yield
        except GpuMagicError:
            pass  # it has nothing to say of this cell
        except Exception as fault:  # noqa: BLE001 -- told; the cell goes on
            self._failed(mode, fault)

    def _fail(self, error: BaseException) -> bool:
        """Let IPython show an error as that of the cell."""
        self._end(error)
        if self._result is not None:
            self._result.error_in_exec = error
        self._shell.showtraceback((type(error), error, None))
        return True

    # ------------------------------------------------------------- ending in time

    @contextlib.contextmanager
    def _stopping_timers_in_time(self, *, shows_last: bool) -> Iterator[None]:
        if not any(mode.is_timer for mode, _ in self._running):
            yield
            return
        for name in _DRAW_TRACEBACKS:
            self._layers.append(_Layer(self._shell, name, self._before_traceback))
        if shows_last:
            self._layers.append(_Layer(sys, "displayhook", self._before_value))
        try:
            _put_in(self._layers)
            yield
        finally:
            _take_out(self._layers)

    def _before_traceback(
        self, below: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        if self._is_own(_caller()):
            self._end(sys.exc_info()[1], timers_only=True)
        return below(*args, **options)

    def _before_value(self, below: Callable[..., Any], value: Any) -> Any:
        __tracebackhide__ = True
        if self._is_own(_caller().f_back):
            self._end(None, timers_only=True)
            if self._late is not None:
                late, self._late = self._late, None
                raise late
        return below(value)

    def _is_own(self, frame: FrameType | None) -> bool:
        """Whether a frame runs statements of the cell itself, not of one within."""
        is_top = frame is not None and frame.f_code.co_name == _RUNS_A_STATEMENT
        return is_top and self.depth == 0


class _Layer:
    """A function put round another one that is an attribute of an object.

    Whoever has put something over it meanwhile keeps that: then this one stays below,
    and hands on what it is given.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._has_own = name in vars(owner)
        below = getattr(owner, name)
        self._below = below
        self._is_in = False

        @functools.wraps(below, updated=())
        def layer(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            if not self._is_in:
                return below(*args, **options)
            return around(below, *args, **options)

        self._layer = layer

    def put_in(self) -> None:
        """Go round it from now on."""
        self._is_in = True
        setattr(self._owner, self._name, self._layer)

    def take_out(self) -> None:
        """Put back what was there; what others have put over it stays."""
        self._is_in = False
        if vars(self._owner).get(self._name) is not self._layer:
            return
        if self._has_own:
            setattr(self._owner, self._name, self._below)
        else:
            delattr(self._owner, self._name)


def running_cell(shell: Any) -> int:
    """The number of the cell that runs, or has just run, as its user sees it."""
    typed = getattr(shell.history_manager, "input_hist_raw", ())
    return max(0, len(typed) - 1)


def _runs_within_another(shell: Any) -> bool:
    """Whether a cell that is about to run is run from within another one."""
    return getattr(shell.display_trap, "_nested_level", 0) > 0


def _caller() -> FrameType:
    """Who has called the layer whose function asks."""
    return sys._getframe(3)  # noqa: SLF001 -- past the function and the layer


def _put_in(layers: list[_Layer]) -> None:
    for layer in layers:
        layer.put_in()


def _take_out(layers: list[_Layer]) -> None:
    for layer in reversed(layers):
        layer.take_out()
