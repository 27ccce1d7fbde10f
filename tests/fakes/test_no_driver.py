"""On a machine with a driver, tests find none but those that they bring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import quick_python
from tests.fakes.run import machine_environment

_ROOT = Path(__file__).parents[2]
_TESTS = '''
import ctypes, sys
import pytest
from tests import quick_python
from tests.fakes.run import run_python

LOOK = """
import ctypes
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError:
        continue
    raise SystemExit(f"{name} is found")
"""

def test_here():
    exec(LOOK)

def test_in_a_process():
    assert quick_python.run([sys.executable, "-c", LOOK]).stderr == ""

@pytest.mark.parametrize("load", [(), ("nvml", "libcuda")])
def test_on_a_machine_of_its_own(load):
    found = run_python("""
        from gpumagic.devices.nvml import read_inventory
        print(len(read_inventory().gpus))
    """, scenario="four_gpus", load=load, install=("nvml", "libcuda"))
    assert found.json() == 4
'''


@pytest.mark.parametrize(
    ("options", "count"), [((), 4), (("-n", "1", "-k", "test_here"), 1)]
)
def test_the_driver_of_the_machine_is_not_found(tmp_path, options, count):
    """Not by tests, in a worker or not, nor by what they start; fakes are found."""
    file = tmp_path / "test_there.py"
    file.write_text(_TESTS)
    there = machine_environment(tmp_path, "one_gpu")
    fixed = ("-c", str(_ROOT / "pyproject.toml"), "-p", "tests.conftest")
    done = quick_python.anew(
        [sys.executable, "-m", "pytest", "-q", *fixed, *options, str(file)],
        cwd=_ROOT,
        env={name: value for name, value in there.items() if "XDIST" not in name},
    )

    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
