"""Watches for the moment in which CUDA starts, and for who starts it.

After each cell and each import the driver is asked one cheap question; torch is
watched at the place where it looks for GPUs. With the answer all of it is gone.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.cell_line import (
    cells_of,
    is_cell,
    last_cell,
    line_of,
    only_line,
)
from gpumagic.gpu_select.imports import ImportFinder
from gpumagic.notebook.faults import CellEvents, tell_fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from types import FrameType

    from gpumagic.gpu_select.cell_line import CellLine
    from gpumagic.gpu_select.report import Start, TorchLatch
    from gpumagic.gpu_select.torch_looks import TorchLooks

_PART = "the watch for who starts CUDA"


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
        self._cell_at_install = last_cell(shell)
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
        from gpumagic.gpu_select.torch_state import torch_latch

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
            self._note(only_line(last_cell(self._shell), typed or ""))
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
        cell = last_cell(self._shell)
        typed = cells_of(self._shell).get(cell, "") if in_cell else ""
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
            return Start(last_cell(self._shell), by=by, in_vain=in_vain)
        outside = f"something outside of the cells, after In[{last_cell(self._shell)}]"
        return Start(by=by or outside, in_vain=in_vain)

    def _line(self, frame: FrameType | None) -> CellLine | None:
        try:
            return line_of(self._shell, frame)
        except Exception:  # noqa: BLE001 -- the user's call must go on
            return None

    def _guess(self) -> Start:
        from gpumagic.gpu_select.history import guess
        from gpumagic.gpu_select.report import Start

        cells = cells_of(self._shell).items()
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
