"""Processes for what may crash or hang, forked from one that has imported much already.

On a small machine importing is most of the time that a small program takes. Nothing is
computed in the parent and no GPU is simulated there, so that each child begins as a
fresh process does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STEP_S = 0.02


def import_first(names: tuple[str, ...]) -> None:
    """Import what most children import, as far as it is installed."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed", file=sys.stderr)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # as the variable says, had it been there in time


def result_of(
    run: Callable[[], Mapping[str, Any]], limit_s: float
) -> tuple[dict[str, Any], str]:
    """What `run` returns in a child; else why there is nothing, in a line."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        said, output = Path(folder, "said"), Path(folder, "output")

        def say() -> None:
            found = json.dumps(dict(run()))
            said.with_suffix(".part").write_text(found)
            said.with_suffix(".part").rename(said)

        status = wait(start(say, Path(folder, "work"), output), limit_s)
        text = output.read_text("utf-8", "replace")
        if os.environ.get("STRANGERS_SHOW"):
            print(text[-6000:])
        if said.exists():
            return json.loads(said.read_text()), ""
        if status is None:
            return {}, f"it took more than {limit_s:g} s"
        lines = [line for line in text.splitlines() if line.strip()]
        return {}, f"ended with {status}: {lines[-1] if lines else ''}"


def start(run: Callable[[], None], folder: Path, output: Path) -> int:
    """A child that runs this in a folder of its own and ends; its process number."""
    folder.mkdir()
    output.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        into = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(into, 1)
        os.dup2(into, 2)
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, limit_s: float) -> int | None:
    """How a child ended; None where it took too long. All it started ends with it."""
    deadline = time.monotonic() + limit_s
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(_STEP_S)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None
