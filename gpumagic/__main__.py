"""`gpumagic`, or `python -m gpumagic`: what the magics do, for a terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic import __version__
from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.gpu_select import command
from gpumagic.notebook.arguments import add_parts, options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

    from gpumagic.report.record import Report

# What a notebook types, and a terminal for the same.
_COMMANDS = {
    "%gpu_doctor words": "words",
    "%gpu_doctor": "doctor",
    "%gpu_open": "open",
    "%gpu_select": "select",
}
_MAGIC = re.compile(
    r"%gpu_select --simulate(?: (?P<machine>\w+))?|%(?P<shell>ls) |"
    rf"(?P<magic>{'|'.join(_COMMANDS)})\b(?! --(?:reset|restart|dry|guard|no-guard))"
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
            return f"{_called()} {_COMMANDS[found['magic']]}"
        if found["shell"]:
            return f"{found['shell']} "
        return f'gpumagic.simulate("{found["machine"] or "h100"}") in Python'

    return _MAGIC.sub(typed, text)


def _read(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog=_called(), description=__doc__)
    parser.add_argument(
        "--version", action="version", version=f"gpumagic {__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    doctor = commands.add_parser(
        "doctor", help="say what is here for GPU work and whether it fits together"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    add_parts(doctor)
    doctor.set_defaults(run=_doctor)
    explain = commands.add_parser("words", help="say what a word of the reports means")
    explain.add_argument("term", nargs="*", help="nothing: all of them")
    add_parts(explain)
    explain.set_defaults(run=_words)
    demo = commands.add_parser(
        "demo", help="run the tour notebook on this machine and write it as HTML"
    )
    demo.add_argument("--out", metavar="FILE", help="where to write the HTML")
    demo.set_defaults(run=_demo)
    recording = commands.add_parser(
        "open", help="say what a trace or a memory snapshot tells: open FILE..."
    )
    _add_recordings(recording)
    choose = commands.add_parser(
        "select", help="choose GPUs for a program: select free -n 1 -- python train.py"
    )
    command.add_arguments(choose)
    add_parts(choose)
    choose.set_defaults(run=_select)
    words, program = _before_and_after("--", words)
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        raise _unknown(parser, "command", words[0], commands.choices)
    options, unknown = parser.parse_known_args(words)
    if options.run is _select:
        command.check_place_of_program(words[1:], [*options.what, *unknown], program)
    if unknown:
        kind = "option" if unknown[0].startswith("-") else "argument"
        known = options_of(commands.choices[words[0]])
        raise _unknown(commands.choices[words[0]], kind, unknown[0], known)
    options.program = program
    return options


def _add_recordings(parser: argparse.ArgumentParser) -> None:
    """What `open` takes; the same as the magic."""
    parser.add_argument("files", nargs="+", help="traces, or one or two snapshots")
    for option, does in (
        ("--compare", "two traces are two runs: what got slower?"),
        ("--json", "as JSON"),
    ):
        parser.add_argument(option, action="store_true", help=does)
    for option, metavar, does in (
        ("--fit", "SIZE", "of a snapshot: would that have fitted?"),
        ("--html", "FILE", "write a page as well"),
    ):
        parser.add_argument(option, metavar=metavar, help=does)
    parser.add_argument(
        "--replay",
        nargs="?",
        const="",
        metavar="WITH",
        help="of a snapshot: would other settings have helped? or this, or this size",
    )
    add_parts(parser)
    parser.set_defaults(run=_open)


def _before_and_after(mark: str, words: list[str]) -> tuple[list[str], list[str]]:
    if mark not in words:
        return words, []
    place = words.index(mark)
    return words[:place], words[place + 1 :]


def _unknown(
    parser: argparse.ArgumentParser, kind: str, word: str, known: Iterable[str]
) -> GpuMagicError:
    hint = did_you_mean(word, known) or f"type {parser.prog} --help"
    return GpuMagicError(f"{parser.prog} has no {kind} {word}", hint)


def _doctor(options: argparse.Namespace) -> int:
    from gpumagic.gpu_doctor import examine

    report = examine()
    if options.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        _write(report, options)
    return int(any(each.verdict.value == "problem" for each in report.findings))


def _words(options: argparse.Namespace) -> int:
    from gpumagic.gpu_doctor import words

    _write(words(" ".join(options.term)), options)
    return 0


def _open(options: argparse.Namespace) -> int:
    from gpumagic.gpu_open import api
    from gpumagic.gpu_open.options import options_of
    from gpumagic.notebook.live import progress

    wanted = vars(options_of(options))
    with progress(None, None, "Reading") as steps:
        report = api.read(*options.files, **wanted, progress=steps.reach)
    if options.html:
        _write_page(report, options.html)
    if options.json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        _write(report, options)
    return 0


def _write_page(report: Report, file: str) -> None:
    """Write a report as a page, with all that it has folded."""
    from gpumagic.drawing.html import page

    drawing = report.drawing()
    try:
        Path(file).write_text(page(drawing.title, drawing.html()), encoding="utf-8")
    except OSError as error:
        raise GpuMagicError(
            f"{file} cannot be written: {error.strerror}", "name another file"
        ) from error


def _write(report: Report, options: argparse.Namespace) -> None:
    """Write a report with the parts that were asked for."""
    shown = report.as_asked(options.show, whole=options.all)
    sys.stdout.write(_in_a_terminal(shown.drawing().terminal() + "\n"))


def _select(options: argparse.Namespace) -> int:
    return command.run(options, options.program, _in_a_terminal)


def _demo(options: argparse.Namespace) -> int:
    from gpumagic.notebook import demo

    sys.stdout.write(
        "The tour runs in a kernel of its own; that takes half a minute.\n"
    )
    sys.stdout.flush()
    sys.stdout.write(demo.run(options.out) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
