"""Watches for who starts CUDA, and guards against a question that would.

After each cell and each import the driver is asked one cheap question; torch is
watched at the place where it looks for GPUs. With the answer all of it is gone.
"""

from __future__ import annotations

import importlib
import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.notebook.faults import CellEvents, tell_fault
from gpumagic.report.frontend import cell_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from importlib.machinery import ModuleSpec
    from types import FrameType, FunctionType, ModuleType

    from gpumagic.gpu_select.report import Start, TorchLatch
    from gpumagic.gpu_select.torch_looks import TorchLooks
    from gpumagic.notebook.session import Session

GUARD = "PYTORCH_NVML_BASED_CUDA_CHECK"
GUARD_ON = "1"
_PART = "the watch for who starts CUDA"
_HOOK = "exec_module"
_LEADING_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_NAME_IN_IPYTHON_7 = re.compile(r"<ipython-input-(\d+)-")


class Watcher:
    """Knows who started CUDA in this process, if that was after `install`.

    Args:
        has_started: Whether CUDA has started in this process; None if that cannot be
            told. It is asked often, and must not raise.

        on_start: Called once, after the first cell with CUDA started.

        may_have_started: What `install` asks first, so that loading costs less where
            there is nothing to be asked.
    """

    def __init__(
        self,
        has_started: Callable[[], bool | None],
        on_start: Callable[[], object],
        may_have_started: Callable[[], bool] = lambda: True,
    ) -> None:
        self._has_started = has_started
        self._on_start = on_start
        self._may_have_started = may_have_started
        self._shell: Any = None
        self._pid = os.getpid()
        self._cell_at_install = 0
        self._cell_runs = False
        self._started_before = False
        self._start: Start | None = None
        self._vain_look: Start | None = None
        self._looked = False
        self._torch_was_there = False
        self._watching = False
        self._cells: CellEvents | None = None
        self._finder = ImportFinder(self)
        self._torch_looks: TorchLooks | None = None

    @property
    def looked_in_vain(self) -> bool:
        """Whether torch has looked for GPUs here and found none."""
        return self._vain_look is not None

    def install(self, shell: Any, undo: ExitStack) -> None:
        """Watch from now on, until CUDA has started or this is undone."""
        self._shell = shell
        self._cell_at_install = _last_cell(shell)
        self._cell_runs = self._line(sys._getframe()) is not None  # noqa: SLF001
        self._torch_was_there = "torch" in sys.modules
        self._started_before = self._may_have_started() and bool(self._has_started())
        if self._started_before:
            return
        undo.callback(self._stop)
        self._watching = True
        self._cells = CellEvents(
            shell,
            _PART,
            before=self._before_cell,
            after=self._after_cell,
            on_fault=self._stop,
        )
        self._cells.put_in()
        self._finder.put_in()
        if self._torch_was_there:
            self._watch_torch()

    def start(self) -> Start | None:
        """Who started CUDA, or looked for GPUs in vain; None if nobody has.

        Where CUDA had started before `install`, it is a guess from the history.
        """
        if self._started_before:
            return self._guess()
        if self._start is None and self._watching and self._has_started():
            self._note_cell(sys._getframe(1))  # noqa: SLF001 -- the cell that asks
        return self._start or self._vain_look

    def torch_latch(self) -> TorchLatch:
        """Whether torch has looked for GPUs; imports and starts nothing."""
        from gpumagic.gpu_select.torch_looks import torch_latch

        unseen = self._torch_was_there or not self._watching
        return torch_latch(
            looked=self._looked, in_vain=self.looked_in_vain, unseen=unseen
        )

    # ---------------------------------------------------------------- cells

    def _before_cell(self, _: Any) -> None:
        if self._start is None and self._has_started():
            self._note(None)
        self._cell_runs = True

    def _after_cell(self, result: Any) -> None:
        if self._start is None and self._has_started():
            typed = getattr(getattr(result, "info", None), "raw_cell", None)
            self._note(only_line(_last_cell(self._shell), typed or ""))
        self._cell_runs = False
        if self._start is not None:
            self._stop()
            self._on_start()

    # -------------------------------------------------------------- modules

    def importing(self, name: str) -> bool | None:
        """A module is about to run: the answer tells what came before it."""
        del name
        return self._unharmed(self._asked)

    def imported(self, name: str, before: bool | None) -> None:  # noqa: FBT001
        """A module has run: if CUDA has started meanwhile, it was this one."""
        if self._watching:
            frame = sys._getframe(1)  # noqa: SLF001
            self._unharmed(lambda: self._has_been_imported(name, before, frame))

    def _has_been_imported(
        self,
        name: str,
        before: bool | None,  # noqa: FBT001
        frame: FrameType,
    ) -> None:
        if self._start is None and self._asked():
            if before:
                self._note_cell(frame)
            else:
                self._note(self._line(frame), by=f"import {name}")
        if name == "torch":
            self._watch_torch()

    # ---------------------------------------------------------------- torch

    def looking(self) -> bool | None:
        """Torch is about to look for GPUs: the answer tells what came before."""
        return self._unharmed(self._asked)

    def looked(self, frame: FrameType, *, before: bool | None, in_vain: bool) -> None:
        """Torch has looked for GPUs: it keeps what it has found."""
        if self._watching and os.getpid() == self._pid:
            self._unharmed(
                lambda: self._has_looked(frame, before=before, in_vain=in_vain)
            )

    def _has_looked(
        self, frame: FrameType, *, before: bool | None, in_vain: bool
    ) -> None:
        self._looked = True
        starts = self._start is None and bool(self._asked()) and not before
        first_in_vain = in_vain and self._vain_look is None
        if not starts and not first_in_vain:
            return
        found = self._made(self._line(frame), by=self._cause(frame), in_vain=in_vain)
        if first_in_vain:
            self._vain_look = found
        if starts:
            self._start = found

    def _cause(self, frame: FrameType) -> str | None:
        from gpumagic.gpu_select.torch_looks import caused_by

        try:
            return caused_by(frame, lambda each: is_cell(self._shell, each))
        except Exception:  # noqa: BLE001 -- what was found is told without it
            return None

    def _watch_torch(self) -> None:
        from gpumagic.gpu_select.torch_looks import TorchLooks

        if self._torch_looks is None:
            self._torch_looks = TorchLooks(sys.modules.get("torch"), self)
        self._torch_looks.put_in()

    # ----------------------------------------------------------------- notes

    def _unharmed(self, answer: Callable[[], bool | None]) -> bool | None:
        """An answer; a fault of ours ends the watch, and the user's call goes on."""
        try:
            return answer()
        except Exception as fault:  # noqa: BLE001
            tell_fault(_PART, fault, self._stop)
        return None

    def _asked(self) -> bool | None:
        return True if self._start is not None else self._has_started()

    def _note_cell(self, frame: FrameType) -> None:
        """CUDA has started, and something earlier in the running cell has done it."""
        in_cell = self._line(frame) is not None
        cell = _last_cell(self._shell)
        typed = _cells_of(self._shell).get(cell, "") if in_cell else ""
        self._note(only_line(cell, typed))

    def _note(self, line: CellLine | None, by: str | None = None) -> None:
        # A child that was forked off goes its own ways.
        if self._start is None and os.getpid() == self._pid:
            self._start = self._made(line, by=by)

    def _made(
        self, line: CellLine | None, *, by: str | None, in_vain: bool = False
    ) -> Start:
        from gpumagic.gpu_select.report import Start

        if line is not None:
            return Start(line.cell, line.line, line.source, by=by, in_vain=in_vain)
        if self._cell_runs:
            return Start(_last_cell(self._shell), by=by, in_vain=in_vain)
        outside = f"something outside of the cells, after In[{_last_cell(self._shell)}]"
        return Start(by=by or outside, in_vain=in_vain)

    def _line(self, frame: FrameType | None) -> CellLine | None:
        try:
            return _line_of(self._shell, frame)
        except Exception:  # noqa: BLE001 -- the user's call must go on
            return None

    def _guess(self) -> Start:
        from gpumagic.gpu_select.history import guess
        from gpumagic.gpu_select.report import Start

        cells = _cells_of(self._shell).items()
        before = {cell: text for cell, text in cells if cell <= self._cell_at_install}
        return guess(before) or Start(
            by="something that ran before gpumagic was loaded"
        )

    def _stop(self) -> None:
        """Take out whatever has been put in; a second time there is nothing."""
        if not self._watching:
            return
        self._watching = False
        self._finder.take_out()
        if self._torch_looks is not None:
            self._torch_looks.take_out()
        if self._cells is not None:
            self._cells.take_out()


# ---------------------------------------------------------------- around imports


class ImportFinder:
    """Asks a question before and after each import of a top-level module.

    A finder at the front lets the finders behind it find the module, and puts an
    `exec_module` of its own on the very loader they have made. It takes itself off
    again before the module runs, so loader and spec stay what they were.

    Modules inside a package, builtin and frozen ones, and loaders that are classes
    or keep no attributes are left alone.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def put_in(self) -> None:
        """Stand in front of all finders."""
        sys.meta_path.insert(0, self)

    def take_out(self) -> None:
        """Leave the finders as they are without this one."""
        for place, finder in enumerate(sys.meta_path):
            if finder is self:
                del sys.meta_path[place]
                return

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """What the finders behind this one find."""
        if path is not None:
            return None
        for finder in self._behind():
            if not hasattr(finder, "find_spec"):
                return None  # of an older kind: Python knows how to ask it
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _watch(spec.loader, self._watcher)
                found: ModuleSpec = spec
                return found
        return None

    def _behind(self) -> list[Any]:
        finders: list[Any] = list(sys.meta_path)
        places = [place for place, each in enumerate(finders) if each is self]
        return finders[places[0] + 1 :] if places else []


def _watch(loader: Any, watcher: Watcher) -> None:
    """Put a hook on a loader that lasts until it is called."""
    if isinstance(loader, type) or not hasattr(loader, _HOOK):
        return
    own = getattr(loader, "__dict__", None)
    if own is None or _HOOK in own:
        return

    def run(module: ModuleType) -> None:
        __tracebackhide__ = True
        # Off first: some loaders serve many modules, nested ones too.
        if own.get(_HOOK) is run:
            own.pop(_HOOK, None)
        name = str(getattr(module, "__name__", ""))
        before = watcher.importing(name)
        try:
            loader.exec_module(module)
        finally:
            watcher.imported(name, before)

    own[_HOOK] = _as_importlib(run)


def _as_importlib(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Python take a function's frames for those of its import machinery.

    It leaves these out of tracebacks and of the frames that a warning's stacklevel
    counts: a module that fails or warns does so exactly as without the function.
    """
    machinery: FunctionType = vars(importlib._bootstrap)[  # noqa: SLF001
        "_call_with_frames_removed"
    ]
    function.__code__ = function.__code__.replace(
        co_filename=machinery.__code__.co_filename, co_name=machinery.__name__
    )
    return function


_as_importlib(ImportFinder.find_spec)


# ---------------------------------------------------------------- lines of cells


class CellLine:
    """A line of a cell that was run in this shell.

    Attributes:
        cell: Its number, as in `In[cell]`.

        line: The number of the line, counted as IPython's tracebacks do: from 1,
            without blank lines at the top of the cell.

        source: The line's text as the user typed it; None where that is gone.
    """

    __slots__ = ("cell", "line", "source")

    def __init__(self, cell: int, line: int, source: str | None) -> None:
        self.cell = cell
        self.line = line
        self.source = source


def _line_of(shell: Any, frame: FrameType | None) -> CellLine | None:
    """The line of the running cell that has led to a frame.

    In a thread no cell runs: there it is the line of the user's function.
    """
    in_function = None
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            found = _known_line(shell, frame)
            if found is not None and is_cell(shell, frame):
                return found
            in_function = in_function or found
        frame = frame.f_back
    return in_function


def is_cell(shell: Any, frame: FrameType) -> bool:
    """Whether a frame is a cell's own code, and not that of a function in it."""
    in_notebook = frame.f_globals is shell.user_global_ns
    return in_notebook and frame.f_locals is shell.user_ns


def only_line(cell: int, raw_cell: str) -> CellLine | None:
    """The line of a cell that has but one: what the cell did was done there."""
    lines = [
        (number, text.strip())
        for number, text in enumerate(_as_counted(raw_cell).splitlines(), 1)
        if text.strip() and not text.lstrip().startswith("#")
    ]
    return CellLine(cell, *lines[0]) if len(lines) == 1 else None


def _last_cell(shell: Any) -> int:
    """The number of the cell that runs, or has run last; 0 before the first.

    The shell's own count is one more, in some versions of IPython while a cell runs,
    in all of them between cells.
    """
    return max(0, len(_typed(shell)) - 1)


def _cells_of(shell: Any) -> dict[int, str]:
    """The cells that this shell has run as typed, less blank lines at their top."""
    return {
        number: _as_counted(source)
        for number, source in enumerate(_typed(shell))
        if source.strip()
    }


def _typed(shell: Any) -> list[str]:
    return list(getattr(shell.history_manager, "input_hist_raw", ()))


def _as_counted(cell: str) -> str:
    return _LEADING_BLANK_LINES.sub("", cell)


def _known_line(shell: Any, frame: FrameType) -> CellLine | None:
    name, line = frame.f_code.co_filename, frame.f_lineno
    cell = _cell_number(shell, name)
    source = linecache.getline(name, line).strip()
    if cell is None and source and is_cell(shell, frame):
        cell = _last_cell(shell)  # a kernel with IPython 7 names its files otherwise
    if cell is None:
        return None
    if "get_ipython()" in source:  # what IPython has made of a magic
        typed = _cells_of(shell).get(cell, "").splitlines()
        source = typed[line - 1].strip() if line <= len(typed) else ""
    return CellLine(cell, line, source or None)


def _cell_number(shell: Any, filename: str) -> int | None:
    numbers = cell_numbers(shell)
    if filename in numbers:
        return numbers[filename]
    match = _NAME_IN_IPYTHON_7.match(filename)
    return int(match[1]) if match else None


# ---------------------------------------------------------------- the guard


class GuardSwitch:
    """Turns the guard on and off; the session undoes it on unload.

    With its variable set, torch asks NVML instead of CUDA where it can. It reads the
    variable at every call.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._users_own = os.environ.get(GUARD)

    def install(self) -> None:
        """Turn it on, unless the user has set the variable himself."""
        if self._users_own is None:
            self.turn(on=True)

    def turn(self, *, on: bool) -> None:
        """Turn it on or off, whatever the variable was before."""
        off = None if self._users_own == GUARD_ON else self._users_own
        self._session.set_variable(GUARD, GUARD_ON if on else off)
