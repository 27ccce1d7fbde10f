"""`%gpu_mem` says where the GPU memory went, cell by cell, by name."""

from __future__ import annotations

import dataclasses
from functools import cached_property
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
    from collections.abc import Callable
    from contextlib import ExitStack

    from gpumagic.gpu_mem.answer_cell import CellReport
    from gpumagic.gpu_mem.cell import OneCell
    from gpumagic.notebook.cells import Outcome
    from gpumagic.report.places import Code
    from gpumagic.report.record import Report

_WORDS = ("on", "off", "map", "leaks", "free", "why", "fit", "live")
_WATCHING = (
    "A line after each cell that moves memory of a GPU from now on; "
    "%gpu_mem off ends that"
)


@magics_class
class MemoryMagics(GpuMagics):
    """The magic of this room, with what cells have done so far."""

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
        notebook = self._notebook
        if typed.what == ["live"]:
            self.show_live(keeps=cell is None)
        if cell is None:
            match typed.what:
                case ["live"]:
                    return None
                case ["on" | "off" as word]:
                    return notebook.switch(on=word == "on")
                case _:
                    return self.show(notebook.report(typed), typed)
        from gpumagic.notebook import cells

        watch, code = notebook.watched(typed, cell)

        def after(outcome: Outcome) -> Any:
            return self.show(notebook.ended(watch, code, outcome), typed)

        return cells.run(
            self.shell,
            cell,
            magic_line=f"%%gpu_mem {line}",
            before=watch.begin,
            after=after,
        )

    @cached_property
    def _notebook(self) -> _Notebook:
        return _Notebook(self)

    def _after_cell(self, result: Any) -> None:
        """Meet the error of a cell before a later one takes its place."""
        error = getattr(result, "error_in_exec", None)
        if error is None or loaded_torch() is None:
            return
        from gpumagic.gpu_mem.oom import oom_within

        if oom_within(error) is not None:
            self._notebook.met(error)

    def _close(self) -> None:
        if "_notebook" in vars(self):
            self._notebook.stop()


def _check(typed: argparse.Namespace, *, above_a_cell: bool) -> None:
    """Refuse what does not belong together, before anything is done."""
    word, *values = typed.what or ("",)
    more: list[str] = values[1 if word == "fit" else 0 :]
    # A size that was typed with a blank in it is one word without.
    fitting = f" {''.join(values)}" if word == "fit" else ""
    known = did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}"
    if above_a_cell:
        known = "leave it out: what is watched is the cell below"
    for is_wrong, problem, hint in (
        (
            word not in ("", *_WORDS),
            f"%gpu_mem has no word {word}",
            known,
        ),
        (
            above_a_cell and word not in ("", "live"),
            f"%%gpu_mem watches the cell below; {word} is a word of its own",
            f"type %gpu_mem {' '.join((word, *values))} in a cell of its own",
        ),
        (
            word == "fit" and not values,
            "%gpu_mem fit needs to know how much",
            "type %gpu_mem fit 6GiB",
        ),
        (
            bool(more),
            f"%gpu_mem {word}: {' '.join(more[:1])} is one word too many",
            f"type %gpu_mem {word}{fitting}",
        ),
        (
            typed.lines and not above_a_cell,
            "%gpu_mem: --lines has no meaning here",
            "it belongs to %%gpu_mem: type %%gpu_mem --lines",
        ),
        (
            typed.cache and word != "free",
            "%gpu_mem: --cache has no meaning here",
            "it belongs to %gpu_mem free: type %gpu_mem free --cache",
        ),
    ):
        if is_wrong:
            raise UsageProblem(problem, hint)


class _Notebook:
    """What names held, and the last out-of-memory error, of one notebook."""

    def __init__(self, magics: MemoryMagics) -> None:
        from gpumagic.gpu_mem.balance import Looks
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.gpu_mem.names import KnownNames
        from gpumagic.gpu_mem.oom import LastOom
        from gpumagic.notebook.cell_hooks import Mode, running_cell

        self._session, shell = magics.session, magics.shell
        self._names = KnownNames(shell.user_ns, shell)
        self._cell_number: Callable[[], int] = lambda: running_cell(shell)
        self._last_oom = LastOom(shell)
        self._looks = Looks()
        self._every_cell = self._session.every_cell(shell)
        self._mode = Mode(
            "gpu_mem", lambda: OneCell(self._names, search=False), self._tell
        )
        self._last_oom.seen()

    def stop(self) -> None:
        """Watch no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def met(self, error: BaseException) -> None:
        """Remember an out-of-memory error that has just ended a cell."""
        self._last_oom.cell_ended(self._cell_number(), error, watched=self._mode.is_on)

    def switch(self, *, on: bool) -> None:
        """Tell of each cell from now on, or no longer."""
        self._last_oom.seen()
        if on:
            self._every_cell.switch_on(self._mode)
        else:
            self._every_cell.switch_off(self._mode)
        show_text(_WATCHING if on else "Cells are no longer watched by themselves")

    def report(self, typed: argparse.Namespace) -> Report:
        """What one line asks for."""
        from gpumagic.gpu_mem.api import Memory
        from gpumagic.report.units import parse_bytes

        memory = Memory(self._names, lambda: self._session.driver)
        oom, caught = self._last_oom.seen()
        match typed.what:
            case ["map"]:
                report: Report = memory.map()
            case ["leaks"]:
                holdings, leaks = memory.holdings_now(), memory.leaks()
                grown = self._looks.grown(holdings)
                self._looks.add(self._cell_number(), holdings)
                report = dataclasses.replace(leaks, grown=grown)
            case ["free"]:
                report = memory.free(cache=typed.cache)
            case ["why"]:
                report = memory.why(oom, caught)
            case ["fit", size]:
                report = memory.fit(parse_bytes(size))
            case _:
                report = now = memory.snapshot()
                self._looks.add(self._cell_number(), now.holdings)
        return report

    def watched(self, typed: argparse.Namespace, cell: str) -> tuple[OneCell, Code]:
        """What looks at the cell below the magic, and that cell."""
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.report.places import Code

        self._last_oom.seen()
        watch = OneCell(self._names, lines=typed.lines)
        return watch, Code(cell.strip("\n"), cell=self._cell_number())

    def ended(self, watch: OneCell, code: Code, outcome: Outcome) -> CellReport:
        """What the cell below the magic has done."""
        watch.end(error=outcome.error)
        self._last_oom.cell_ended(code.cell, outcome.error, counted=watch.after)
        report = watch.report(code, value=outcome.value, error=outcome.error)
        self._looks.add(code.cell, report.holdings)
        return report

    def _tell(self, watch: OneCell, code: Code) -> None:
        from gpumagic.gpu_mem.answer_cell import BriefReport

        report = watch.report(code)
        self._last_oom.cell_ended(code.cell, counted=watch.after)
        if report.changes or report.badges:
            display(BriefReport(report))
