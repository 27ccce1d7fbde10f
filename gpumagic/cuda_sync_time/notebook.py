"""What the magic keeps of one notebook, and what its words come to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.display import display

from gpumagic.cuda_sync_time import bench
from gpumagic.cuda_sync_time.answer_run import BriefReport
from gpumagic.cuda_sync_time.bench import Candidate
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
from gpumagic.cuda_sync_time.records import Options
from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook.arguments import options_of
from gpumagic.notebook.cell_hooks import Mode, running_cell
from gpumagic.notebook.cells import RepeatableCell, own_part
from gpumagic.notebook.magics import show_text
from gpumagic.report.places import Code

if TYPE_CHECKING:
    import argparse

    from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
    from gpumagic.cuda_sync_time.answer_repeat import RepeatedReport
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics

_WORDS = ("on", "off")
# An expression, and behind it nothing but what looks like options with their values.
_OPTIONS_LAST = re.compile(r"(.*?[\w)\]])\s+((--?[a-z][\w-]*)(?:[\s=]+[\w./-]+)*)")


class _Asked(NamedTuple):
    """One line: its options, and the same as parsed and as typed, with its code."""

    options: Options
    parsed: argparse.Namespace
    typed: str
    body: str


class Notebook:
    """The named codes and the instruments of one notebook."""

    def __init__(self, magics: GpuMagics) -> None:
        session = magics.session
        self.kept: dict[str, Candidate] = {}  # by the names that `--vs` knows
        self._magics = magics
        self._shell = magics.shell
        self._instruments = Instruments(lambda: session.driver)
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "cuda_sync_time",
            lambda: OneRun(self._instruments, draws=False),
            self._tell,
            is_timer=True,
        )

    def stop(self) -> None:
        """Time no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def answer(
        self, parsed: argparse.Namespace, code: str, line: str, cell: str | None
    ) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        code = "" if code.startswith("#") else code
        if cell is None and code in _WORDS:
            return self._switch(on=code == "on")
        if cell is not None and code:
            raise UsageProblem(
                f"%%cuda_sync_time times the lines below; {code} stands beside it",
                "write it below, or in a cell of its own before",
            )
        body = code if cell is None else cell
        options = Options.of(parsed, typed="%" if cell is None else "%%")
        asked = _Asked(options, parsed, f"{options.magic} {line}", body)
        lines = (each.strip() for each in body.splitlines())
        if cell is None:
            self._check(code)
        elif all(not each or each.startswith("#") for each in lines):
            # It runs, as without the magic, and is told to be no code.
            if not parsed.quiet:
                show_text(f"Nothing to time: there is no code below {options.magic}")
            return None
        if parsed.live:
            self._magics.show_live(keeps=False)
        if options.repeats:
            return self._repeat(asked)
        return self._run_once(asked)

    def _check(self, code: str) -> None:
        """Say what is wrong with an expression, or was meant to be no expression."""
        if not code:
            raise UsageProblem(
                "%cuda_sync_time has no code to time",
                "write an expression behind it: %cuda_sync_time f(x)",
            )
        names = self._shell.user_ns
        behind = _OPTIONS_LAST.fullmatch(code)
        known = options_of(self._magics.cuda_sync_time.parser)
        # Python would read `x - -repeat`.
        if behind and behind[3] in known and behind[3].lstrip("-") not in names:
            raise UsageProblem(
                f"{behind[2]} stands behind {behind[1]}, where it is taken for code",
                f"options come first: %cuda_sync_time {behind[2]} {behind[1]}",
            )
        try:  # IPython would show our frames
            self._shell.compile.ast_parse(self._shell.transform_cell(code))
        except SyntaxError as error:
            raise UsageProblem(
                f"{code} is no Python that could be timed: {error.msg}",
                "write an expression: %cuda_sync_time f(x)",
            ) from None

    # ------------------------------------------------------------------ once

    def _run_once(self, asked: _Asked) -> Any:
        __tracebackhide__ = True
        options = asked.options
        again = self._repeatable(asked) if options.name else None
        code = self._code(asked)
        tools = self._instruments
        run = RaceRun(tools) if options.races else OneRun(tools, options)

        def after(outcome: Outcome) -> Any:
            run.end(
                started_ns=outcome.started_ns,
                ended_ns=outcome.ended_ns,
                error=outcome.error,
            )
            report = run.report(code)
            if outcome.error is None and run.late_error is None:
                self._keep(code, again)
            shown = self._magics.show(report, asked.parsed)
            if outcome.error is None and run.late_error is not None:
                raise run.late_error
            return shown

        return self._magics.run_body(
            asked.typed, asked.body, before=run.begin, after=after
        )

    # -------------------------------------------------------- again and again

    def _repeat(self, asked: _Asked) -> Any:
        __tracebackhide__ = True
        options = asked.options
        base = None if options.versus is None else self._candidate(options.versus)
        again = self._repeatable(asked)
        if again.needs_await:
            raise UsageProblem(
                f"{options.magic}: a body that awaits cannot be repeated",
                "leave --repeat and --vs away: once, it can be timed",
            )
        code = self._code(asked)
        report = self._measured(asked, Candidate(code, again), base)
        self._keep(code, again)
        return self._magics.show(report, asked.parsed)

    def _measured(
        self, asked: _Asked, newer: Candidate, base: Candidate | None
    ) -> RepeatedReport | ComparisonReport:
        """The report, or the code's own error with the code's own traceback."""
        __tracebackhide__ = True
        error, instruments, options = None, self._instruments, asked.options
        waiting = self._magics.progress(None, "Measuring", quiet=asked.parsed.quiet)
        try:
            with waiting as steps:
                if base is None:
                    return bench.repeat(instruments, newer, options, steps.reach)
                return bench.compare(instruments, base, newer, options, steps.reach)
        except BaseException as raised:  # noqa: BLE001 -- it goes on at once
            error = raised
        for candidate in (newer, *((base,) if base is not None else ())):
            error = own_part(candidate.body, error)
        raise error

    # --------------------------------------------------------- codes and words

    def _repeatable(self, asked: _Asked) -> RepeatableCell:
        return RepeatableCell(self._shell, asked.body, magic_line=asked.typed)

    def _code(self, asked: _Asked) -> Code:
        name = asked.options.name
        return Code(asked.body.strip("\n"), name, running_cell(self._shell))

    def _keep(self, code: Code, again: RepeatableCell | None) -> None:
        if code.name is not None and again is not None:
            self.kept[code.name] = Candidate(code, again)

    def _candidate(self, name: str) -> Candidate:
        if name in self.kept:
            return self.kept[name]
        known = ", ".join(self.kept)
        if not known:
            raise UsageProblem(
                f"--vs {name}: no code has been kept under a name yet",
                f"put %%cuda_sync_time --name {name} on the cell to compare with",
            )
        raise UsageProblem(
            f"--vs {name}: there is no code of that name; kept are {known}",
            did_you_mean(name, self.kept) or f"type --vs {next(iter(self.kept))}",
        )

    # ------------------------------------------------------------ every cell

    def _switch(self, *, on: bool) -> None:
        if on:
            self._every_cell.switch_on(self._mode)
            show_text("Every cell is timed from now on; %cuda_sync_time off ends that")
        else:
            self._every_cell.switch_off(self._mode)
            show_text("Cells are no longer timed by themselves")

    def _tell(self, run: OneRun, code: Code) -> None:
        display(BriefReport(run.report(code)))
