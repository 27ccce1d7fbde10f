"""Does what a line of the magic asks: reads options, finds names, stores loaders."""

from __future__ import annotations

import keyword
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
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

_OURS = str(Path(__file__).resolve().parents[1])


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
            raise self._which()
        try:
            report = self._report(options_of(line), line.step, quiet=line.quiet)
        except KeyboardInterrupt as stopped:
            raise without_our_frames(stopped) from None
        return self._magics.show(report, line)

    # ------------------------------------------------------------------ a loader

    def _report(
        self, options: Options, step: str | None, *, quiet: bool
    ) -> LoaderReport:
        loader, out = self._found(str(options.name)), options.out
        if step is not None:
            options = replace(options, step=self._function(step))
        if out is not None:
            self._require_free(out)
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
            raise UsageProblem(
                f"there is no {first} in this notebook",
                near or f"{self._or_make_one()}; names within a function are not seen",
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
        if name.partition(".")[0] not in self._names:
            raise UsageProblem(
                f"--step {name}: there is no such name in this notebook",
                did_you_mean(name, self._names) or "define it first: def step(batch):",
            )
        function = self._found(name)
        if callable(function):
            return function
        raise UsageProblem(
            f"--step {name}: this is {_kind_of(function)}, no function",
            "name a function that takes a batch: --step train_step",
        )

    def _require_free(self, out: str) -> None:
        there = self._names.get(out)
        if there is not None and not is_truly(there, DevicePrefetcher):
            raise UsageProblem(
                f"{out} is the name of {_kind_of(there)} already",
                f"give that another name first: my_loader = {out}",
            )

    def _which(self) -> UsageProblem:
        return UsageProblem(
            "%pin_loader needs the name of a DataLoader",
            self._known() or "make one first, as in train_dl = DataLoader(dataset)",
        )

    def _known(self) -> str:
        """What to type, by the loaders that there are."""
        names = self._loaders()
        return " or ".join(f"%pin_loader {name}" for name in names[:3])

    def _loaders(self) -> list[str]:
        return [
            name
            for name, value in self._names.items()
            if not name.startswith("_") and type(value).__name__.endswith("Loader")
        ]

    def _or_make_one(self) -> str:
        return self._known() or "make a DataLoader first, then name it here"

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
        if line.name is not None:
            self._found(line.name)
        run = WatchRun(runtime_now, lambda: self._names, only=line.name)
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
    if not all(map(_is_name, line.name.split("."))):
        raise UsageProblem(
            f"%pin_loader needs a name, and {line.name} is an expression",
            f"give it a new one first: my_loader = {line.name}",
        )
    options = Options(
        name=line.name,
        out=_out(line),
        device=_device(line.device),
        workers=_workers(line.workers),
        budget_s=parse_seconds(line.budget),
        diagnose=line.diagnose,
        force=line.force,
    )
    _check(options)
    return options


def _check(options: Options) -> None:
    if options.budget_s <= 0:
        raise _problem("a budget of no time measures nothing", "--budget 10s")


def watch_only(line: argparse.Namespace) -> None:
    """Refuse the options that have no meaning in front of a cell."""
    for option, said in (
        ("--workers", line.workers is not None),
        ("--step", line.step is not None),
        ("--diagnose", line.diagnose),
        ("--force", line.force),
    ):
        if said:
            raise UsageProblem(
                f"%%pin_loader --watch only watches the cell, without {option}",
                f"{option} belongs to %pin_loader NAME, in a cell of its own",
            )


def _is_name(text: str) -> bool:
    """Whether something can be assigned to it."""
    return text.isidentifier() and not keyword.iskeyword(text)


def _out(line: argparse.Namespace) -> str | None:
    if line.diagnose:
        return None
    return f"{line.name.replace('.', '_')}_pinned"


def _device(text: str | None) -> str | None:
    return f"cuda:{text}" if text is not None and text.isdecimal() else text


def _workers(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise _problem(
            f"--workers {text} is no number of workers", "--workers auto, or 4"
        )
    return int(text)


def _problem(problem: str, example: str) -> UsageProblem:
    return UsageProblem(f"%pin_loader: {problem}", f"say {example}")


# --------------------------------------------------------- the user's objects


def _kind_of(thing: object) -> str:
    return with_article(class_name(thing))


def without_our_frames(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """The error with torch's frames and the user's; ours say nothing to anybody."""
    links, link = [], error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    kept: TracebackType | None = None
    for each in reversed(links):
        code = each.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):
            line = each.tb_lineno or code.co_firstlineno  # a jump may have none
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, line)
    return error.with_traceback(kept)
