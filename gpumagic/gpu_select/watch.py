"""Watches for who starts CUDA: after each cell, each import, each look of torch's.

The driver is asked one cheap question; torch is watched where it looks for GPUs, in
two functions of its C part. With the answer all of it is gone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.notebook.faults import CellEvents, tell_fault
from gpumagic.report.frontend import cell_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from importlib.machinery import ModuleSpec
    from types import FrameType, FunctionType, ModuleType

    from gpumagic.gpu_select.report import Start, TorchLatch

_PART = "the watch for who starts CUDA"
_LOOKS = ("_cuda_getDeviceCount", "_cuda_init")
_LEADING_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_NAME_IN_IPYTHON_7 = re.compile(r"<ipython-input-(\d+)-")


def torch_latch(
    *, looked: bool = False, in_vain: bool = False, unseen: bool = True
) -> TorchLatch:
    """What is known of torch's look for GPUs, of which it keeps the answer."""
    from gpumagic.gpu_select.report import TorchLatch

    torch = sys.modules.get("torch")
    if torch is None:
        return TorchLatch.ABSENT
    if not hasattr(getattr(torch, "_C", None), "_cuda_getDeviceCount"):
        return TorchLatch.WITHOUT_CUDA
    if getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
        return TorchLatch.STARTED
    if in_vain:
        return TorchLatch.LOOKED_IN_VAIN
    if looked:
        return TorchLatch.LOOKED
    return TorchLatch.UNKNOWN if unseen else TorchLatch.OPEN


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

    def install(self, shell: Any, undo: ExitStack) -> None:
        """Watch from now on, until CUDA has started or this is undone."""
        self._shell = shell
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
        """Who started CUDA, or looked for GPUs in vain; None if nobody has."""
        if self._started_before:
            from gpumagic.gpu_select.report import Start

            return Start(by="something that ran before gpumagic was loaded")
        if self._start is None and self._watching and self._has_started():
            self._note_cell(sys._getframe(1))  # noqa: SLF001 -- the cell that asks
        return self._start or self._vain_look

    def torch_latch(self) -> TorchLatch:
        """Whether torch has looked for GPUs; imports and starts nothing."""
        return torch_latch(
            looked=self._looked,
            in_vain=self._vain_look is not None,
            unseen=self._torch_was_there or not self._watching,
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

    def _watch_torch(self) -> None:
        if self._torch_looks is None:
            self._torch_looks = TorchLooks(sys.modules.get("torch"), self)
        self._torch_looks.put_in()

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
        line = self._line(frame)
        by = _caused_by(frame, self._shell) or (line and line.source)
        found = self._made(line, by=by, in_vain=in_vain)
        if first_in_vain:
            self._vain_look = found
        if starts:
            self._start = found

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
        cell = _last_cell(self._shell)
        in_cell = self._line(frame) is not None
        self._note(only_line(cell, _text_of(self._shell, cell) if in_cell else ""))

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


# ---------------------------------------------------------------- torch's looks


class TorchLooks:
    """Stands between torch and the functions with which it looks for GPUs.

    The module may be half imported.
    """

    def __init__(self, torch: Any, watcher: Watcher) -> None:
        self._core = getattr(torch, "_C", None)
        self._watcher = watcher
        self._put_in: dict[str, tuple[Any, Any]] = {}

    def put_in(self) -> None:
        """Wrap what this build of torch has."""
        for name in _LOOKS:
            plain = getattr(self._core, name, None)
            if plain is not None and name not in self._put_in:
                ours = _noting(plain, self._watcher)
                # One that cannot be replaced is left alone: an import must go on.
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(self._core, name, ours)
                    self._put_in[name] = plain, ours

    def take_out(self) -> None:
        """Put back torch's own, unless somebody else has replaced ours since."""
        while self._put_in:
            name, (plain, ours) = self._put_in.popitem()
            if getattr(self._core, name, None) is ours:
                setattr(self._core, name, plain)


def _noting(plain: Callable[..., Any], watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(plain)
    def look(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        before = watcher.looking()
        try:
            found = plain(*args, **options)
        except Exception:
            watcher.looked(sys._getframe(1), before=before, in_vain=True)  # noqa: SLF001
            raise
        # Only the count is a number; what starts torch answers nothing.
        watcher.looked(sys._getframe(1), before=before, in_vain=found == 0)  # noqa: SLF001
        return found

    return look


def _caused_by(frame: FrameType | None, shell: Any) -> str | None:
    """The import of the user's that made torch look, or torch's public function."""
    outermost = None
    while frame is not None and not _is_cell(shell, frame):
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if frame.f_code.co_name == "<module>" and root not in {"torch", "__main__"}:
            return f"import {root}"
        name = frame.f_code.co_qualname
        if root == "torch":
            private = "<" in name or any(x[:1] == "_" for x in name.split("."))
            outermost = None if private else f"{module}.{name}()"
        frame = frame.f_back
    return outermost


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
        finders: list[Any] = list(sys.meta_path)
        places = [place for place, each in enumerate(finders) if each is self]
        for finder in finders[places[0] + 1 :] if places else []:
            if not hasattr(finder, "find_spec"):
                return None  # of an older kind: Python knows how to ask it
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                _watch(spec.loader, self._watcher)
                return spec
        return None


def _watch(loader: Any, watcher: Watcher) -> None:
    """Put a hook on a loader that lasts until it is called."""
    if isinstance(loader, type) or not hasattr(loader, "exec_module"):
        return
    own = getattr(loader, "__dict__", None)
    if own is None or "exec_module" in own:
        return

    def run(module: ModuleType) -> None:
        __tracebackhide__ = True
        # Off first: some loaders serve many modules, nested ones too.
        if own.get("exec_module") is run:
            own.pop("exec_module", None)
        name = str(getattr(module, "__name__", ""))
        before = watcher.importing(name)
        try:
            loader.exec_module(module)
        finally:
            watcher.imported(name, before)

    own["exec_module"] = _as_importlib(run)


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


class CellLine(NamedTuple):
    """A line of a cell that was run in this shell."""

    cell: int  # its number, as in `In[cell]`
    line: int  # from 1, without blank lines at the top, as in IPython's tracebacks
    source: str | None  # as the user typed it; None where that is gone


def _line_of(shell: Any, frame: FrameType | None) -> CellLine | None:
    """The line of the running cell that has led to a frame.

    In a thread no cell runs: there it is the line of the user's function.
    """
    in_function = None
    while frame is not None:
        if frame.f_globals is shell.user_global_ns:
            found = _known_line(shell, frame)
            if found is not None and _is_cell(shell, frame):
                return found
            in_function = in_function or found
        frame = frame.f_back
    return in_function


def _is_cell(shell: Any, frame: FrameType) -> bool:
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


def _text_of(shell: Any, cell: int) -> str:
    """A cell as typed, less blank lines at its top."""
    typed = _typed(shell)
    return _as_counted(typed[cell]) if cell < len(typed) else ""


def _typed(shell: Any) -> list[str]:
    return list(getattr(shell.history_manager, "input_hist_raw", ()))


def _as_counted(cell: str) -> str:
    return _LEADING_BLANK_LINES.sub("", cell)


def _known_line(shell: Any, frame: FrameType) -> CellLine | None:
    name, line = frame.f_code.co_filename, frame.f_lineno
    cell = cell_numbers(shell).get(name)
    if cell is None and (match := _NAME_IN_IPYTHON_7.match(name)):
        cell = int(match[1])
    source = linecache.getline(name, line).strip()
    if cell is None and source and _is_cell(shell, frame):
        cell = _last_cell(shell)  # a kernel with IPython 7 names its files otherwise
    if cell is None:
        return None
    if "get_ipython()" in source:  # what IPython has made of a magic
        typed = _text_of(shell, cell).splitlines()
        source = typed[line - 1].strip() if line <= len(typed) else ""
    return CellLine(cell, line, source or None)
