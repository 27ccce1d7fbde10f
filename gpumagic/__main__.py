"""`gpumagic`, or `python -m gpumagic`: what the magics do, for a terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic import __version__
from gpumagic.errors import GpuMagicError, MissingPackage, did_you_mean
from gpumagic.gpu_select import command
from gpumagic.notebook.arguments import add_parts, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from gpumagic.report.record import Report

_PATIENCE_S = 300
# What a notebook types, and a terminal for the same.
_TYPED = re.compile(
    r"%gpu_select --simulate(?: (?P<machine>\w+))?|%(?P<shell>ls) |"
    r"%gpu_(?P<magic>doctor words|doctor|open|select)\b(?! --(?:restart|dry))"
)


class _Parser(argparse.ArgumentParser):
    """Complains as our magics do: what is wrong, what to type next."""

    def error(self, message: str) -> NoReturn:
        raise GpuMagicError(f"{self.prog}: {message}", f"type {self.prog} --help")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    try:
        options = _read(sys.argv[1:] if words is None else list(words))
        return int(options.run(options))
    except GpuMagicError as error:
        sys.stderr.write(_in_a_terminal(f"{error}\n"))
        return 2
    except KeyboardInterrupt:
        return 130


def _called() -> str:
    """How this was called: as a command of its own, or as a module."""
    own = Path(sys.argv[0]).stem == "gpumagic"
    return "gpumagic" if own else "python -m gpumagic"


def _in_a_terminal(text: str) -> str:
    """A text with what a terminal types, where it has what a notebook types."""

    def typed(found: re.Match[str]) -> str:
        if found["magic"]:
            return f"{_called()} {found['magic'].rpartition(' ')[2]}"
        if found["shell"]:
            return f"{found['shell']} "
        return f'gpumagic.simulate("{found["machine"] or "h100"}") in Python'

    return _TYPED.sub(typed, text)


def _read(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog=_called(), description=__doc__)
    version = f"gpumagic {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    each = {}
    for name, (run, does) in _COMMANDS.items():
        each[name] = commands.add_parser(name, help=does)
        each[name].set_defaults(run=run, asked=each[name])
        add_parts(each[name])
    command.add_arguments(each["select"])
    for name in ("doctor", "open"):
        each[name].add_argument("--json", action="store_true", help="as JSON")
    each["words"].add_argument("term", nargs="*", help="nothing: all of them")
    option = each["demo"].add_argument
    option("--out", metavar="FILE", default="tour.html", help="where to write it")
    option = each["open"].add_argument
    option("files", nargs="+", help="traces, or one or two snapshots")
    what = "two traces are two runs: what got slower?"
    option("--compare", action="store_true", help=what)
    what = "of a snapshot: would other settings, or this, help?"
    option("--replay", nargs="?", const="", metavar="WITH", help=what)
    option("--html", metavar="FILE", help="write a page as well")

    place = words.index("--") if "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:place])
    if unknown:
        its = options.asked
        hint = did_you_mean(unknown[0], options_of(its)) or f"type {its.prog} --help"
        raise GpuMagicError(f"{its.prog} knows no {unknown[0]}", hint)
    options.program = words[place + 1 :]
    return options


def _write(report: Report, options: argparse.Namespace) -> None:
    """Write a report with the parts that were asked for, or as JSON."""
    if getattr(options, "json", False):
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        shown = report.as_asked(options.show, whole=options.all)
        sys.stdout.write(_in_a_terminal(shown.drawing().terminal() + "\n"))


def _doctor(options: argparse.Namespace) -> int:
    from gpumagic.gpu_doctor import examine

    report = examine()
    _write(report, options)
    return int(any(each.verdict.value == "problem" for each in report.findings))


def _words(options: argparse.Namespace) -> int:
    from gpumagic.gpu_doctor import words

    _write(words(" ".join(options.term)), options)
    return 0


def _open(options: argparse.Namespace) -> int:
    from gpumagic.drawing.html import page
    from gpumagic.gpu_open import api
    from gpumagic.notebook.live import progress

    wanted = api.options_of(options)
    with progress(None, None, "Reading") as steps:
        report = api.read(*options.files, **wanted, progress=steps.reach)
    if options.html:
        drawing = report.drawing()
        _write_page(Path(options.html), page(drawing.title, drawing.html()))
    _write(report, options)
    return 0


def _select(options: argparse.Namespace) -> int:
    return command.run(options, options.program, lambda report: _write(report, options))


def _demo(options: argparse.Namespace) -> int:
    try:
        from nbconvert import HTMLExporter
        from nbconvert.preprocessors import CellExecutionError, ExecutePreprocessor
    except ModuleNotFoundError as error:
        install = f"{sys.executable} -m pip install ipykernel nbconvert"
        raise MissingPackage(
            f"the demo needs the package {error.name}", install
        ) from None
    package, page = Path(__file__).parent, Path(options.out).resolve()
    tours = (each / "notebooks" / "tour.ipynb" for each in (package, package.parent))
    tour = next(filter(Path.exists, tours))  # installed, or beside us in a checkout
    run = ExecutePreprocessor(
        timeout=_PATIENCE_S,
        startup_timeout=_PATIENCE_S,
        iopub_timeout=_PATIENCE_S,  # otherwise outputs that come late are left out
        kernel_name="python3",
        # The kernel only speaks to us: its remarks on encryption are noise here.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    sys.stdout.write("The tour runs in a kernel of its own, for half a minute.\n")
    sys.stdout.flush()
    try:
        with tour.open(encoding="utf-8") as file:
            html, _ = HTMLExporter(preprocessors=[run]).from_file(file)
    except CellExecutionError as error:
        problem = f"a cell of the tour failed: {error.ename}: {error.evalue}"
        raise GpuMagicError(problem, f"run its cells yourself: {tour}") from None
    _write_page(page, html)
    sys.stdout.write(f"The tour ran. Open it: {page}\n")
    return 0


def _write_page(path: Path, html: str) -> None:
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise GpuMagicError(problem, "name another file") from error


_COMMANDS = {
    "doctor": (_doctor, "say what is here for GPU work and whether it fits together"),
    "words": (_words, "say what a word of the reports means"),
    "demo": (_demo, "run the tour notebook on this machine and write it as HTML"),
    "open": (_open, "say what a trace or a memory snapshot tells: open FILE..."),
    "select": (_select, "choose GPUs: select free -n 1 -- python train.py"),
}

if __name__ == "__main__":
    sys.exit(main())
