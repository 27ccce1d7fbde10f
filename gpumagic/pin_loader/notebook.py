"""Does what a line of the magic asks: reads options, finds names, stores loaders."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from gpumagic.devices.opening import runtime_now
from gpumagic.errors import UsageProblem, did_you_mean, first_line
from gpumagic.notebook.cell_hooks import running_cell
from gpumagic.pin_loader.api import look_or_improve
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.stages import Options
from gpumagic.report.introspection import class_name, is_truly
from gpumagic.report.places import Code
from gpumagic.report.units import parse_seconds, with_article

if TYPE_CHECKING:
    import argparse

    from gpumagic.drawing.progress import Progress
    from gpumagic.notebook.cells import Outcome
    from gpumagic.notebook.magics import GpuMagics
    from gpumagic.pin_loader.answer_loader import LoaderReport


class Notebook:
    """The loaders of one notebook."""

    def __init__(self, magics: GpuMagics) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._names: dict[str, Any] = magics.shell.user_ns

    def answer(self, line: argparse.Namespace, typed: str, cell: str | None) -> Any:
        """Do what one line asks for; `cell` is None in line form."""
        __tracebackhide__ = True
        if cell is not None:
            return self._watch(line, typed, cell)
        if line.watch:
            raise UsageProblem(
                "%pin_loader --watch needs a training cell below it",
                "write %%pin_loader --watch in the first line of that cell",
            )
        if line.name is None:
            raise UsageProblem(
                "%pin_loader needs the name of a DataLoader",
                self._known() or "make one first, as in train_dl = DataLoader(dataset)",
            )
        try:
            report = self._report(options_of(line), line.step, quiet=line.quiet)
        except KeyboardInterrupt as stopped:  # where we were then tells nobody anything
            raise stopped.with_traceback(None) from None
        return self._magics.show(report, line)

    # ------------------------------------------------------------------ a loader

    def _report(
        self, options: Options, step: str | None, *, quiet: bool
    ) -> LoaderReport:
        loader, out = self._found(str(options.name)), options.out
        if step is not None:
            options = replace(options, step=self._function(step))
        there = None if out is None else self._names.get(out)
        if there is not None and not is_truly(there, DevicePrefetcher):
            raise UsageProblem(
                f"{out} is the name of {with_article(class_name(there))} already",
                f"give that another name first: my_loader = {out}",
            )
        with ExitStack() as shown:
            bar: Progress | None = None

            def tell(share: float, note: str) -> None:
                nonlocal bar
                if quiet:
                    return
                if bar is None:  # now it is begun: a wish that is refused never is
                    progress = self._magics.progress(None, f"Measuring {options.name}")
                    bar = shown.enter_context(progress)
                bar.reach(share, note)

            made = look_or_improve(loader, options, tell)
            tell(1.0, "")
        if out is not None and made.loader is not None:
            self._names[out] = made.loader
        return made.report

    def _found(self, name: str) -> Any:
        first, *attributes = name.split(".")
        if first not in self._names:
            near = did_you_mean(first, self._loaders() or self._names)
            make = "make a DataLoader first; names within a function are not seen"
            raise UsageProblem(
                f"there is no {first} in this notebook", near or self._known() or make
            )
        found = self._names[first]
        for attribute in attributes:
            try:
                found = getattr(found, attribute)
            except Exception as error:  # the user's own code, too
                raise UsageProblem(
                    f"{name}: {type(error).__name__}: {first_line(error)}",
                    f"give it a name first: train_dl = {name}",
                ) from error
        return found

    def _function(self, name: str) -> Any:
        hint = "name a function that takes a batch, defined before: --step train_step"
        if name.partition(".")[0] not in self._names:
            near = did_you_mean(name, self._names)
            problem = f"--step {name}: there is no such name in this notebook"
            raise UsageProblem(problem, near or hint)
        function = self._found(name)
        if callable(function):
            return function
        kind = with_article(class_name(function))
        raise UsageProblem(f"--step {name}: this is {kind}, no function", hint)

    def _known(self) -> str:
        """What to type, by the loaders that there are."""
        return " or ".join(f"%pin_loader {name}" for name in self._loaders()[:3])

    def _loaders(self) -> list[str]:
        return [
            name
            for name, value in self._names.items()
            if not name.startswith("_") and type(value).__name__.endswith("Loader")
        ]

    # -------------------------------------------------------------------- a cell

    def _watch(self, line: argparse.Namespace, typed: str, cell: str) -> Any:
        __tracebackhide__ = True
        if not line.watch:
            raise UsageProblem(
                "%%pin_loader with a cell only watches, and wants to be told so",
                "type %%pin_loader --watch",
            )
        from gpumagic.pin_loader.watch_cell import WatchRun

        watch_only(line)
        run = WatchRun(runtime_now, lambda: self._names)
        code = Code(cell.strip("\n"), cell=running_cell(self._shell))

        def after(outcome: Outcome) -> Any:
            run.end(error=outcome.error)
            shown = self._magics.show(run.report(code), line)
            if outcome.error is None and run.late_error is not None:
                raise run.late_error
            return shown

        return self._magics.run_body(typed, cell, before=run.begin, after=after)


# ------------------------------------------------------------------- options


def options_of(line: argparse.Namespace) -> Options:
    """Read and check the options of a line with a name, but for its step."""
    name, workers, device = line.name, line.workers, line.device
    if any(not each.isidentifier() or iskeyword(each) for each in name.split(".")):
        raise UsageProblem(
            f"%pin_loader needs a name, and {name} is an expression",
            f"give it a new one first: my_loader = {name}",
        )
    if workers not in (None, "auto"):
        if not workers.isdecimal():
            raise UsageProblem(
                f"%pin_loader: --workers {workers} is no number of workers",
                "say --workers auto, or 4",
            )
        workers = int(workers)
    budget_s = parse_seconds(line.budget)
    if budget_s <= 0:
        raise UsageProblem(
            "%pin_loader: a budget of no time measures nothing", "say --budget 10s"
        )
    is_number = device is not None and device.isdecimal()
    return Options(
        name=name,
        out=None if line.diagnose else f"{name.replace('.', '_')}_pinned",
        device=f"cuda:{device}" if is_number else device,
        workers=workers,
        budget_s=budget_s,
        diagnose=line.diagnose,
        force=line.force,
    )


def watch_only(line: argparse.Namespace) -> None:
    """Refuse what has no meaning in front of a cell."""
    for option in ("name", "workers", "step", "diagnose", "force"):
        if getattr(line, option):
            raise UsageProblem(
                f"%%pin_loader --watch only watches the cell, and takes no {option}",
                "all loaders are watched; %pin_loader NAME is for a cell of its own",
            )
