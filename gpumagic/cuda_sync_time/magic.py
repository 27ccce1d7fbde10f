"""`%%cuda_sync_time` runs a cell and says how long it really took on the GPU."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.display import display

from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.magics import (
    GpuMagics,
    gpu_magic,
    output_options,
    show_text,
    typed_name,
)

if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

    from gpumagic.cuda_sync_time.bench import Candidate
    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.one_run import OneRun
    from gpumagic.cuda_sync_time.records import Options
    from gpumagic.notebook.cell_hooks import Mode
    from gpumagic.notebook.cells import Outcome
    from gpumagic.report.places import Code
    from gpumagic.report.record import Report


_HOW = r"(?:latency|throughput|\d+|\d+(?:\.\d+)?(?:ms|s|min|m|h))"
# An expression, and behind it nothing but what looks like options with their values.
_OPTIONS_LAST = re.compile(r"(.*?[\w)\]])\s+((--?[a-z][\w-]*)(?:[\s=]+[\w./-]+)*)")
_TIMING = "Every cell is timed from now on; %cuda_sync_time off ends that"


def kept_names(magics: TimeMagics, _: str) -> list[str]:
    """The names under which the notebook has kept code."""
    return list(magics.kept)


@magics_class
class TimeMagics(GpuMagics):
    """The magic of this room, with what the notebook has timed so far."""

    def install(self, undo: ExitStack) -> None:
        """Time no more cells after an unload."""
        undo.callback(self._close)

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%%cuda_sync_time": "how long did the cell below take?",
            "%cuda_sync_time --repeat f(x)": "the median of many runs of f(x)",
            "%%cuda_sync_time --syncs": "which lines make the host wait?",
        }
    )
    @argument(
        "--repeat",
        nargs="?",
        const="",
        takes=rf"{_HOW}(?:,{_HOW})*",
        metavar="HOW",
        offers=("latency", "throughput"),
        help="Run again and again, with statistics: 100 samples, about 5s (1s), "
        "latency (wait after each call), throughput (once after many), or latency,5s.",
    )
    @argument(
        "--syncs", action="store_true", help="List what made the host wait, by line."
    )
    @argument(
        "--profile", action="store_true", help="Draw what ran when; busy and idle."
    )
    @argument(
        "--trace",
        more=True,
        metavar="FILE",
        help="Profile, and save the trace for Perfetto or chrome://tracing.",
    )
    @argument(
        "--lines",
        action="store_true",
        help="Time each line: the host's part, and what it launched on the GPU.",
    )
    @argument(
        "--races",
        action="store_true",
        help="Look for missing waits between streams; claims no time.",
    )
    @argument("--live", action="store_true", help="Draw a panel while the cell runs.")
    @argument(
        "--name",
        metavar="NAME",
        offers=kept_names,
        help="Keep this code as NAME, for --vs.",
    )
    @argument(
        "--vs",
        metavar="NAME",
        offers=kept_names,
        help="Compare with the code kept as NAME, in turn.",
    )
    @argument(
        "code", nargs="?", metavar="CODE", help="In line form: the expression to time."
    )
    @word("on", "Time every cell from now on.")
    @word("off", "Stop that.")
    @output_options
    def cuda_sync_time(self, line: str, cell: str | None = None) -> Any:
        """Say how long a cell really took: from all devices idle to all idle again.

        The cell runs exactly as without this line, once, and its value is shown as
        ever. In line form an expression stands behind the options, or one of the
        words.
        """
        __tracebackhide__ = True
        from gpumagic.cuda_sync_time.one_run import OneRun, RaceRun
        from gpumagic.cuda_sync_time.records import Options
        from gpumagic.notebook import cells
        from gpumagic.notebook.cell_hooks import running_cell
        from gpumagic.report.places import Code

        method = self.cuda_sync_time
        magic = typed_name(method, cell)
        typed, beside = arguments.split_code(method.parser, magic, line)
        beside = beside.removesuffix(";")
        if cell is None and beside in ("on", "off"):
            return self._switch(on=beside == "on")
        options = Options.of(typed, magic=magic)
        body = self._body(beside, cell)
        if not body:
            # It runs, as without the magic, and is told to be no code.
            if not typed.quiet:
                show_text(f"Nothing to time: there is no code below {magic}")
            return None
        if typed.live:
            self.show_live(keeps=False)
        code = Code(body.strip("\n"), options.name, running_cell(self.shell))
        magic_line = f"{magic} {line}"
        if options.repeats:
            newer = self._repeatable(code, body, magic_line)
            return self._repeat(newer, options, typed)
        named = {}
        if options.name:
            named[options.name] = self._repeatable(code, body, magic_line)
        tools = self._instruments
        run = RaceRun(tools) if options.races else OneRun(tools, options)

        def after(outcome: Outcome) -> Any:
            run.end(
                started_ns=outcome.started_ns,
                ended_ns=outcome.ended_ns,
                error=outcome.error,
            )
            report = run.report(code)
            shown = self.show(report, typed)
            if run.late_error:
                raise run.late_error
            if not report.failed:
                self.kept.update(named)
            return shown

        return cells.run(
            self.shell, body, magic_line=magic_line, before=run.begin, after=after
        )

    @cached_property
    def kept(self) -> dict[str, Candidate]:
        """The codes that `--vs` knows, by their names."""
        return {}

    @cached_property
    def _instruments(self) -> Instruments:
        from gpumagic.cuda_sync_time.instruments import Instruments

        return Instruments(lambda: self.session.driver)

    @cached_property
    def _every_cell(self) -> Mode:
        from gpumagic.cuda_sync_time.one_run import OneRun
        from gpumagic.notebook.cell_hooks import Mode

        return Mode(
            "cuda_sync_time",
            lambda: OneRun(self._instruments, draws=False),
            _tell,
            is_timer=True,
        )

    def _switch(self, *, on: bool) -> None:
        """Time every cell from now on, or no longer."""
        cells = self.session.every_cell(self.shell)
        (cells.switch_on if on else cells.switch_off)(self._every_cell)
        show_text(_TIMING if on else "Cells are no longer timed by themselves")

    def _close(self) -> None:
        if "_every_cell" in vars(self):
            self.session.every_cell(self.shell).switch_off(self._every_cell)

    def _body(self, beside: str, cell: str | None) -> str:
        """The code to time, empty where a cell has none; what is wrong is refused."""
        if beside.startswith("#"):
            beside = ""
        if cell is None:
            self._check(beside)
            return beside
        if beside:
            raise UsageProblem(
                f"%%cuda_sync_time times the lines below; {beside} stands beside it",
                "write it below, or in a cell of its own before",
            )
        lines = (each.strip() for each in cell.splitlines())
        if all(not each or each.startswith("#") for each in lines):
            return ""
        return cell

    def _check(self, code: str) -> None:
        """Say what is wrong with an expression, or was meant to be no expression."""
        if not code:
            raise UsageProblem(
                "%cuda_sync_time has no code to time",
                "write an expression behind it: %cuda_sync_time f(x)",
            )
        behind = _OPTIONS_LAST.fullmatch(code)
        known = arguments.options_of(self.cuda_sync_time.parser)
        # Python would read `x - -repeat`.
        is_name = behind and behind[3].lstrip("-") in self.shell.user_ns
        if behind and behind[3] in known and not is_name:
            raise UsageProblem(
                f"{behind[2]} stands behind {behind[1]}, where it is taken for code",
                f"options come first: %cuda_sync_time {behind[2]} {behind[1]}",
            )
        try:  # IPython would show our frames
            self.shell.compile.ast_parse(self.shell.transform_cell(code))
        except SyntaxError as error:
            raise UsageProblem(
                f"{code} is no Python that could be timed: {error.msg}",
                "write an expression: %cuda_sync_time f(x)",
            ) from None

    def _repeatable(self, code: Code, body: str, magic_line: str) -> Candidate:
        """The code, ready to be run again and again."""
        from gpumagic.cuda_sync_time.bench import Candidate
        from gpumagic.notebook.cells import RepeatableCell

        return Candidate(code, RepeatableCell(self.shell, body, magic_line=magic_line))

    def _repeat(
        self, newer: Candidate, options: Options, typed: argparse.Namespace
    ) -> Any:
        """Run a code many times, alone or in turn with another one."""
        __tracebackhide__ = True
        from gpumagic.cuda_sync_time import bench
        from gpumagic.notebook.cells import own_part

        base, tools = newer, self._instruments
        if options.versus:
            base = self._kept_as(options.versus)
        for each in (base, newer):
            if getattr(each.body, "needs_await", False):
                raise UsageProblem(
                    f"{each.code.title}: code that awaits cannot be repeated",
                    "leave --repeat and --vs away: once, it can be timed",
                )
        report: Report
        try:
            with self.progress(None, "Measuring", quiet=typed.quiet) as steps:
                if options.versus:
                    report = bench.compare(tools, base, newer, options, steps.reach)
                else:
                    report = bench.repeat(tools, newer, options, steps.reach)
        except BaseException as raised:  # noqa: BLE001 -- it goes on at once
            error = own_part(newer.body, own_part(base.body, raised))
        else:
            if options.name:
                self.kept[options.name] = newer
            return self.show(report, typed)
        raise error

    def _kept_as(self, name: str) -> Candidate:
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


def _tell(run: OneRun, code: Code) -> None:
    from gpumagic.cuda_sync_time.answer_run import BriefReport

    display(BriefReport(run.report(code)))
