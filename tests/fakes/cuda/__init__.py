"""Switches on the machine on which torch's own CUDA runs without a GPU.

    python -m tests.fakes.cuda -m pytest tests/hardware
    python -m tests.fakes.cuda --scenario four_gpus -m IPython

starts any Python program there, and what that starts in turn. A script or a notebook
that is running already says, before it imports torch:

    from tests.fakes.cuda import switch_on
    switch_on("four_gpus")

The driver's libraries are found as they are on any machine, by the loader. Those that
come with torch are found by a path in torch itself, but not looked for where they are
loaded already: `site/sitecustomize.py` loads ours when torch is first imported.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def environment(scenario: str | Path = "idle_gpu") -> dict[str, str]:
    """All variables of a process on this machine, from those of this process."""
    from tests.fakes.build import scenario_file  # it needs pytest, which may come later

    libraries = built()
    return os.environ | {
        "GPUMAGIC_FAKE_SCENARIO": str(scenario_file(scenario).resolve()),
        "GPUMAGIC_FAKE_USAGE": tempfile.mkdtemp(prefix="gpumagic-usage-"),
        "GPUMAGIC_FAKE_LIBRARIES": str(libraries),
        "GPUMAGIC_FAKE_TORCH": str(libraries / "libvalues.so"),
        "LD_LIBRARY_PATH": _joined(libraries, "LD_LIBRARY_PATH"),
        "PYTHONPATH": _joined(f"{HERE / 'site'}{os.pathsep}{ROOT}", "PYTHONPATH"),
        # Values are worked out by the CPU, in threads of the streams.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def switch_on(scenario: str | Path = "idle_gpu") -> None:
    """Make this process, and those that it starts, run on this machine."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already: switch on in a new process")
    os.environ.update(environment(scenario))
    for each in ("libcuda.so.1", "libnvidia-ml.so.1"):  # else the loader finds none
        ctypes.CDLL(str(built() / each), mode=ctypes.RTLD_GLOBAL)
    runpy.run_path(str(HERE / "site" / "sitecustomize.py"))


@functools.cache
def built() -> Path:
    """The folder of the libraries; what has changed is compiled."""
    refuse_other_machines()
    folder = ROOT / "build" / "cuda"
    make = ("make", "-s", "-j2", "-C", HERE)
    subprocess.run([*make, f"PYTHON={sys.executable}", f"OUT={folder}"], check=True)
    return folder


def refuse_other_machines() -> None:
    """End the program, with the reason, where this cannot run."""
    here = f"{platform.system()} on {platform.machine()}"
    if here != "Linux on x86_64":
        sys.exit(f"torch's CUDA without a GPU needs Linux on x86_64; this is {here}.")


def is_on() -> bool:
    """Whether this process runs on this machine."""
    return "GPUMAGIC_FAKE_LIBRARIES" in os.environ


def _joined(first: Path | str, variable: str) -> str:
    return os.pathsep.join(filter(None, (str(first), os.environ.get(variable))))
