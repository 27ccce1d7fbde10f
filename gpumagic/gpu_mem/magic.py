"""`%gpu_mem` says where the GPU memory went, cell by cell, by name."""

from __future__ import annotations

from dataclasses import replace
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

    from gpumagic.gpu_mem.answer_leaks import LeakReport
    from gpumagic.gpu_mem.api import Memory
    from gpumagic.gpu_mem.balance import Looks
    from gpumagic.gpu_mem.cell import OneCell
    from gpumagic.gpu_mem.names import KnownNames
    from gpumagic.gpu_mem.oom import LastOom
    from gpumagic.notebook.cell_hooks import Mode
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
        word, *values = typed.what or ("",)
        if word == "live":
            self.show_live(keeps=cell is None)
        if cell is None:
            if word in ("on", "off"):
                self._switch(on=word == "on")
            if word in ("on", "off", "live"):
                return None
            return self.show(self._report(word, *values), typed)
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.notebook import cells
        from gpumagic.notebook.cell_hooks import running_cell
        from gpumagic.report.places import Code

        watch = OneCell(self._names, lines=typed.lines)
        code = Code(cell.strip("\n"), cell=running_cell(self.shell))

        def after(outcome: Outcome) -> Any:
            watch.end(error=outcome.error)
            report = watch.report(code, value=outcome.value, error=outcome.error)
            self._looks.add(report.holdings)
            return self.show(report, typed)

        return cells.run(
            self.shell,
            cell,
            magic_line=f"%%gpu_mem {line}",
            before=watch.begin,
            after=after,
        )

    @cached_property
    def _names(self) -> KnownNames:
        from gpumagic.gpu_mem.names import KnownNames

        return KnownNames(self.shell.user_ns, self.shell)

    @cached_property
    def _looks(self) -> Looks:
        from gpumagic.gpu_mem.balance import Looks

        return Looks()

    @cached_property
    def _last_oom(self) -> LastOom:
        from gpumagic.gpu_mem.oom import LastOom

        return LastOom(self.shell)

    @cached_property
    def _every_cell(self) -> Mode:
        from gpumagic.gpu_mem.cell import OneCell
        from gpumagic.notebook.cell_hooks import Mode

        return Mode("gpu_mem", lambda: OneCell(self._names, search=False), _tell)

    def _switch(self, *, on: bool) -> None:
        """Tell of each cell from now on, or no longer."""
        cells = self.session.every_cell(self.shell)
        (cells.switch_on if on else cells.switch_off)(self._every_cell)
        show_text(_WATCHING if on else "Cells are no longer watched by themselves")

    def _close(self) -> None:
        if "_every_cell" in vars(self):
            self.session.every_cell(self.shell).switch_off(self._every_cell)

    def _after_cell(self, result: Any) -> None:
        """Meet the error of a cell before a later one takes its place."""
        error = getattr(result, "error_in_exec", None)
        if error is not None and loaded_torch() is not None:
            self._last_oom.cell_ended(error)

    def _report(self, word: str, *values: str) -> Report:
        """What one line asks for."""
        from gpumagic.gpu_mem.api import Memory
        from gpumagic.report.units import parse_bytes

        memory = Memory(self._names, lambda: self.session.driver)
        asked: dict[str, Callable[[], Report]] = {
            "map": memory.map,
            "leaks": lambda: self._leaks(memory),
            "free": memory.free,
            "why": lambda: memory.why(self._last_oom.seen()),
            "fit": lambda: memory.fit(parse_bytes(*values)),
        }
        if word in asked:
            return asked[word]()
        now = memory.snapshot()
        self._looks.add(now.holdings)
        return now

    def _leaks(self, memory: Memory) -> LeakReport:
        grown = self._looks.grown(memory.holdings_now())
        return replace(memory.leaks(), grown=grown)


def _tell(watch: OneCell, code: Code) -> None:
    from gpumagic.gpu_mem.answer_cell import BriefReport

    report = watch.report(code)
    if report.changes or report.badges:
        display(BriefReport(report))


def _check(typed: argparse.Namespace, *, above_a_cell: bool) -> None:
    """Refuse what does not belong together, before anything is done."""
    word, *values = typed.what or ("",)
    if word not in ("", *_WORDS):
        hint = did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}"
        raise UsageProblem(f"%gpu_mem has no word {word}", hint)
    if above_a_cell and word not in ("", "live"):
        problem = f"%%gpu_mem watches the cell below; {word} is a word of its own"
        line = " ".join(("%gpu_mem", *typed.what))
        raise UsageProblem(problem, f"type {line} in a cell of its own")
    if typed.lines and not above_a_cell:
        problem = "%gpu_mem: --lines has no meaning here"
        hint = "it belongs to %%gpu_mem: type %%gpu_mem --lines"
        raise UsageProblem(problem, hint)
    if word == "fit" and len(values) != 1:
        # A size that was typed with a blank in it is one word without.
        hint = f"type %gpu_mem fit {''.join(values) or '6GiB'}"
        raise UsageProblem("%gpu_mem fit takes one size", hint)
    if word != "fit" and values:
        problem = f"%gpu_mem {word}: {values[0]} is one word too many"
        raise UsageProblem(problem, f"type %gpu_mem {word}")
