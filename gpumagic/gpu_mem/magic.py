"""`%gpu_mem` says where the GPU memory went, cell by cell, by name."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.display import display

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.faults import CellEvents
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, show_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from contextlib import ExitStack

    from gpumagic.drawing.progress import Place
    from gpumagic.gpu_mem.answer_cell import CellReport
    from gpumagic.gpu_mem.answer_leaks import LeakReport
    from gpumagic.gpu_mem.answer_log import LedgerEntry
    from gpumagic.gpu_mem.api import Memory
    from gpumagic.gpu_mem.cell import OneCell
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.session import Session
    from gpumagic.report.places import Code
    from gpumagic.report.record import Report

_WORDS = ("on", "off", "log", "map", "leaks", "free", "why", "fit", "live")
# Which word an option belongs to; "" is a cell.
_BELONGS = {"lines": "", "gc": "leaks", "cache": "free"}
_MOST_ENTRIES = 1000
_WATCHING = (
    "A line after each cell that moves memory of a GPU from now on; "
    "%gpu_mem off ends that"
)


@magics_class
class MemoryMagics(GpuMagics):
    """The magic of this room, with what cells have done so far."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell, session)
        self._last: Report | None = None
        self._notebook: _Notebook | None = None

    def install(self, undo: ExitStack) -> None:
        """Know the out-of-memory errors that end cells, until an unload."""
        cells = CellEvents(
            self.shell, "%gpu_mem after each cell", after=self._after_cell
        )
        undo.callback(self._close)
        undo.callback(cells.take_out)
        cells.put_in()

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_mem": "who holds the memory now?",
            "%%gpu_mem --lines": "which lines of the cell below took it?",
            "%gpu_mem leaks": "what is held for nothing?",
        }
    )
    @argument(
        "what",
        nargs="*",
        metavar="WORD",
        help="One of the words. Nothing: how things stand.",
    )
    @word("on", "From now on a line after each cell that moves memory.")
    @word("off", "No more of these lines.")
    @word("log", "All cells watched so far.")
    @word("map", "Segments and blocks of the caching allocator.")
    @word("leaks", "What could be let go of.")
    @word("free", "Let go of it: errors, results, cycles.")
    @word("why", "The last out-of-memory error, explained.")
    @word("live", "A panel while this cell runs.")
    @word("fit SIZE", "Whether that would fit now, as in fit 6GiB.")
    @argument(
        "--lines", action="store_true", help="Of a cell: lines, and its exact peak."
    )
    @argument(
        "--top",
        more=True,
        type=int,
        default=10,
        metavar="N",
        help="How many names to show (10).",
    )
    @argument(
        "--gc", more=True, action="store_true", help="leaks: collect cycles first."
    )
    @argument(
        "--cache",
        more=True,
        action="store_true",
        help="free: give torch's cache to the driver.",
    )
    @output_options
    def gpu_mem(self, line: str, cell: str | None = None) -> Any:
        """Say where the GPU memory went, by the names of this notebook.

        Looking resets no counter, empties no cache, collects and synchronises nothing,
        and keeps no tensor alive; only free lets go of something. In front of a cell
        it says what the cell did: change, peak, and whose names hold it now.
        """
        __tracebackhide__ = True
        typed = self.read(self.gpu_mem, line, cell)
        _check(typed, above_a_cell=cell is not None)
        notebook = self._notebook_here()
        if typed.what == ["live"]:
            self.show_live(keeps=cell is None)
        if cell is not None:
            return notebook.watch(typed, line, cell)
        match typed.what:
            case ["live"]:
                return None
            case ["on" | "off" as word]:
                return notebook.switch(on=word == "on")
            case _:
                return self.show(notebook.report(typed), typed)

    def show(
        self, report: Report, options: argparse.Namespace, place: Place | None = None
    ) -> Report | None:
        """Display and store a report; it is the one that `--show` is about."""
        self._last = report
        return super().show(report, options, place)

    @property
    def last_report(self) -> Report | None:
        """The last report of this magic in this notebook."""
        return self._last

    def _notebook_here(self) -> _Notebook:
        if self._notebook is None:
            self._notebook = _Notebook(self)
        return self._notebook

    def _after_cell(self, result: Any) -> None:
        """Meet the error of a cell before a later one takes its place."""
        error = getattr(result, "error_in_exec", None)
        if error is None or loaded_torch() is None:
            return
        from gpumagic.gpu_mem.oom import oom_within

        if oom_within(error) is not None:
            self._notebook_here().met(error)

    def _close(self) -> None:
        if self._notebook is not None:
            self._notebook.stop()


def _check(typed: argparse.Namespace, *, above_a_cell: bool) -> None:
    """Refuse what does not belong together, before anything is done."""
    word, *values = typed.what or ("",)
    more: list[str] = values[1 if word == "fit" else 0 :]
    if word and word not in _WORDS:
        hint = did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}"
        if above_a_cell:
            hint = "leave it out: what is watched is the cell below"
        raise UsageProblem(f"%gpu_mem has no word {word}", hint)
    if above_a_cell and word not in ("", "live"):
        raise UsageProblem(
            f"%%gpu_mem watches the cell below; {word} is a word of its own",
            f"type %gpu_mem {' '.join((word, *values))} in a cell of its own",
        )
    if word == "fit" and not values:
        raise UsageProblem(
            "%gpu_mem fit needs to know how much", "type %gpu_mem fit 6GiB"
        )
    if more:
        # A size that was typed with a blank in it is one word without.
        fitting = f" {''.join(values)}" if word == "fit" else ""
        raise UsageProblem(
            f"%gpu_mem {word}: {more[0]} is one word too many",
            f"type %gpu_mem {word}{fitting}",
        )
    if typed.top < 1:
        raise UsageProblem(
            f"%gpu_mem --top {typed.top}: that many names cannot be shown",
            "type --top 5, or leave it out",
        )
    here = "" if above_a_cell else word or "now"
    for option, place in _BELONGS.items():
        if getattr(typed, option) and here != place:
            right = f"%gpu_mem {place}" if place else "%%gpu_mem"
            raise UsageProblem(
                f"%gpu_mem: --{option} has no meaning here",
                f"it belongs to {right}: type {right} --{option}",
            )


class _Notebook:
    """The log of the cells and the last out-of-memory error of one notebook."""

    def __init__(self, magics: MemoryMagics) -> None:
        from gpumagic.gpu_mem.balance import Looks
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.gpu_mem.names import KnownNames
        from gpumagic.gpu_mem.oom import LastOom
        from gpumagic.notebook.cell_hooks import Mode, running_cell

        session = magics.session
        self._magics = magics
        self._shell = magics.shell
        self._names = KnownNames(self._shell.user_ns, self._shell)
        self._running_cell = running_cell
        self._cells: deque[LedgerEntry] = deque(maxlen=_MOST_ENTRIES)
        self._last_oom = LastOom(self._shell)
        self._looks = Looks()
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "gpu_mem", lambda: OneCell(self._names, search=False), self._tell
        )
        self._last_oom.seen(running_cell(self._shell))

    def stop(self) -> None:
        """Watch no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def met(self, error: BaseException) -> None:
        """Remember an out-of-memory error that has just ended a cell."""
        cell = self._running_cell(self._shell)
        self._last_oom.cell_ended(cell, error, watched=self._mode.is_on)

    def report(self, typed: argparse.Namespace) -> Report:
        """What one line asks for."""
        from gpumagic.gpu_mem.answer_log import LedgerReport
        from gpumagic.gpu_mem.api import Memory
        from gpumagic.report.units import parse_bytes

        memory = Memory(self._names, lambda: self._magics.session.driver)
        cell = self._running_cell(self._shell)
        oom, caught = self._last_oom.seen(cell)
        match typed.what:
            case ["log"]:
                entries, on = tuple(self._cells), self._mode.is_on
                report: Report = LedgerReport(entries, automatic=on)
            case ["map"]:
                report = memory.map()
            case ["leaks"]:
                report = self._leaks(memory, gc=typed.gc)
            case ["free"]:
                report = memory.free(cache=typed.cache)
            case ["why"]:
                report = memory.why(oom, caught)
            case ["fit", size]:
                report = memory.fit(parse_bytes(size))
            case _:
                report = now = memory.snapshot(top=typed.top)
                self._looks.add(cell, now.holdings)
        return report

    def _leaks(self, memory: Memory, *, gc: bool) -> LeakReport:
        report, holdings = memory.leaks(gc=gc), memory.holdings_now()
        grown = self._looks.grown(holdings)
        self._looks.add(self._running_cell(self._shell), holdings)
        return dataclasses.replace(report, grown=grown)

    def watch(self, typed: argparse.Namespace, line: str, cell: str) -> Any:
        """Run the cell below the magic, and tell what it did."""
        __tracebackhide__ = True
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.report.places import Code

        watch = OneCell(self._names, lines=typed.lines, top=typed.top)
        code = Code(cell.strip("\n"), cell=self._running_cell(self._shell))
        self._last_oom.seen(code.cell)

        def after(outcome: Outcome) -> Any:
            watch.end(error=outcome.error)
            self._last_oom.cell_ended(code.cell, outcome.error)
            report = watch.report(code, value=outcome.value, error=outcome.error)
            self._cells += _entries_of(report)
            self._looks.add(code.cell, report.holdings)
            return self._magics.show(report, typed)

        magic_line = f"%%gpu_mem {line}"
        return self._magics.run_body(magic_line, cell, before=watch.begin, after=after)

    def switch(self, *, on: bool) -> None:
        """Tell of each cell from now on, or no longer."""
        self._last_oom.seen(self._running_cell(self._shell))
        if on:
            self._every_cell.switch_on(self._mode)
            show_text(_WATCHING)
        else:
            self._every_cell.switch_off(self._mode)
            show_text("Cells are no longer watched by themselves")

    def _tell(self, watch: OneCell, code: Code) -> None:
        from gpumagic.gpu_mem.answer_cell import BriefReport

        report = watch.report(code)
        self._last_oom.cell_ended(code.cell)
        self._cells += _entries_of(report)
        if report.changes or report.badges:
            display(BriefReport(report))


def _entries_of(report: CellReport) -> Iterator[LedgerEntry]:
    """A line for each device on which something moved."""
    from gpumagic.gpu_mem.answer_log import LedgerEntry
    from gpumagic.gpu_mem.view_terms import device_name

    for change in report.changes:
        own = (each for each in report.badges if each.device in (None, change.device))
        yield LedgerEntry(
            code=report.code,
            device=device_name(report.setting, change.device),
            label=report.setting.label,
            allocated_bytes=change.after.allocated_bytes,
            reserved_bytes=change.after.reserved_bytes,
            allocated_delta=change.allocated_delta,
            peak=change.peak,
            failed=report.failed is not None,
            badges=tuple(dict.fromkeys(each.kind for each in own)),
        )
