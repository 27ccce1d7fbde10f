"""One cell in depth: what it did to the memory, and whose names hold it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.cell_run import CellRun
from gpumagic.gpu_mem.holdings import compared, find_holdings, of_devices, sizes
from gpumagic.gpu_mem.report import CellReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.gpu_mem.known_names import KnownNames
    from gpumagic.gpu_mem.records.counters import DeviceChange
    from gpumagic.gpu_mem.records.names import Holdings
    from gpumagic.report.events import Code

_WORTH_A_SEARCH = 1 << 20


class OneCell:
    """Looks before and after a cell, at counters and, where it matters, at names.

    Args:
        names: Where names are looked for.

        exact: Whether the peak is wanted exactly.

        lines: Whether each line's part is wanted.

        search: Whether to look for names at all.
    """

    def __init__(
        self,
        names: KnownNames,
        *,
        exact: bool = False,
        lines: bool = False,
        search: bool = True,
    ) -> None:
        self._names = names
        self._searches = search
        self._run = CellRun(
            runtime_now, exact=exact, lines=lines, host_bytes=self._host_bytes
        )
        self._sizes: dict[str, int] = {}

    def begin(self) -> None:
        """The cell is about to run."""
        if self._searches:
            runtime = runtime_now()
            if runtime.kind == "cpu" or runtime.started():
                self._sizes = sizes(self._holdings(runtime.kind))
        self._run.begin()

    def end(self, *, error: BaseException | None = None) -> None:
        """The cell has run, or has raised this."""
        self._run.end(error)

    def report(
        self,
        code: Code,
        *,
        top: int = 10,
        value: Any = None,
        error: BaseException | None = None,
    ) -> CellReport:
        """What came of it.

        Args:
            code: The cell.

            top: How many names are to be shown.

            value: The cell's value, which IPython is going to keep.

            error: What it has raised, which IPython is going to keep.
        """
        run = self._run
        changes = tuple(each for each in run.changes() if each.moved)
        return CellReport(
            code=code,
            setting=run.setting,
            changes=changes,
            badges=run.badges(),
            holdings=self._held_now(changes, code, value, error),
            lines=run.lines(),
            lines_partial=run.lines_partial,
            failed=run.failed,
            top=top,
            remarks=run.remarks,
        )

    def _held_now(
        self,
        changes: tuple[DeviceChange, ...],
        code: Code,
        value: Any,
        error: BaseException | None,
    ) -> Holdings | None:
        moved = any(
            abs(each.allocated_delta or 0) >= _WORTH_A_SEARCH for each in changes
        )
        if not self._searches or not moved:
            return None
        found = self._holdings(
            self._run.kind,
            {each.device: each.after.allocated_bytes for each in changes},
            shown={} if value is None else {f"Out[{code.cell}]": value},
            error=error,
        )
        return of_devices(compared(self._sizes, found), {c.device for c in changes})

    def _holdings(
        self,
        kind: str,
        allocated: Mapping[int, int | None] | None = None,
        shown: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> Holdings:
        return find_holdings(self._names.sources(kind, shown, error), allocated or {})

    def _host_bytes(self) -> int | None:
        """What the names hold of the host's memory."""
        held = self._holdings("cpu")
        return sum(nbytes for _, nbytes in held.allocated_bytes)
