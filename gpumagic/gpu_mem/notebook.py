"""What the magic keeps of one notebook: the log of its cells, and its last OOM."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.gpu_mem.api import Memory
from gpumagic.gpu_mem.cell import OneCell
from gpumagic.gpu_mem.name_sources import KnownNames
from gpumagic.gpu_mem.oom import LastOom
from gpumagic.gpu_mem.records import LedgerEntry
from gpumagic.gpu_mem.report import BriefReport, LedgerReport
from gpumagic.notebook.cell_hooks import Mode, running_cell
from gpumagic.notebook.magics import show_text
from gpumagic.report.events import Code
from gpumagic.report.log import save_rows
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from gpumagic.gpu_mem.report import CellReport, FreeReport
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics
    from gpumagic.report.record import Report

_WORDS = ("on", "off", "log", "map", "leaks", "free", "why", "fit")
_TAKE_A_VALUE = ("log", "fit")
_WATCHING = (
    "A line after each cell that moves memory from now on; %gpu_mem off ends that"
)
# Which words an option belongs to; "" is a cell, "now" is no word at all.
_BELONGS = {
    "lines": ("",),
    "exact": ("",),
    "outputs": ("free",),
    "errors": ("free",),
    "gc": ("free", "leaks"),
    "cache": ("free",),
}
_KEPT = 1000
_COLUMNS = (
    "cell",
    "code",
    "device",
    "label",
    "allocated_bytes",
    "reserved_bytes",
    "allocated_delta",
    "peak_low_bytes",
    "peak_high_bytes",
    "peak",
    "failed",
    "badges",
)


class Notebook:
    """The ledger and the last out-of-memory error of one notebook.

    Args:
        magics: Through which reports are shown and bodies run.
    """

    def __init__(self, magics: GpuMagics) -> None:
        session = magics.session
        self._magics = magics
        self._shell = magics.shell
        self._names = KnownNames(self._shell.user_ns, self._shell)
        self._memory = Memory(self._names, lambda: session.driver)
        self._ledger = Ledger()
        self._last_oom = LastOom(self._shell)
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "gpu_mem", lambda: OneCell(self._names, search=False), self._tell
        )

    def stop(self) -> None:
        """Watch no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def answer(self, options: argparse.Namespace, line: str, cell: str | None) -> Any:
        """Do what one line asks for.

        Args:
            options: The words and options.

            line: The line as typed.

            cell: The body; None in line form.
        """
        __tracebackhide__ = True
        _check(options, cell)
        if cell is not None:
            return self._watch(options, line, cell)
        self._last_oom.seen(running_cell(self._shell))
        word, *values = options.what or ("now",)
        if word in ("on", "off"):
            return self._switch(on=word == "on")
        return self._magics.show(self._report(word, values, options), options)

    def _report(  # noqa: PLR0911 -- one for each word
        self, word: str, values: list[str], options: argparse.Namespace
    ) -> Report:
        memory = self._memory
        match word:
            case "log":
                return self._log(values[0] if values else None)
            case "map":
                return memory.map()
            case "leaks":
                return memory.leaks(gc=options.gc)
            case "free":
                return self._free(options)
            case "why":
                return memory.why(*self._last_oom.seen(running_cell(self._shell)))
            case "fit":
                return memory.fit(parse_bytes(values[0]))
            case _:
                return memory.snapshot(top=options.top)

    def _free(self, options: argparse.Namespace) -> FreeReport:
        return self._memory.free(
            outputs=options.outputs,
            errors=options.errors,
            gc=options.gc,
            cache=options.cache,
        )

    def met(self, error: BaseException) -> None:
        """Remember an out-of-memory error that has just ended a cell."""
        cell = running_cell(self._shell)
        self._last_oom.cell_ended(cell, error, watched=self._mode.is_on)

    # ------------------------------------------------------------------ a cell

    def _watch(self, options: argparse.Namespace, line: str, cell: str) -> Any:
        __tracebackhide__ = True
        self._last_oom.seen(running_cell(self._shell))
        watch = OneCell(self._names, exact=options.exact, lines=options.lines)
        code = Code(cell.strip("\n"), cell=running_cell(self._shell))

        def after(outcome: Outcome) -> Any:
            watch.end(error=outcome.error)
            self._last_oom.cell_ended(code.cell, outcome.error)
            report = watch.report(
                code, top=options.top, value=outcome.value, error=outcome.error
            )
            self._ledger.add(report)
            return self._magics.show(report, options)

        typed = f"%%gpu_mem {line}"
        return self._magics.run_body(typed, cell, before=watch.begin, after=after)

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
        self._ledger.add(report)
        if report.changes or report.badges:
            display(BriefReport(report))

    def _log(self, file: str | None) -> LedgerReport:
        if file is not None:
            self._ledger.save(file)
        return self._ledger.report(automatic=self._mode.is_on, saved_as=file)


def _check(options: argparse.Namespace, cell: str | None) -> None:
    """Refuse what does not belong together, before anything is done."""
    word, *values = options.what or ("",)
    if cell is not None and word and word not in _WORDS:
        raise UsageProblem(
            f"%%gpu_mem takes no word {word}",
            "leave it out: what is watched is the cell below",
        )
    if cell is not None and word:
        raise UsageProblem(
            f"%%gpu_mem watches the cell below; {word} is a word of its own",
            f"type %gpu_mem {' '.join(options.what)} in a cell of its own",
        )
    if word and word not in _WORDS:
        raise UsageProblem(
            f"%gpu_mem has no word {word}",
            did_you_mean(word, _WORDS) or f"say one of {', '.join(_WORDS)}, or nothing",
        )
    most = 1 if word in _TAKE_A_VALUE else 0
    if len(values) > most:
        # A size that was typed with a blank in it is one word without.
        fitting = ["".join(values)] if word == "fit" else values[:most]
        raise UsageProblem(
            f"%gpu_mem {word}: {values[most]} is one word too many",
            f"type %gpu_mem {' '.join((word, *fitting))}",
        )
    if word == "fit" and not values:
        raise UsageProblem(
            "%gpu_mem fit needs to know how much", "type %gpu_mem fit 6GiB"
        )
    if options.top < 1:
        raise UsageProblem(
            f"%gpu_mem --top {options.top}: that many names cannot be shown",
            "type --top 5, or leave it out",
        )
    here = "" if cell is not None else word or "now"
    for option, places in _BELONGS.items():
        if getattr(options, option) and here not in places:
            raise UsageProblem(
                f"%gpu_mem: --{option} has no meaning here",
                _where(option, places),
            )


def _where(option: str, places: tuple[str, ...]) -> str:
    typed = f"%gpu_mem {places[0]}" if places[0] else "%%gpu_mem"
    return f"it belongs to {typed}: type {typed} --{option}"


class Ledger:
    """Entries of what cells did; the oldest go when there are too many."""

    def __init__(self) -> None:
        self._entries: deque[LedgerEntry] = deque(maxlen=_KEPT)
        self._added = 0

    def add(self, report: CellReport) -> None:
        """Note one more cell; the report itself is not kept."""
        for entry in entries_of(report):
            self._entries.append(entry)
            self._added += 1

    def report(self, *, automatic: bool, saved_as: str | None = None) -> LedgerReport:
        """What was noted so far."""
        return LedgerReport(
            entries=tuple(self._entries),
            dropped=self._added - len(self._entries),
            automatic=automatic,
            saved_as=saved_as,
        )

    def save(self, file: str) -> None:
        """Write it to a file, as CSV or JSON by its ending."""
        save_rows(file, [_row(entry) for entry in self._entries], _COLUMNS)


def entries_of(report: CellReport) -> Iterator[LedgerEntry]:
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


def _row(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "cell": entry.code.cell,
        "code": entry.code.text,
        "device": f"{entry.kind}:{entry.device}",
        "label": entry.label,
        "allocated_bytes": entry.allocated_bytes,
        "reserved_bytes": entry.reserved_bytes,
        "allocated_delta": entry.allocated_delta,
        "peak_low_bytes": entry.peak.low_bytes,
        "peak_high_bytes": entry.peak.high_bytes,
        "peak": entry.peak.kind.value,
        "failed": entry.failed,
        "badges": "; ".join(kind.value for kind in entry.badges),
    }
