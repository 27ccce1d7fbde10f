"""Programs in processes of their own, on machines with other GPUs than this one.

The machine is a scenario of `tests/fakes/scenarios/`, or a list of GPUs; a real one is
what it is, so that a test that asks for another is skipped there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.build import scenario_file

_ROOT = Path(__file__).parents[2]
_SCENARIO = "GPUMAGIC_FAKE_SCENARIO"
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

# A shell in which cells are typed; `show` hands out what was found.
_SHELL = """\
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")

def typed(cell):
    with capture_output() as seen:
        shell.run_cell(cell)
    shown = [each.data["text/plain"] for each in seen.outputs]
    return "\\n".join([*shown, seen.stdout])

def show(**found):
    print(json.dumps(found, default=str), flush=True)

def forked(work):
    # What a child says that begins here, before CUDA has started.
    mine, its = os.pipe()
    if os.fork() == 0:
        os.close(mine)
        try:
            with os.fdopen(its, "w") as pipe:
                print(json.dumps(work(), default=str), file=pipe, flush=True)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(its)
    with os.fdopen(mine) as pipe:
        said = pipe.read()
    os.wait()
    return json.loads(said)
"""

_H100 = """
[gpu]
name=NVIDIA H100 80GB HBM3
capability=9.0
total_mib=81559
reserved_mib=559
sm_count=132
speed=100
uuid=GPU-{number:08x}-aaaa-4aaa-8aaa-{number:012x}
pci=0000:{bus:02x}:00.0
used_mib=0
utilisation=0
temperature=41
power_mw=118250
compute_mode=0
mig=disabled
"""


def h100s(count: int, folder: Path) -> Path:
    """A machine with so many H100 that nobody uses."""
    versions = ("driver_version=580.65.06", "nvml_version=13.580.65.06")
    gpus = (_H100.format(number=each, bus=16 * each + 8) for each in range(count))
    file = folder / f"{count}.txt"
    file.write_text("\n".join((*versions, "cuda_version=13000", *gpus)))
    return file


def idle_gpu(folder: Path, *of_machine: str, **of_gpu: int) -> Path:
    """The machine with an idle H100, with lines of its own and other figures of it."""
    text = scenario_file("idle_gpu").read_text()
    for key, value in of_gpu.items():
        text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
    file = folder / "idle.txt"
    file.write_text("\n".join((*of_machine, text)))
    return file


def only_on_the_stand_in() -> None:
    """Skip a test that needs another machine where this one is real."""
    if _SCENARIO not in os.environ:
        pytest.skip("a real machine has the GPUs that it has")


def run(code: str, scenario: str | Path | None = None, **variables: str) -> Any:
    """What a program in a fresh shell hands to `show`."""
    inherited = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    if scenario is not None:
        only_on_the_stand_in()
        inherited[_SCENARIO] = str(scenario_file(scenario))
    # Where the stand-in is switched on by its import, it has to come before torch.
    stand_in = "tests.fakes.cuda"
    first = f"import {stand_in}\n" if stand_in in sys.modules else ""
    done = subprocess.run(
        [sys.executable, "-c", first + _SHELL + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env=inherited | variables,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
