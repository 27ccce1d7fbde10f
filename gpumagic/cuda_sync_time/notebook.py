"""What the magic keeps of one notebook, and what its words come to."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from IPython.display import display

from gpumagic.cuda_sync_time.bench import Bench, Candidate
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.log import Log
from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
from gpumagic.cuda_sync_time.options import Request
from gpumagic.cuda_sync_time.report import BriefReport
from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook.arguments import options_of
from gpumagic.notebook.cell_hooks import Mode, running_cell
from gpumagic.notebook.cells import RepeatableCell, own_part
from gpumagic.notebook.magics import show_text
from gpumagic.report.events import Code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.log import Timed
    from gpumagic.cuda_sync_time.report import LogReport
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics

_LOG = re.compile(r"log(?:\s+(\S+\.\w+))?")
_OPTIONS_BEHIND = re.compile(r"(log|on|off)\s+(--?[a-zA-Z].*)")
# An expression, and behind it nothing but what looks like options with their values.
_OPTIONS_LAST = re.compile(r"(.*?[\w)\]])\s+((--?[a-z][\w-]*)(?:[\s=]+[\w./-]+)*)")
_SHOWS_PROGRESS_S = 2.0  # nobody needs to be told how far a second has come


class Notebook:
    """The log, the named codes and the instruments of one notebook.

    Args:
        magics: Through which reports are shown and bodies run.
    """

    def __init__(self, magics: GpuMagics) -> None:
        session = magics.session
        self._magics = magics
        self._shell = magics.shell
        self._log = Log()
        self._instruments = Instruments(lambda: session.driver)
        self._bench = Bench(self._instruments)
        self._named: dict[str, Candidate] = {}
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "cuda_sync_time",
            lambda: OneRun(self._instruments),
            self._tell,
            is_timer=True,
        )

    @property
    def kept_names(self) -> list[str]:
        """What `--vs` can compare with."""
        return list(self._named)

    def stop(self) -> None:
        """Time no more cells by itself."""
        self._every_cell.switch_off(self._mode)

    def answer(
        self, options: argparse.Namespace, code: str, line: str, cell: str | None
    ) -> Any:
        """Do what one line asks for.

        Args:
            options: The options in front.

            code: What stands behind them.

            line: Both, as typed.

            cell: The body; None in line form.
        """
        __tracebackhide__ = True
        code = "" if code.startswith("#") else code
        if cell is None and code in ("on", "off"):
            return self._switch(on=code == "on")
        if cell is None and (said := _LOG.fullmatch(code)):
            return self._magics.show(self._log_report(said[1]), options)
        behind = _OPTIONS_BEHIND.fullmatch(code) if cell is None else None
        if behind and behind[1] not in self._shell.user_ns:
            word, its_options = behind.groups()
            raise UsageProblem(
                f"{its_options} stands behind {word}, where options are taken for code",
                f"options come first: %cuda_sync_time {its_options} {word}",
            )
        if cell is not None and code:
            raise UsageProblem(
                f"%%cuda_sync_time times the lines below; {code} stands beside it",
                f"write it below, or --setup {code!r} to have it run first, untimed",
            )
        body = code if cell is None else cell
        request = Request.of(options, typed="%" if cell is None else "%%")
        typed = f"{request.magic} {line}"
        if not _has_code(body):
            return self._nothing_to_time(request, cell, options)
        if cell is None:
            self._check_order(code)
            self._check_syntax(code)
        if request.repeats:
            return self._repeat(request, body, typed, options)
        if request.races:
            return self._look_for_races(request, body, typed, options)
        return self._run_once(request, body, typed, options)

    def _check_order(self, code: str) -> None:
        """Say that options come first, where Python would read `x - -repeat`."""
        known = options_of(self._magics.cuda_sync_time.parser)
        if not (found := _OPTIONS_LAST.fullmatch(code)):
            return
        expression, behind, option = found.groups()
        name = option.lstrip("-").replace("-", "_")
        if option in known and name not in self._shell.user_ns:
            raise UsageProblem(
                f"{behind} stands behind the expression, where it is taken for code",
                f"options come first: %cuda_sync_time {behind} {expression}",
            )

    def _check_syntax(self, code: str) -> None:
        """Say what is wrong with an expression; IPython would show our frames."""
        try:
            self._shell.compile.ast_parse(self._shell.transform_cell(code))
        except SyntaxError as error:
            raise UsageProblem(
                f"{code} is no Python that could be timed: {error.msg}",
                "write an expression: %cuda_sync_time f(x)",
            ) from None

    def _nothing_to_time(
        self, request: Request, cell: str | None, options: argparse.Namespace
    ) -> None:
        """A cell of comments runs, as without the magic, and is told to be one."""
        if cell is None:
            raise UsageProblem(
                "%cuda_sync_time has no code to time",
                "write an expression behind it: %cuda_sync_time f(x)",
            )
        self._set_up(request)
        if not options.quiet:
            show_text(f"Nothing to time: there is no code below {request.magic}")

    # ------------------------------------------------------------------ once

    def _run_once(
        self, request: Request, body: str, typed: str, options: argparse.Namespace
    ) -> Any:
        __tracebackhide__ = True
        again = self._repeatable(body, typed) if request.runs_again else None
        self._set_up(request)
        run = OneRun(
            self._instruments,
            syncs=request.syncs,
            profile=request.profile,
            trace_file=request.trace_file,
        )
        code = self._code(request, body)

        def after(outcome: Outcome) -> Any:
            run.end(
                started_ns=outcome.started_ns,
                ended_ns=outcome.ended_ns,
                error=outcome.error,
            )
            report = run.report(code)
            if outcome.error is None and run.late_error is None:
                report = self._bench.with_roofline(
                    report, again, flops=request.flops, nbytes=request.nbytes
                )
                self._keep(request, code, again)
            self._log.add(report)
            shown = self._magics.show(report, options)
            if outcome.error is None and run.late_error is not None:
                raise run.late_error
            return shown

        return self._magics.run_body(typed, body, before=run.begin, after=after)

    def _look_for_races(
        self, request: Request, body: str, typed: str, options: argparse.Namespace
    ) -> Any:
        __tracebackhide__ = True
        self._set_up(request)
        run = RaceRun(self._instruments)
        code = self._code(request, body)

        def after(outcome: Outcome) -> Any:
            run.end(error=outcome.error)
            return self._magics.show(run.report(code), options)

        return self._magics.run_body(typed, body, before=run.begin, after=after)

    # -------------------------------------------------------- again and again

    def _repeat(
        self, request: Request, body: str, typed: str, options: argparse.Namespace
    ) -> Any:
        __tracebackhide__ = True
        base = None if request.versus is None else self._candidate(request.versus)
        again = self._repeatable(body, typed)
        if again.needs_await:
            raise UsageProblem(
                f"{request.magic}: a body that awaits cannot be repeated",
                "leave --repeat and what goes with it away: once, it can be timed",
            )
        before = self._before(request, typed)
        self._set_up(request)
        code = self._code(request, body)
        newer = Candidate(code, again)
        report = self._measured(request, newer, base, before, quiet=options.quiet)
        self._keep(request, code, again)
        self._log.add(report)
        return self._magics.show(report, options)

    def _measured(
        self,
        request: Request,
        newer: Candidate,
        base: Candidate | None,
        before: Callable[[], object] | None,
        *,
        quiet: bool,
    ) -> Timed:
        """The report, or the code's own error with the code's own traceback."""
        __tracebackhide__ = True
        plan, error = request.plan(before), None
        shown_after_s = math.inf if quiet else _SHOWS_PROGRESS_S
        waiting = self._magics.progress(None, "Measuring", begins_after_s=shown_after_s)
        try:
            with waiting as measured:
                if base is not None:
                    return self._bench.compare(
                        base, newer, plan, measured.reach, calibrate=request.calibrate
                    )
                report = self._bench.repeat(newer, plan, measured.reach)
        except BaseException as raised:  # noqa: BLE001 -- it goes on at once
            error = raised
        if error is not None:
            for candidate in (newer, *((base,) if base is not None else ())):
                error = own_part(candidate.body, error)
            raise error
        return self._bench.with_roofline(
            report, newer.body, flops=request.flops, nbytes=request.nbytes
        )

    # --------------------------------------------------------- codes and words

    def _repeatable(self, body: str, typed: str) -> RepeatableCell:
        return RepeatableCell(self._shell, body, magic_line=typed)

    def _set_up(self, request: Request) -> None:
        """Run what is to be run first, untimed."""
        __tracebackhide__ = True
        if request.setup:
            RepeatableCell(self._shell, request.setup)()

    def _before(self, request: Request, typed: str) -> Callable[[], object] | None:
        if not request.before:
            return None
        return RepeatableCell(self._shell, request.before, magic_line=typed)

    def _code(self, request: Request, body: str) -> Code:
        return Code(body.strip("\n"), request.name, running_cell(self._shell))

    def _keep(self, request: Request, code: Code, again: RepeatableCell | None) -> None:
        if request.name is not None and again is not None:
            self._named[request.name] = Candidate(code, again)

    def _candidate(self, name: str) -> Candidate:
        if name in self._named:
            return self._named[name]
        known = ", ".join(self._named)
        if not known:
            raise UsageProblem(
                f"--vs {name}: no code has been kept under a name yet",
                f"put %%cuda_sync_time --name {name} on the cell to compare with",
            )
        raise UsageProblem(
            f"--vs {name}: there is no code of that name; kept are {known}",
            did_you_mean(name, self._named) or f"type --vs {next(iter(self._named))}",
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
        report = run.report(code)
        self._log.add(report)
        display(BriefReport(report))

    def _log_report(self, file: str | None) -> LogReport:
        if file is not None:
            self._log.save(file)
        return self._log.report(automatic=self._mode.is_on, saved_as=file)


def _has_code(body: str) -> bool:
    """Whether there is more than blank lines and comments."""
    lines = (line.strip() for line in body.splitlines())
    return any(line and not line.startswith("#") for line in lines)
