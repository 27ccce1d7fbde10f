"""What the magic keeps of one notebook: the log of its cells, and its last OOM."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.gpu_mem.api import Memory
from gpumagic.gpu_mem.cell import OneCell
from gpumagic.gpu_mem.growth import Looks
from gpumagic.gpu_mem.name_sources import KnownNames
from gpumagic.gpu_mem.oom import LastOom
from gpumagic.gpu_mem.options import LIVE, Options, options_of
from gpumagic.gpu_mem.records import LedgerEntry
from gpumagic.gpu_mem.report import BriefReport, LedgerReport
from gpumagic.notebook.cell_hooks import Mode, running_cell
from gpumagic.notebook.magics import show_text
from gpumagic.report.places import Code
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from gpumagic.gpu_mem.report import CellReport, LeakReport
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics
    from gpumagic.report.record import Report

_WATCHING = (
    "A line after each cell that moves memory of a GPU from now on; "
    "%gpu_mem off ends that"
)
_MOST_ENTRIES = 1000


class Notebook:
    """The log of the cells and the last out-of-memory error of one notebook.

    Args:
        magics: Through which reports are shown and bodies run.
    """

    def __init__(self, magics: GpuMagics) -> None:
        session = magics.session
        self._magics = magics
        self._shell = magics.shell
        self._names = KnownNames(self._shell.user_ns, self._shell)
        self._memory = Memory(self._names, lambda: session.driver)
        self._cells: deque[LedgerEntry] = deque(maxlen=_MOST_ENTRIES)
        self._last_oom = LastOom(self._shell)
        self._looks = Looks()
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "gpu_mem", lambda: OneCell(self._names, search=False), self._tell
        )

    def stop(self) -> None:
        """Watch no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def answer(self, typed: argparse.Namespace, line: str, cell: str | None) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        options = options_of(typed, above_a_cell=cell is not None)
        self._last_oom.seen(running_cell(self._shell))
        if options.word == LIVE:
            self._magics.show_live(keeps=cell is None)
            if cell is None:
                return None
        if cell is not None:
            return self._watch(options, typed, line, cell)
        if options.word in ("on", "off"):
            return self._switch(on=options.word == "on")
        return self._magics.show(self._report(options), typed)

    def _report(self, options: Options) -> Report:
        memory = self._memory
        match options.word, options.value:
            case "log", _:
                entries, watched = tuple(self._cells), self._mode.is_on
                report: Report = LedgerReport(entries, automatic=watched)
            case "map", _:
                report = memory.map()
            case "leaks", _:
                report = self._leaks(gc=options.gc)
            case "free", _:
                report = memory.free(options)
            case "why", _:
                report = memory.why(*self._last_oom.seen(running_cell(self._shell)))
            case "fit", str(size):
                report = memory.fit(parse_bytes(size))
            case _:
                report = memory.snapshot(top=options.top)
                self._looks.add(running_cell(self._shell), report.holdings)
        return report

    def _leaks(self, *, gc: bool) -> LeakReport:
        report, holdings = self._memory.leaks(gc=gc), self._memory.holdings_now()
        grown = self._looks.grown(holdings)
        self._looks.add(running_cell(self._shell), holdings)
        return dataclasses.replace(report, grown=grown)

    def met(self, error: BaseException) -> None:
        """Remember an out-of-memory error that has just ended a cell."""
        cell = running_cell(self._shell)
        self._last_oom.cell_ended(cell, error, watched=self._mode.is_on)

    # ------------------------------------------------------------------ a cell

    def _watch(
        self, options: Options, typed: argparse.Namespace, line: str, cell: str
    ) -> Any:
        __tracebackhide__ = True
        watch = OneCell(self._names, options)
        code = Code(cell.strip("\n"), cell=running_cell(self._shell))

        def after(outcome: Outcome) -> Any:
            watch.end(error=outcome.error)
            self._last_oom.cell_ended(code.cell, outcome.error)
            report = watch.report(code, value=outcome.value, error=outcome.error)
            self._cells += _entries_of(report)
            self._looks.add(code.cell, report.holdings)
            return self._magics.show(report, typed)

        magic_line = f"%%gpu_mem {line}"
        return self._magics.run_body(magic_line, cell, before=watch.begin, after=after)

    # -------------------------------------------------------------- every cell

    def _switch(self, *, on: bool) -> None:
        if on:
            self._every_cell.switch_on(self._mode)
            show_text(_WATCHING)
        else:
            self._every_cell.switch_off(self._mode)
            show_text("Cells are no longer watched by themselves")

    def _tell(self, watch: OneCell, code: Code) -> None:
        report: CellReport = watch.report(code)
        self._last_oom.cell_ended(code.cell)
        self._cells += _entries_of(report)
        if report.changes or report.badges:
            display(BriefReport(report))


def _entries_of(report: CellReport) -> Iterator[LedgerEntry]:
    """A line for each device on which something moved."""
    for change in report.changes:
        own = (each for each in report.badges if each.device in (None, change.device))
        yield LedgerEntry(
            code=report.code,
            kind=report.setting.kind,
            label=report.setting.label,
            device=change.device,
            allocated_bytes=change.after.allocated_bytes,
            reserved_bytes=change.after.reserved_bytes,
            allocated_delta=change.allocated_delta,
            peak=change.peak,
            failed=report.failed is not None,
            badges=tuple(dict.fromkeys(each.kind for each in own)),
        )
