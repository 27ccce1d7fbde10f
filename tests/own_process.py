"""Runs files of tests that switch the simulator on, in processes of their own.

A registration with torch lasts as long as the process, and other tests want a torch
without one. Each process costs seconds before its first test, so files that switch the
same on share one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]


def files_beside(test: str) -> list[Path]:
    """Those in the folder of a test."""
    return sorted(Path(test).parent.glob("torch_*.py"))


def groups_beside(
    test: str, together: Mapping[str, Sequence[str]]
) -> dict[str, list[Path]]:
    """Those in the folder of a test, by process: some together, all others alone.

    Args:
        test: The file of the test.

        together: By the name of a group its files, without `torch_` and ending.
    """
    files = {each.stem.removeprefix("torch_"): each for each in files_beside(test)}
    groups = {name: [files.pop(each) for each in of] for name, of in together.items()}
    return groups | {name: [alone] for name, alone in files.items()}


def check(*files: Path) -> None:
    """Run all tests of files; where there can be no simulator they are skipped."""
    require_simulator()
    pytest_quietly = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    run = subprocess.run(
        [*pytest_quietly, *map(str, files)],
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
