"""Processes that hold a claim, on a machine whose temporary files are the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.gpu_select import claims, folders
from gpumagic.gpu_select.claims import Claim, claim_text
from gpumagic.gpu_select.processes import this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]

HOLDER = """
import sys
from gpumagic.gpu_select import claims

with claims.held_open() as ledger:
    ledger.take(["GPU-held"])
print(ledger.problem or "held", flush=True)
"""


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen:
    """A process on the machine whose temporary files lie in this folder."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)},
    )


@contextmanager
def holder(folder: Path, code: str = HOLDER, then: str = "") -> Iterator:
    """A process that has claimed GPU-held, and goes on until its input ends."""
    with start(code + (then or "sys.stdin.read()"), folder) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.kill()


def others() -> dict[str, Claim]:
    """What this test sees of others, where all is well."""
    with claims.held_open() as ledger:
        found = ledger.others()
    assert ledger.problem is None
    return found


def claim_files() -> list[Path]:
    """The files of all claims, of the dead too."""
    return sorted(folders.shared().glob("claim-*"))


def forge(**changes: object) -> Path:
    """Put a claim of this test's parent there, with some of it changed."""
    parent = json.loads(claim_text(["GPU-forged"], this_process(), time.time()))
    parent |= {"pid": os.getppid(), "start_ticks": None, **changes}
    file = folders.shared() / "claim-of-another.json"
    file.write_text(json.dumps(parent))
    return file
