"""What `%gpu_select` costs on a machine with four GPUs, beside nvitop's select.

The GPUs are those of the fake driver of the tests, which answers at once: it is our
own time that is measured, not the driver's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.runner import Comparison, side_by_side
from tests.fakes.run import machine_environment

if TYPE_CHECKING:
    from benchmarks.runner import Subject

_CLOCK = "import json, time; start = time.perf_counter()\n"
_SAY = "\nprint(json.dumps(time.perf_counter() - start))"
_FIRST = "from gpumagic.gpu_select import status; status()"
_NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
start = time.perf_counter()
from gpumagic.gpu_select import status
status()
"""
_AGAIN = f"{_FIRST}; start = time.perf_counter(); status()"
_CHOICE = f"{_FIRST}; from gpumagic.gpu_select import select; {{}}select('free')"
_PROBE = """
from gpumagic.devices.nvidia import NvidiaDriver
started = NvidiaDriver().cuda_started
started()
start = time.perf_counter()
for _ in range(1000):
    started()
start += (time.perf_counter() - start) * 0.999
"""
_NVITOP = "from nvitop import select_devices; select_devices()"


def run(rounds: int = 15) -> Comparison:
    """Time each in a process of its own, with its imports where it says first."""
    subjects = {
        "status, first in a notebook": _fresh(_NOTEBOOK),
        "status, first in a process": _fresh(_FIRST),
        "status, again": _fresh(_AGAIN),
        "choosing a free one": _fresh(_CHOICE.format("start = time.perf_counter(); ")),
        "the question after each cell": _fresh(_PROBE),
    }
    if importlib.util.find_spec("nvitop"):
        subjects["nvitop select, first in a process"] = _fresh(_NVITOP)
    return side_by_side("select_status", subjects, rounds=rounds)


def _fresh(code: str) -> Subject:
    def subject() -> float:
        with tempfile.TemporaryDirectory() as folder:
            machine = machine_environment(Path(folder)) | {"TMPDIR": folder}
            # Compiled modules are what users have after the first time.
            machine.pop("PYTHONDONTWRITEBYTECODE", None)
            cache = os.environ.get("PYTHONPYCACHEPREFIX", tempfile.gettempdir())
            machine["PYTHONPYCACHEPREFIX"] = cache
            done = subprocess.run(
                [sys.executable, "-c", _CLOCK + code + _SAY],
                env=machine,
                capture_output=True,
                text=True,
                check=True,
            )
        return float(json.loads(done.stdout.splitlines()[-1]))

    return subject
