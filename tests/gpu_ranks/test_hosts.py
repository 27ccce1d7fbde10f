"""More than one host: the tests of `two_hosts` run where hosts can be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu_ranks import hosts

pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.kernel


def test_two_hosts():
    """All that is asked of one host holds on two."""
    if reason := hosts.why_not():
        pytest.skip(reason)
    pytest_quietly = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    run = hosts.run_inside(*pytest_quietly, str(Path(__file__).parent / "two_hosts.py"))

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
