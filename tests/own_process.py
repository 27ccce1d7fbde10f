"""Runs files of tests that switch the simulator on, in processes of their own.

A registration with torch lasts as long as the process, and other tests want a torch
without one. Each process costs seconds before its first test, so files that switch the
same on share one. Ranks and programs are forked off a process that has imported what
they import. `python -m tests.own_process MODULE COUNT ...` is that of ranks.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpumagic.errors import DeviceError
from tests import quick_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Fork = Callable[[str], str]

ROOT = Path(__file__).parents[1]
PATIENCE_S = 150


def files_beside(test: str) -> list[Path]:
    """Those in the folder of a test."""
    return sorted(Path(test).parent.glob("torch_*.py"))


def groups_beside(
    test: str, together: Mapping[str, Sequence[str]]
) -> dict[str, list[Path]]:
    """Those in the folder of a test, by process: some together, all others alone."""
    files = {each.stem.removeprefix("torch_"): each for each in files_beside(test)}
    groups = {name: [files.pop(each) for each in of] for name, of in together.items()}
    return groups | {name: [alone] for name, alone in files.items()}


def check(*files: Path) -> None:
    """Run all tests of files; where there can be no simulator they are skipped."""
    require_simulator()
    pytest_quietly = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    run = quick_python.run([*pytest_quietly, *map(str, files)], cwd=ROOT, timeout=600)

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def require_simulator() -> None:
    """Skip what switches it on in another process, where this torch cannot have it."""
    if reason := why_no_simulator():
        pytest.skip(reason)


def why_no_simulator() -> str | None:
    """Why this torch cannot have the simulator; None if it can."""
    import torch

    from gpumagic.simulator.backend.refusals import require_fit

    try:
        require_fit(torch)
    except DeviceError as refusal:
        return refusal.problem
    return None


# Each program has a process of its own; its output comes back with how it has ended.
FORKS = """
import json, os, signal, sys, tempfile, traceback
{}
for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            signal.alarm({})
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            failed = 0
            try:
                exec(json.loads(line), {{"__name__": "__main__"}})
            except BaseException:
                traceback.print_exc()
                failed = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(failed)
        status = os.waitpid(child, 0)[1]
        said.seek(0)
        print(json.dumps([status, said.read()]), flush=True)
"""


@contextlib.contextmanager
def forks(beginning: str, env: Mapping[str, str] | None = None) -> Iterator[Fork]:
    """Run programs that all begin with this, and give what each has printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS.format(beginning, PATIENCE_S)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(program: str) -> str:
        print(json.dumps(program), file=process.stdin, flush=True)
        status, said = json.loads(process.stdout.readline())
        assert status == 0, said
        return said

    try:
        yield run
    finally:
        process.communicate()


def run_ranks(module: str, count: int, *words: object) -> None:
    """Run `main(rank, count, *words)` of a module in so many processes at once."""
    places = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")
    apart = {name: each for name, each in os.environ.items() if name not in places}
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    started = subprocess.Popen(
        [sys.executable, "-m", __name__, module, str(count), *map(str, words)],
        cwd=ROOT,
        env=apart | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = started.communicate(timeout=PATIENCE_S)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said[-8000:]


def _fork_ranks(module: str, count: int, *words: str) -> int:
    """How many ranks have failed."""
    warnings.simplefilter("ignore")
    program = importlib.import_module(module)
    importlib.import_module("torch._dynamo")  # optimizers import it
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=program.main, args=(rank, count, *words))
        for rank in range(count)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return sum(each.exitcode != 0 for each in ranks)


if __name__ == "__main__":
    sys.exit(_fork_ranks(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
