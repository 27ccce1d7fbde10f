"""Does something round every cell of a notebook, from when it is switched on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from gpumagic.errors import GpuMagicError
from gpumagic.observed import Code

if TYPE_CHECKING:
    from collections.abc import Callable


class CellRun(Protocol):
    """What goes on from before a cell until after it."""

    def begin(self) -> None:
        """The cell is about to run; GpuMagicError leaves this cell out."""

    def end(self, *, error: BaseException | None = None) -> None:
        """The cell has run, or has raised this."""


class EveryCell:
    """Begins and ends a run round every cell while it is on.

    Args:
        shell: The interactive shell.

        magic: The name of the magic; cells that begin with it are left out.

        new_run: Makes the run for a cell.

        tell: Called after each cell with its run and its code.

        ends_before_display: Whether the run ends before IPython shows the cell's
            value: showing a tensor copies it to the host, which is not what the cell
            was run for.

    Attributes:
        is_on: Whether cells are looked at.
    """

    def __init__(
        self,
        shell: Any,
        magic: str,
        new_run: Callable[[], CellRun],
        tell: Callable[[Any, Code], object],
        *,
        ends_before_display: bool = False,
    ) -> None:
        self._shell = shell
        self._ours = re.compile(rf"\s*%%?{magic}\b")
        self._new_run = new_run
        self._tell = tell
        self._ends_before_display = ends_before_display
        self._run: CellRun | None = None
        self._ended = False
        self._hook: Any = None
        self.is_on = False

    def start(self) -> None:
        """Look at every cell from the next one on."""
        if not self.is_on:
            self.is_on = True
            self._shell.events.register("pre_run_cell", self._before)
            self._shell.events.register("post_run_cell", self._after)

    def stop(self) -> None:
        """Look at no more cells."""
        if self.is_on:
            self.is_on = False
            self._shell.events.unregister("pre_run_cell", self._before)
            self._shell.events.unregister("post_run_cell", self._after)

    def _before(self, info: Any) -> None:
        typed = getattr(info, "raw_cell", None) or ""
        if not typed.strip() or self._ours.match(typed):
            return
        run = self._new_run()
        try:
            run.begin()
        except GpuMagicError:
            return  # the device is lost, which the cell itself will say
        self._run, self._ended = run, False
        # With "all", values are shown in mid-cell.
        if self._ends_before_display and self._shell.ast_node_interactivity != "all":
            self._hook = self._shell.display_trap.hook
            self._shell.display_trap.hook = self._end_and_show

    def _end_and_show(self, value: Any) -> Any:
        self._end(None)
        late_error = getattr(self._run, "late_error", None)
        if late_error is not None:
            raise late_error
        return self._hook(value)

    def _end(self, error: BaseException | None) -> None:
        if self._run is not None and not self._ended:
            self._ended = True
            self._run.end(error=error)

    def _after(self, result: Any) -> None:
        run = self._run
        if run is None:
            return
        if self._hook is not None:
            self._shell.display_trap.hook, self._hook = self._hook, None
        self._end(result.error_in_exec or result.error_before_exec)
        self._run = None
        typed = getattr(result.info, "raw_cell", None) or ""
        self._tell(run, Code(typed, cell=running_cell(self._shell)))


def running_cell(shell: Any) -> int:
    """The number of the cell that runs, or has just run, as its user sees it."""
    typed = getattr(shell.history_manager, "input_hist_raw", ())
    return max(0, len(typed) - 1)
