"""Runs `python -m gpumagic select`: chooses GPUs for a program, from outside of it.

Outside is the best place: the program finds its GPUs chosen before its first line.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.request import meaning

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from gpumagic.gpu_select.report import SelectReport

_NOT_FOUND = 127  # as a shell answers
_NOT_RUN = 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words of the magic that make sense outside of a notebook."""
    parser.add_argument(
        "what",
        nargs="*",
        help="2,0 | GPU-1a2b | MIG-... | pci:3b:00.0 | none | all | free; "
        "nothing: how things stand",
    )
    parser.add_argument("-n", type=int, metavar="N", help="with free: how many")
    parser.add_argument("--min-free", metavar="SIZE", help="with free: as in 20GiB")
    parser.add_argument("--max-util", type=float, metavar="PERCENT", help="with free")
    parser.add_argument("--name", metavar="TEXT", help="with free: part of the model")
    parser.add_argument("--exclude", metavar="GPUS", help="with free: not these")
    parser.add_argument(
        "--mine-ok", action="store_true", help="with free: your memory counts as free"
    )
    parser.add_argument(
        "--wait", metavar="TIME", default="0", help="with free: as in 10m"
    )
    parser.add_argument("--as", dest="as_", choices=("index", "uuid"))
    parser.add_argument("--verify", action="store_true", help="ask a child process")
    parser.add_argument(
        "--force", action="store_true", help="leave the limit that was inherited"
    )
    parser.add_argument(
        "--print", action="store_true", help="write nothing but the variables, for env"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(
    words: argparse.Namespace,
    program: list[str],
    in_a_terminal: Callable[[str], str],
) -> int:
    """Show how things stand or would stand, or become the program with its GPUs."""
    from gpumagic.devices.driver import open_driver
    from gpumagic.gpu_select.api import status
    from gpumagic.gpu_select.apply import NotSelected, apply
    from gpumagic.gpu_select.options import Options
    from gpumagic.gpu_select.request import read

    if not words.what:
        # Guarded would be this process, which ends here.
        return _show(replace(status(), guard=None), words, in_a_terminal)
    tried = not program and not words.print
    said = replace(Options.typed(words), dry_run=tried)
    try:
        report = apply(read(words.what, said), open_driver())
    except NotSelected as error:
        sys.stderr.write(in_a_terminal(error.report.drawing().terminal() + "\n"))
        raise
    if not program:
        return _show(report, words, in_a_terminal)
    sys.stderr.write(report.headline + "\n")
    return _become(program)


def check_place_of_program(
    typed: Sequence[str], plain: Sequence[str], program: Sequence[str]
) -> None:
    """Refuse a program that has no GPUs in front of it, or no `--`."""
    if program and not plain:
        raise GpuMagicError(
            f"no GPU is named for {program[0]}",
            f"say which: {_line([*typed, 'free'], program)}",
        )
    for place, word in enumerate(plain):
        begins_program = place > 0 or shutil.which(word)
        if not program and begins_program and _names_nothing(word):
            begin = typed.index(word)
            gpus = typed[:begin] if plain[:place] else [*typed[:begin], "free"]
            raise GpuMagicError(
                f"{word!r} names no GPU",
                "if it is a program, put -- before it: " + _line(gpus, typed[begin:]),
            )


def _names_nothing(word: str) -> bool:
    """Whether a word, not an option, is no way to say which GPUs."""
    if word.startswith("-"):
        return False
    try:
        meaning(word)
    except GpuMagicError as error:
        return "names no GPU" in error.problem
    return False


def _line(gpus: Sequence[str], program: Sequence[str]) -> str:
    before, behind = map(shlex.join, (gpus, program))
    return f"python -m gpumagic select {before} -- {behind}"


def _show(
    report: SelectReport,
    options: argparse.Namespace,
    in_a_terminal: Callable[[str], str],
) -> int:
    if options.print:
        set_here = ((each.name, each.python) for each in report.variables)
        said = " ".join(f"{name}={value}" for name, value in set_here if value)
    elif options.json:
        said = json.dumps(report.to_dict(), indent=2)
    else:
        shown = report.as_asked(options.show, whole=options.all)
        said = in_a_terminal(shown.drawing().terminal())
    sys.stdout.write(said + "\n")
    return 0


def _become(program: list[str]) -> int:
    """Replace this process, which keeps its number, and so its claim."""
    sys.stderr.flush()
    try:
        os.execvp(program[0], program)  # noqa: S606 -- it is what was typed
    except FileNotFoundError:
        sys.stderr.write(f"there is no program {program[0]}\n")
        return _NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error.strerror}\n")
        return _NOT_RUN
