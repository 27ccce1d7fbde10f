"""Watches for who starts CUDA: around cells, and where torch looks for GPUs.

The driver is asked one cheap question; torch is watched in the two functions of its C
part with which it looks. Once CUDA has started, all of it is taken out.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from gpumagic.notebook.faults import CellEvents, tell_fault
from gpumagic.report.frontend import cell_numbers, running_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from gpumagic.gpu_select.report import Start, TorchLook

_PART = "the watch for who starts CUDA"
_OUTSIDE = "something outside of the cells"
_LOOKS = ("_cuda_getDeviceCount", "_cuda_init")


def torch_look(*, found: bool = False, in_vain: bool = False) -> TorchLook:
    """What is known of torch's look for GPUs, of which it keeps the answer."""
    from gpumagic.gpu_select.report import TorchLook

    torch = sys.modules.get("torch")
    if hasattr(getattr(torch, "_C", None), "_cuda_getDeviceCount"):
        if getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
            return TorchLook.FOUND
        if in_vain:
            return TorchLook.IN_VAIN
        if found:
            return TorchLook.FOUND
    return TorchLook.NONE


class Witness:
    """Who has watched this process since the extension was loaded: here nobody."""

    def start(self) -> Start | None:
        """Who started CUDA, or looked for GPUs in vain; None if nobody has."""
        return None

    def torch_look(self) -> TorchLook:
        """Whether torch has looked for GPUs; imports and starts nothing."""
        return torch_look()


NOBODY = Witness()


class Watcher(Witness):
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
        self._start: Start | None = None
        self._vain_look: Start | None = None
        self._looked = self._watching = self._started_before = False
        self._cell_runs = False
        self._put_in = contextlib.ExitStack()
        self._torch_looks = TorchLooks(self)

    def install(self, shell: Any, undo: contextlib.ExitStack) -> None:
        """Watch from now on, until CUDA has started or this is undone."""
        self._shell = shell
        self._started_before = self._may_have_started() and bool(self._has_started())
        if self._started_before:
            return
        undo.callback(self._stop)
        self._watching = True
        cells = CellEvents(
            shell,
            _PART,
            before=self._before_cell,
            after=self._after_cell,
            on_fault=self._stop,
        )
        self._put_in.callback(cells.take_out)
        self._put_in.callback(self._torch_looks.take_out)
        cells.put_in()
        self._torch_looks.put_in()

    def start(self) -> Start | None:
        """Who started CUDA, or looked for GPUs in vain; None if nobody has."""
        if self._started_before:
            from gpumagic.gpu_select.report import Start

            return Start(by="something that ran before gpumagic was loaded")
        if self._watching:
            self._ask(in_cell=True)
        return self._start or self._vain_look

    def torch_look(self) -> TorchLook:
        """Whether torch has looked for GPUs; imports and starts nothing."""
        return torch_look(found=self._looked, in_vain=bool(self._vain_look))

    def unharmed(self, call: Callable[[], bool | None]) -> bool | None:
        """What a call answers; a fault of ours ends the watch, not the user's call."""
        try:
            if self._watching:
                return call()
        except Exception as fault:  # noqa: BLE001
            tell_fault(_PART, fault, self._stop)
        return None

    def before_look(self) -> bool | None:
        """Torch is about to look for GPUs: whether CUDA has started by then."""
        return self.unharmed(self._asked)

    def looked(self, frame: FrameType, *, before: bool | None, in_vain: bool) -> None:
        """Torch has looked for GPUs: it keeps what it has found."""
        self.unharmed(lambda: self._has_looked(frame, before, in_vain))

    def _asked(self) -> bool | None:
        return bool(self._start) or self._has_started()

    def _has_looked(
        self,
        frame: FrameType,
        before: bool | None,  # noqa: FBT001
        in_vain: bool,  # noqa: FBT001
    ) -> None:
        if os.getpid() != self._pid:
            return
        self._looked = True
        if in_vain:
            self._vain_look = self._vain_look or _start_at(frame, self._shell)
        if not before and self._asked():
            self._note(_start_at(frame, self._shell))

    def _note(self, start: Start) -> None:
        # A child that was forked off goes its own ways.
        if os.getpid() == self._pid:
            self._start = self._start or start

    def _ask(self, *, in_cell: bool) -> None:
        """Whether CUDA has started meanwhile: no line is known, the cell may be."""
        if not self._start and self._has_started():
            from gpumagic.gpu_select.report import Start

            self._note(
                Start(running_cell(self._shell)) if in_cell else Start(by=_OUTSIDE)
            )

    def _before_cell(self, _: Any) -> None:
        self._ask(in_cell=self._cell_runs)  # one may be run from within another
        self._cell_runs = True

    def _after_cell(self, _: Any) -> None:
        self._ask(in_cell=True)
        self._cell_runs = False
        if self._start:
            self._stop()
            self._on_start()
        else:
            self._torch_looks.no_longer_wait()

    def _stop(self) -> None:
        """Take out whatever has been put in; a second time there is nothing."""
        self._watching = False
        self._put_in.close()


class TorchLooks:
    """Stands between torch and the functions with which it looks for GPUs.

    Where torch is not there yet, this is a finder at the front that finds nothing:
    while torch is imported it is asked for each of its modules, and so learns in time
    that the C part has come.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._core: Any = None
        self._put_in: dict[str, tuple[Any, Any]] = {}

    def put_in(self) -> None:
        """Wrap what this build of torch has, or wait for torch."""
        self._wrap()
        if not self._core:
            sys.meta_path.insert(0, self)

    def find_spec(self, *_: Any) -> None:
        """A module is being looked for, by the finders behind this one as well."""
        if not self._core:
            self._watcher.unharmed(self._wrap)

    def _wrap(self) -> None:
        self._core = getattr(sys.modules.get("torch"), "_C", None)
        for name in _LOOKS:
            if plain := getattr(self._core, name, None):
                ours = _noting(plain, self._watcher)
                # One that cannot be replaced is left alone: an import must go on.
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(self._core, name, ours)
                    self._put_in[name] = plain, ours

    def no_longer_wait(self) -> None:
        """Leave the finders as they were, once torch has come."""
        if self._core:
            self._leave_the_finders()

    def take_out(self) -> None:
        """Put back torch's own, unless somebody else has replaced ours since."""
        self._leave_the_finders()
        while self._put_in:
            name, (plain, ours) = self._put_in.popitem()
            if getattr(self._core, name, None) is ours:
                setattr(self._core, name, plain)

    def _leave_the_finders(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)


def _noting(plain: Callable[..., Any], watcher: Watcher) -> Callable[..., Any]:
    @functools.wraps(plain)
    def look(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        before = watcher.before_look()
        try:
            found = plain(*args, **options)
        except Exception:
            watcher.looked(sys._getframe(1), before=before, in_vain=True)  # noqa: SLF001
            raise
        # Only the count is a number; what starts torch answers nothing.
        watcher.looked(sys._getframe(1), before=before, in_vain=found == 0)  # noqa: SLF001
        return found

    return look


def _start_at(frame: FrameType, shell: Any) -> Start:
    """The line of a cell that has led to a frame, and what it called or imported.

    In a thread no cell runs: there it is the line of the user's function.
    """
    from gpumagic.gpu_select.report import Start

    cells = cell_numbers(shell)
    stack = [each for each, _ in traceback.walk_stack(frame)]
    lines = [each for each in stack if each.f_code.co_filename in cells]
    called = itertools.takewhile(lambda each: each not in lines, stack)
    by = _called(called)
    if not lines:
        return Start(by=by or _OUTSIDE)
    file, number = lines[-1].f_code.co_filename, lines[-1].f_lineno
    typed = linecache.getline(file, number).strip()
    if "get_ipython()" in typed:  # what IPython has made of a magic
        typed = ""
    return Start(cells[file], number, by or typed)


def _called(stack: Iterable[FrameType]) -> str:
    """The public function of torch's, or the import, that made torch look."""
    by = ""
    for frame in stack:
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if frame.f_code.co_name == "<module>" and root not in {"torch", "__main__"}:
            return f"import {root}"
        if root == "torch":
            name = frame.f_code.co_qualname
            private = "<" in name or any(part[:1] == "_" for part in name.split("."))
            by = "" if private else f"{module}.{name}()"
    return by
