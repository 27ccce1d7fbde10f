"""The simulated GPU's runtime: found only where one is switched on."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_nothing_is_simulated_unless_asked_for():
    """Without a simulation the best device is a real one, and "sim" is refused."""
    code = (
        "import torch, gpumagic\n"
        "from gpumagic.devices.opening import open_runtime\n"
        "print(open_runtime().kind, gpumagic.device().type)\n"
        "try: open_runtime('sim')\n"
        "except gpumagic.errors.DeviceError as error: print(error)"
    )

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout

    first, problem, _ = said.splitlines()
    assert "sim" not in first
    assert "sim: not switched on" in problem
