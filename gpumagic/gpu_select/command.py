"""Runs `python -m gpumagic select`: chooses GPUs for a program, from outside of it.

Outside is the best place: the program finds its GPUs chosen before its first line.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpumagic.gpu_select.answer_gpus import SelectReport

_NOT_FOUND = 127  # as a shell answers
_NOT_RUN = 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words of the magic that make sense outside of a notebook."""
    parser.add_argument(
        "what",
        nargs="*",
        help="2,0 | GPU-1a2b | MIG-... | none | all | free; nothing: how things stand",
    )
    parser.add_argument("-n", type=int, metavar="N", help="with free: how many")
    parser.add_argument("--min-free", metavar="SIZE", help="with free: as in 20GiB")
    parser.add_argument("--wait", metavar="TIME", help="with free: as in 10m")
    parser.add_argument(
        "--force", action="store_true", help="leave the limit that was inherited"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(
    words: argparse.Namespace,
    program: list[str],
    write: Callable[[SelectReport], None],
) -> int:
    """Show how things stand or would stand, or become the program with its GPUs."""
    from gpumagic.gpu_select import claims
    from gpumagic.gpu_select.api import select, status

    if program and not words.what:
        raise GpuMagicError(
            f"no GPU is named for {program[0]}",
            f"say which, as in: select free -- {' '.join(program)}",
        )
    if not words.what:
        write(status())
        return 0
    try:
        report = select(
            words.what,
            n=words.n,
            min_free=words.min_free,
            wait=words.wait,
            force=words.force,
            dry_run=not program,
        )
    except GpuMagicError as error:
        if program or "names no GPU" not in error.problem:
            raise
        raise GpuMagicError(
            error.problem, f"{error.hint}; a program stands behind --"
        ) from None
    if not program:
        write(report)
        return 0
    sys.stderr.write(report.headline + "\n")
    sys.stderr.flush()
    for _, lock in claims.held():
        os.set_inheritable(lock, True)
    return _become(program)


def _become(program: list[str]) -> int:
    """Replace this process, which keeps its number, and so its locks."""
    try:
        os.execvp(program[0], program)  # noqa: S606 -- it is what was typed
    except FileNotFoundError:
        sys.stderr.write(f"there is no program {program[0]}\n")
        return _NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started: {error.strerror}\n")
        return _NOT_RUN
