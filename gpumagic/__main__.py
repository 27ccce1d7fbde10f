"""`gpumagic`, or `python -m gpumagic`: what the magics do, for a terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic import __version__
from gpumagic.errors import GpuMagicError, MissingPackage, did_you_mean
from gpumagic.gpu_select import command
from gpumagic.notebook.arguments import add_parts, options_of
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from gpumagic.report.record import Report

_TOUR_PAGE = "build/tour.html"
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
    for name, run, does in _COMMANDS:
        each = commands.add_parser(name, help=does)
        each.set_defaults(run=run)
        if name == "select":
            command.add_arguments(each)
        for option, metavar, says in _OPTIONS.get(name, ()):
            how: dict[str, Any] = {"metavar": metavar} if metavar else {}
            if option[0] != "-":
                how["nargs"] = "*" if option == "term" else "+"
            elif not metavar:
                how["action"] = "store_true"
            elif option == "--replay":
                how |= {"nargs": "?", "const": ""}
            each.add_argument(option, help=says, **how)
        add_parts(each)
    place = words.index("--") if "--" in words else len(words)
    words, program = words[:place], words[place + 1 :]
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        raise _unknown(parser, f"command {words[0]}", list(commands.choices))
    options, unknown = parser.parse_known_args(words)
    if unknown:
        kind = "option" if unknown[0].startswith("-") else "argument"
        known = commands.choices[words[0]]
        raise _unknown(known, f"{kind} {unknown[0]}", list(options_of(known)))
    options.program = program
    return options


def _unknown(
    parser: argparse.ArgumentParser, what: str, known: list[str]
) -> GpuMagicError:
    hint = did_you_mean(what.rpartition(" ")[2], known) or f"type {parser.prog} --help"
    return GpuMagicError(f"{parser.prog} has no {what}", hint)


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
        try:
            html = page(drawing.title, drawing.html())
            Path(options.html).write_text(html, encoding="utf-8")
        except OSError as error:
            raise GpuMagicError(
                f"{options.html} cannot be written: {error.strerror}",
                "name another file",
            ) from error
    _write(report, options)
    return 0


def _write(report: Report, options: argparse.Namespace) -> None:
    """Write a report with the parts that were asked for, or as JSON."""
    if getattr(options, "json", False):
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        shown = report.as_asked(options.show, whole=options.all)
        sys.stdout.write(_in_a_terminal(shown.drawing().terminal() + "\n"))


def _select(options: argparse.Namespace) -> int:
    return command.run(options, options.program, lambda report: _write(report, options))


def _demo(options: argparse.Namespace) -> int:
    sys.stdout.write("The tour runs in a kernel of its own, for half a minute.\n")
    sys.stdout.flush()
    sys.stdout.write(run_tour(options.out) + "\n")
    return 0


def run_tour(out: str | None = None) -> str:
    """Run the tour, write it as HTML, and return how it went, with the path."""
    try:
        import nbclient
        import nbconvert
        import nbformat
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the demo needs the package {error.name}",
            f"{sys.executable} -m pip install ipykernel nbclient nbconvert",
        ) from None
    notebook = nbformat.read(_tour_path(), as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=_PATIENCE_S,
        startup_timeout=_PATIENCE_S,
        iopub_timeout=_PATIENCE_S,  # otherwise outputs that come late are left out
        kernel_name="python3",
        # The kernel only speaks to us: its remarks on encryption are noise here.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    started = time.monotonic()
    try:
        client.execute()
        failure = None
    except nbclient.exceptions.CellExecutionError as error:
        failure = f"{error.ename}: {error.evalue}"
    page = Path(out or _TOUR_PAGE).resolve()
    page.parent.mkdir(parents=True, exist_ok=True)
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    page.write_text(html, encoding="utf-8")
    if failure is not None:
        raise GpuMagicError(f"a cell of the tour failed: {failure}", f"look at {page}")
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    took = seconds_text(time.monotonic() - started)
    return f"The tour ran: {count_text(cells, 'cell')} in {took}.\nOpen it: {page}"


def _tour_path() -> Path:
    """The tour: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    for folder in (package, package.parent):
        path = folder / "notebooks" / "tour.ipynb"
        if path.exists():
            return path
    raise GpuMagicError("the tour notebook is not installed", "reinstall gpumagic")


_COMMANDS = (
    ("doctor", _doctor, "say what is here for GPU work and whether it fits together"),
    ("words", _words, "say what a word of the reports means"),
    ("demo", _demo, "run the tour notebook on this machine and write it as HTML"),
    ("open", _open, "say what a trace or a memory snapshot tells: open FILE..."),
    ("select", _select, "choose GPUs: select free -n 1 -- python train.py"),
)
_OPTIONS = {  # the name, what stands behind it, what it does
    "doctor": [("--json", "", "as JSON")],
    "words": [("term", "", "nothing: all of them")],
    "demo": [("--out", "FILE", "where to write the HTML")],
    "open": [
        ("files", "", "traces, or one or two snapshots"),
        ("--compare", "", "two traces are two runs: what got slower?"),
        ("--replay", "WITH", "of a snapshot: would other settings, or this, help?"),
        ("--json", "", "as JSON"),
        ("--html", "FILE", "write a page as well"),
    ],
}

if __name__ == "__main__":
    sys.exit(main())
