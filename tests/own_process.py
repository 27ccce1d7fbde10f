"""Runs files of tests that switch the simulator on, each in a process of its own.

A registration with torch lasts as long as the process, and other tests want a torch
without one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpumagic.errors import DeviceError

ROOT = Path(__file__).parents[1]


def files_beside(test: str) -> list[Path]:
    """Those in the folder of a test."""
    return sorted(Path(test).parent.glob("torch_*.py"))


def check(file: Path) -> None:
    """Run all tests of a file; where there can be no simulator they are skipped."""
    require_simulator()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

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
