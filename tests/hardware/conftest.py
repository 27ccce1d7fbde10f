"""Marks this folder's tests, skips them without CUDA, and keeps what they measure.

They run on a GPU (`make hardware`), and on the machine of tests/fakes/cuda, where
torch's own CUDA runs without one (`make cuda`).
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.runner import write_measurement
from gpumagic.devices.opening import open_runtime
from gpumagic.devices.torch_build import read_torch_build
from tests.fakes.cuda import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
# What a real device makes torch and Python say at first use is theirs to say, and fails
# no test: that autograd's thread had no context for cuBLAS yet, that a process with the
# driver's threads is forked for the workers of a loader (from Python 3.12 on), and what
# its own compiler still uses.
_SAID = (
    "default::UserWarning",
    "default:.*(multi-threaded|script_method):DeprecationWarning",
)
_LOOK = "import torch; print(torch.__version__, torch.cuda.is_available())"


def pytest_configure() -> None:
    """Give each worker a machine of its own, with memory of its own."""
    if is_on() and "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["GPUMAGIC_FAKE_USAGE"] = tempfile.mkdtemp(prefix="gpumagic-usage-")


@pytest.hookimpl(tryfirst=True)  # before `-m hardware` selects by the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; the hook is handed those of all folders."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.hardware)
            for each in _SAID:
                item.add_marker(pytest.mark.filterwarnings(each))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of this folder where it cannot run, before its fixtures."""
    reason = _why_no_gpu()
    if reason is None and is_on() and item.get_closest_marker("times"):
        reason = "only a GPU has these times"
    if reason:
        pytest.skip(reason)


@functools.cache
def _why_no_gpu() -> str | None:
    """Asked in a process of its own: here it would start CUDA for all other tests."""
    build = read_torch_build()
    if build is not None and not (build.cuda or build.hip):
        return f"torch {build.version} is built without CUDA"
    answer = subprocess.run(
        [sys.executable, "-c", _LOOK],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    if answer.returncode:
        return f"torch cannot be imported: {answer.stderr.strip().splitlines()[-1]}"
    version, usable = answer.stdout.split()
    return None if usable == "True" else f"torch {version} finds no usable CUDA device"


@pytest.fixture(scope="session")
def torch() -> Any:
    """The real torch, in a session that has a GPU."""
    import torch

    return torch


@pytest.fixture
def runtime(torch: Any) -> Any:
    """CUDA, started and idle."""
    torch.zeros(1, device="cuda")
    opened = open_runtime("cuda")
    opened.synchronize()
    return opened


@pytest.fixture(scope="session")
def cycles_per_ms(torch: Any) -> float:
    """How fast the GPU spins at full clock, so that tests can ask for milliseconds."""
    cycles = 100_000_000
    torch.cuda._sleep(cycles)  # from the idle clock to the full one
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / start.elapsed_time(end)


@pytest.fixture
def spin(torch: Any, cycles_per_ms: float) -> Callable[..., None]:
    """A kernel that keeps one stream of the current device busy for milliseconds."""

    def submit(milliseconds: float, stream: Any | None = None) -> None:
        with torch.cuda.stream(stream or torch.cuda.current_stream()):
            torch.cuda._sleep(int(milliseconds * cycles_per_ms))

    return submit


@pytest.fixture
def record_measurement() -> Callable[[str, dict[str, Any]], Path]:
    """Writes figures to $OUT, or to build/hardware, with device, versions and date."""
    folder = Path(os.environ.get("OUT") or _ROOT / "build" / "hardware")
    return functools.partial(write_measurement, folder)


@pytest.fixture
def shell(torch: Any) -> Iterator[Any]:
    """A shell with the extension loaded, the GPU in use and nothing cached on it."""
    from IPython.core.async_helpers import get_asyncio_loop
    from IPython.core.interactiveshell import InteractiveShell

    torch.zeros(1, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()  # so that no hole is a little larger than what is asked
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")
    shell.user_ns["torch"] = torch
    yield shell
    # `atexit` holds the shell, and that what it has shown and its last error.
    shell.run_line_magic("gpu_mem", "free -q")
    shell.run_line_magic("unload_ext", "gpumagic")
    shell.reset(new_session=False)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()
    get_asyncio_loop().close()
    gc.collect()
