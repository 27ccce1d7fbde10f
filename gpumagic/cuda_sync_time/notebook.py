"""What the magic keeps of one notebook, and what its words come to."""

from __future__ import annotations

import builtins
import dataclasses
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.display import display

from gpumagic.cuda_sync_time.bench import Bench, Candidate
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.log import new_log
from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.report import BriefReport
from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook.arguments import options_of
from gpumagic.notebook.cell_hooks import Mode, running_cell
from gpumagic.notebook.cells import RepeatableCell, own_part
from gpumagic.notebook.magics import show_text
from gpumagic.report.places import Code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.log import Timed
    from gpumagic.cuda_sync_time.report import LogReport
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics

_WORDS = ("on", "off", "log")
_LOG = re.compile(r"log(?:\s+(\S+\.\w+))?")
_OPTIONS_BEHIND = re.compile(r"(log|on|off)\s+(--?[a-zA-Z].*)")
# An expression, and behind it nothing but what looks like options with their values.
_OPTIONS_LAST = re.compile(r"(.*?[\w)\]])\s+((--?[a-z][\w-]*)(?:[\s=]+[\w./-]+)*)")


class _Asked(NamedTuple):
    """One line: its options, and the same as parsed and as typed, with its code."""

    options: Options
    parsed: argparse.Namespace
    typed: str
    body: str


class Notebook:
    """The log, the named codes and the instruments of one notebook.

    Args:
        magics: Through which reports are shown and bodies run.
    """

    def __init__(self, magics: GpuMagics) -> None:
        session = magics.session
        self._magics = magics
        self._shell = magics.shell
        self._log = new_log()
        self._instruments = Instruments(lambda: session.driver)
        self._bench = Bench(self._instruments)
        self._named: dict[str, Candidate] = {}
        self._every_cell = session.every_cell(self._shell)
        self._mode = Mode(
            "cuda_sync_time",
            lambda: OneRun(self._instruments, draws=False),
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
        self, parsed: argparse.Namespace, code: str, line: str, cell: str | None
    ) -> Any:
        """Do what one line asks for."""
        __tracebackhide__ = True
        code = "" if code.startswith("#") else code
        if cell is None and code in ("on", "off"):
            return self._switch(on=code == "on")
        if cell is None and (said := _LOG.fullmatch(code)):
            return self._magics.show(self._log_report(said[1]), parsed)
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
        options = Options.of(parsed, typed="%" if cell is None else "%%")
        asked = _Asked(options, parsed, f"{options.magic} {line}", body)
        if not _has_code(body):
            return self._nothing_to_time(asked, cell)
        if cell is None:
            self._check_word(code)
            self._check_order(code)
            self._check_syntax(code)
        if parsed.live:
            self._magics.show_live(keeps=False)
        if options.repeating:
            return self._repeat(asked)
        return self._look_for_races(asked) if options.races else self._run_once(asked)

    def _check_word(self, code: str) -> None:
        """Say which word was meant by a name that nothing has."""
        is_known = code in self._shell.user_ns or hasattr(builtins, code)
        if not code.isidentifier() or is_known:
            return
        if hint := did_you_mean(code, _WORDS):
            raise UsageProblem(
                f"{code} is neither a word of %cuda_sync_time nor a name", hint
            )

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

    def _nothing_to_time(self, asked: _Asked, cell: str | None) -> None:
        """A cell of comments runs, as without the magic, and is told to be one."""
        if cell is None:
            raise UsageProblem(
                "%cuda_sync_time has no code to time",
                "write an expression behind it: %cuda_sync_time f(x)",
            )
        self._set_up(asked.options)
        if not asked.parsed.quiet:
            magic = asked.options.magic
            show_text(f"Nothing to time: there is no code below {magic}")

    # ------------------------------------------------------------------ once

    def _run_once(self, asked: _Asked) -> Any:
        __tracebackhide__ = True
        options = asked.options
        again = self._repeatable(asked) if options.runs_again else None
        self._set_up(options)
        run = OneRun(self._instruments, options)
        code = self._code(asked)

        def after(outcome: Outcome) -> Any:
            run.end(
                started_ns=outcome.started_ns,
                ended_ns=outcome.ended_ns,
                error=outcome.error,
            )
            report = run.report(code)
            if outcome.error is None and run.late_error is None:
                report = self._bench.with_roofline(report, again, options)
                self._keep(code, again)
            self._log.add(report)
            shown = self._magics.show(report, asked.parsed)
            if outcome.error is None and run.late_error is not None:
                raise run.late_error
            return shown

        return self._magics.run_body(
            asked.typed, asked.body, before=run.begin, after=after
        )

    def _look_for_races(self, asked: _Asked) -> Any:
        __tracebackhide__ = True
        self._set_up(asked.options)
        run = RaceRun(self._instruments)
        code = self._code(asked)

        def after(outcome: Outcome) -> Any:
            run.end(error=outcome.error)
            return self._magics.show(run.report(code), asked.parsed)

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
                "leave --repeat and what goes with it away: once, it can be timed",
            )
        options = dataclasses.replace(options, before=self._before(asked))
        self._set_up(options)
        code = self._code(asked)
        report = self._measured(
            options, Candidate(code, again), base, quiet=asked.parsed.quiet
        )
        self._keep(code, again)
        self._log.add(report)
        return self._magics.show(report, asked.parsed)

    def _measured(
        self, options: Options, newer: Candidate, base: Candidate | None, *, quiet: bool
    ) -> Timed:
        """The report, or the code's own error with the code's own traceback."""
        __tracebackhide__ = True
        error = None
        waiting = self._magics.progress(None, "Measuring", quiet=quiet)
        try:
            with waiting as measured:
                if base is not None:
                    return self._bench.compare(base, newer, options, measured.reach)
                report = self._bench.repeat(newer, options, measured.reach)
        except BaseException as raised:  # noqa: BLE001 -- it goes on at once
            error = raised
        if error is not None:
            for candidate in (newer, *((base,) if base is not None else ())):
                error = own_part(candidate.body, error)
            raise error
        return self._bench.with_roofline(report, newer.body, options)

    # --------------------------------------------------------- codes and words

    def _repeatable(self, asked: _Asked) -> RepeatableCell:
        return RepeatableCell(self._shell, asked.body, magic_line=asked.typed)

    def _set_up(self, options: Options) -> None:
        """Run what is to be run first, untimed."""
        __tracebackhide__ = True
        if options.setup:
            RepeatableCell(self._shell, options.setup)()

    def _before(self, asked: _Asked) -> Callable[[], object] | None:
        code = asked.options.before_code
        if not code:
            return None
        return RepeatableCell(self._shell, code, magic_line=asked.typed)

    def _code(self, asked: _Asked) -> Code:
        name = asked.options.name
        return Code(asked.body.strip("\n"), name, running_cell(self._shell))

    def _keep(self, code: Code, again: RepeatableCell | None) -> None:
        if code.name is not None and again is not None:
            self._named[code.name] = Candidate(code, again)

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
