"""Times every cell of a notebook, from when it is switched on.

The clock stops before IPython shows the cell's value: showing a tensor copies it to
the host, which is not what the cell was run for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.once import OneRun
from gpumagic.errors import GpuMagicError
from gpumagic.observed import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.report import TimingReport

_OURS = re.compile(r"\s*%%?cuda_sync_time\b")


class EveryCell:
    """Times cells while it is on.

    Args:
        shell: The interactive shell.

        instruments: What to measure with.

        tell: Called after each cell with its report.
    """

    def __init__(
        self,
        shell: Any,
        instruments: Instruments,
        tell: Callable[[TimingReport], object],
    ) -> None:
        self._shell = shell
        self._instruments = instruments
        self._tell = tell
        self._run: OneRun | None = None
        self._ended = False
        self._hook: Any = None
        self.is_on = False

    def start(self) -> None:
        """Time every cell from the next one on."""
        if not self.is_on:
            self.is_on = True
            self._shell.events.register("pre_run_cell", self._before)
            self._shell.events.register("post_run_cell", self._after)

    def stop(self) -> None:
        """Time no more cells."""
        if self.is_on:
            self.is_on = False
            self._shell.events.unregister("pre_run_cell", self._before)
            self._shell.events.unregister("post_run_cell", self._after)

    def _before(self, info: Any) -> None:
        typed = getattr(info, "raw_cell", None) or ""
        if not typed.strip() or _OURS.match(typed):
            return
        run = OneRun(self._instruments)
        try:
            run.begin()
        except GpuMagicError:
            return  # the device is lost, which the cell itself will say
        self._run, self._ended = run, False
        if self._shell.ast_node_interactivity != "all":  # else it shows in mid-cell
            self._hook = self._shell.display_trap.hook
            self._shell.display_trap.hook = self._stop_and_show

    def _stop_and_show(self, value: Any) -> Any:
        self._end(None)
        if self._run is not None and self._run.late_error is not None:
            raise self._run.late_error
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
        self._tell(run.report(Code(typed, cell=self._number(result))))

    def _number(self, result: Any) -> int | None:
        number: int | None = result.execution_count
        return number or max(0, len(self._shell.history_manager.input_hist_raw) - 1)
