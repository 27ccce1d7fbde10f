"""`%pin_loader` finds out whether a DataLoader keeps the GPU busy, and mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.errors import UsageProblem, did_you_mean
from gpumagic.notebook.arguments import argument, examples
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    import argparse

    from gpumagic.notebook.cells import Outcome
    from gpumagic.pin_loader.answer_loader import LoaderReport


_CALLED = ("Loader", "Prefetcher")


def loaders(magics: LoaderMagics, _: str) -> list[str]:
    """The names of what iterates and is called a loader; no code of theirs runs."""
    return [
        name
        for name, value in list(magics.shell.user_ns.items())
        if any("__iter__" in vars(each) for each in type(value).__mro__)
        and any(each.__name__.endswith(_CALLED) for each in type(value).__mro__)
    ]


def functions(magics: LoaderMagics, _: str) -> list[str]:
    """The names of what can be called, classes apart."""
    names = list(magics.shell.user_ns.items())
    hidden = magics.shell.user_ns_hidden
    return [
        name
        for name, value in names
        if name not in hidden and callable(value) and type(value) is not type
    ]


@magics_class
class LoaderMagics(GpuMagics):
    """The magic of this room."""

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%pin_loader train_dl": "does it feed the GPU fast enough?",
            "%pin_loader train_dl --workers auto": "with as many workers as pay",
            "%%pin_loader --watch": "which lines wait for data?",
        }
    )
    @argument("name", nargs="?", metavar="NAME", offers=loaders, help="The DataLoader.")
    @argument(
        "--device",
        more=True,
        metavar="DEVICE",
        help="Where batches go (the current one).",
    )
    @argument(
        "--workers",
        metavar="N",
        offers=("auto",),
        help="So many worker processes; auto takes as many as pay.",
    )
    @argument(
        "--step",
        metavar="NAME",
        offers=functions,
        help="The function that your loop calls with a batch; it is really called.",
    )
    @argument(
        "--budget",
        more=True,
        default="10s",
        metavar="TIME",
        help="About so long (10s): longer where batches are large, or load slowly, "
        "since each part is done once at least.",
    )
    @argument("--diagnose", action="store_true", help="Look and predict, no more.")
    @argument(
        "--force",
        more=True,
        action="store_true",
        help="Go on where it is refused or not worth it.",
    )
    @argument(
        "--watch",
        action="store_true",
        help="In front of a training cell: its copies and its waits for data, by line.",
    )
    @output_options
    def pin_loader(self, line: str, cell: str | None = None) -> Any:
        """Find out whether a DataLoader feeds the GPU as fast as it can; mend it.

        Looks at a real batch, measures each part, loading with fewer and more workers
        too, and says what can be gained at most. Where that is worth it, NAME_pinned is
        made: the same batches, pinned, copied ahead, on the device. It is compared with
        the old one in value and in time. NAME itself stays as it is, and so do random
        numbers and samplers.

        The next batch is fetched before the one at hand is given out: a first batch
        comes after two loads, and without workers random transforms of the dataset
        draw before your step does. CUDA graphs want fixed addresses: copy into them.
        """
        __tracebackhide__ = True
        options = self.read(self.pin_loader, line, cell)
        if cell is not None:
            typed = typed_name(self.pin_loader, cell)
            return self._watch(options, f"{typed} {line}", cell)
        if options.watch:
            raise UsageProblem(
                "%pin_loader --watch needs a training cell below it",
                "write %%pin_loader --watch in the first line of that cell",
            )
        if not options.name:
            known = [f"%pin_loader {name}" for name in loaders(self, "")[:3]]
            raise UsageProblem(
                "%pin_loader needs the name of a DataLoader",
                " or ".join(known) or "make one: train_dl = DataLoader(dataset)",
            )
        try:
            report = self._report(options)
        except KeyboardInterrupt as stopped:  # where we were then tells nobody anything
            raise stopped.with_traceback(None) from None
        return self.show(report, options)

    def _report(self, line: argparse.Namespace) -> LoaderReport:
        """Look at a loader; make another where that pays, and put it in its name."""
        from gpumagic.pin_loader.prefetcher import DevicePrefetcher
        from gpumagic.pin_loader.stages import Options, investigate
        from gpumagic.report.introspection import class_name, is_truly

        asked = settings_of(line)
        loader, out, names = self._found(line.name), asked["out"], self.shell.user_ns
        if line.step:
            asked["step"] = self._found(line.step)
            if not callable(asked["step"]):
                raise UsageProblem(f"--step {line.step}: this is no function", _NO_STEP)
        if out in names and not is_truly(names[out], DevicePrefetcher):
            kind = class_name(names[out])
            raise UsageProblem(
                f"{out} is the name of something else already: of class {kind}",
                f"give that another name first: my_loader = {out}",
            )
        label = f"Measuring {line.name}"
        with self.progress(None, label, quiet=line.quiet) as bar:
            made = investigate(loader, Options(**asked), bar.reach)
        if made.report.out:
            names[out] = made.loader
        return made.report

    def _found(self, name: str) -> Any:
        """What the notebook calls so."""
        names = self.shell.user_ns
        if name not in names:
            near = did_you_mean(name, loaders(self, "") or names)
            hint = "define it first; names within a function are not seen"
            raise UsageProblem(f"there is no {name} in this notebook", near or hint)
        return names[name]

    def _watch(self, line: argparse.Namespace, typed: str, cell: str) -> Any:
        """Run the cell, and say what it waited for and copied."""
        __tracebackhide__ = True
        from gpumagic.devices.opening import runtime_now
        from gpumagic.pin_loader.watch_cell import WatchRun

        if not line.watch or any(getattr(line, option) for option in _NOT_WATCHING):
            raise UsageProblem(
                "%%pin_loader with a cell only watches, and takes no other option",
                "type %%pin_loader --watch; %pin_loader NAME is for a cell of its own",
            )
        run = WatchRun(runtime_now, lambda: self.shell.user_ns)

        def after(outcome: Outcome) -> Any:
            run.end(error=outcome.error)
            shown = self.show(run.report(), line)
            if outcome.error is None and run.late_error is not None:
                raise run.late_error
            return shown

        return self.run_body(typed, cell, before=run.begin, after=after)


_NOT_WATCHING = ("name", "workers", "step", "diagnose", "force")
_NO_STEP = "name a function that takes a batch, defined before: --step train_step"


def settings_of(line: argparse.Namespace) -> dict[str, Any]:
    """Read and check the options of a line with a name, but for its step."""
    from gpumagic.report.units import parse_seconds

    name, workers = line.name, line.workers
    if not name.isidentifier():
        raise UsageProblem(
            f"%pin_loader needs a name, and {name} is an expression",
            f"give it a new one first: my_loader = {name}",
        )
    if workers not in (None, "auto") and not workers.isdecimal():
        raise UsageProblem(
            f"%pin_loader: --workers {workers} is no number of workers",
            "say --workers auto, or 4",
        )
    budget_s = parse_seconds(line.budget)
    if budget_s <= 0:
        raise UsageProblem(
            "%pin_loader: a budget of no time measures nothing", "say --budget 10s"
        )
    found = {
        "name": name,
        "device": _number_or_word(line.device),
        "budget_s": budget_s,
        "diagnose": line.diagnose,
        "out": "",
    }
    if line.diagnose:
        return found
    return found | {
        "out": f"{name}_pinned",
        "workers": _number_or_word(workers),
        "force": line.force,
    }


def _number_or_word(word: str | None) -> int | str | None:
    return int(word) if word and word.isdecimal() else word
