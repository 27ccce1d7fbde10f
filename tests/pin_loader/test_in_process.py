"""The loader tests that switch the simulator on, each file in a process of its own.

A registration with torch lasts as long as the process, and other tests want a torch
without one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(HERE.glob("torch_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_a_process_of_its_own(file):
    """Every behaviour that this file states holds in a fresh process."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
