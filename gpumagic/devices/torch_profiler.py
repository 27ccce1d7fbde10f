"""torch's profiler, started and stopped so that nothing of it stays, and its traps.

What has to be known about it, and is not written in its manual:

- Starting it asks CUDA how many devices there are, whatever it is to trace. That
  initialises CUDA, so it is not started where nobody has used CUDA yet.
- Starting a second one ends the first without a word. The first can still be
  stopped, but to export what it has not got ends the process.
- Stopping it first waits for the device. Where that fails, it keeps running.
- Newer versions print a line at each start and stop.
- At its first start it imports torch's compiler, 800 modules that take two seconds,
  only to ask for one option of it.
- With CUPTI of CUDA 12.6 to 13.0 each of a process's sessions loses one kernel more
  than the one before, the first ones of the session (pytorch#192021). So kernels that
  nobody misses have to come first.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.cuda_availability import why_no_cuda
from gpumagic.devices.cuda_start import driver_initialised
from gpumagic.errors import DeviceError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU"}  # by kind, what it can see
_LOSING_FROM, _LOSING_UNTIL = (12, 6), (13, 1)
_ENOUGH_TO_LOSE = 200  # sessions in one process; they take a thousandth of a second
_COMPILER, _COMPILED_GRAPHS = "_inductor", "TORCHINDUCTOR_CUDAGRAPHS"
_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "6"  # above the highest level there is


def require_startable(torch: Any) -> None:
    """Refuse to start it where that would do harm, or where it cannot trace."""
    if not torch.profiler.kineto_available():
        raise DeviceError(
            "this torch is built without Kineto, the part that traces",
            "the builds of pytorch.org and PyPI have it",
        )
    somewhere = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    if somewhere or is_running(torch, unknown=False):
        raise DeviceError(
            "torch's profiler is running already, and there can be only one",
            "stop it first, or run this without --profile",
        )
    could_start = not torch.cuda.is_initialized() and why_no_cuda(torch) is None
    if could_start and not driver_initialised():
        raise DeviceError(
            "torch's profiler would start CUDA, which has not been used yet",
            'use it once before: torch.zeros(1, device="cuda")',
        )


def is_running(torch: Any, *, unknown: bool) -> bool:
    """Whether a profiler is running in this thread."""
    ask = getattr(torch.autograd, "_profiler_enabled", None)
    return unknown if ask is None else bool(ask())


def started(torch: Any, kind: str, *, devices_alone: bool = False) -> Any:
    """A running profiler; it traces the host, and devices that it can see."""
    profiler = torch.profiler
    if devices_alone and not sees_devices(torch, kind):
        raise DeviceError(
            "this torch can trace no devices of this kind", f"use a build for {kind}"
        )
    host, *devices = _activities(torch, kind)
    # Without it torch 2.11 warns in the user's cell of a second cycle, which is none.
    known = profiler.profile.__init__.__code__.co_varnames
    alone = {"acc_events": True} if "acc_events" in known else {}
    try:
        with (
            _silence(),
            _without_compiler(torch),
        ):
            profile = profiler.profile(
                activities=devices if devices_alone else [host, *devices], **alone
            )
            profile.start()
    except (RuntimeError, ValueError, AssertionError) as error:
        raise not_started(error) from error
    return profile


def not_started(error: BaseException) -> DeviceError:
    """What the user is told of a profiler that does not start."""
    return DeviceError(
        f"torch's profiler did not start: {first_line(error)}",
        "run this without --profile",
    )


def sees_devices(torch: Any, kind: str) -> bool:
    """Whether this torch can trace devices of this kind."""
    return len(_activities(torch, kind)) > 1


def kernels_to_lose(torch: Any) -> int:
    """How many kernels have to come first, so that none is lost that matters."""
    version = getattr(getattr(torch, "version", None), "cuda", None)
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers is None:
        return 1
    found = int(numbers[1]), int(numbers[2])
    return _ENOUGH_TO_LOSE if _LOSING_FROM <= found < _LOSING_UNTIL else 1


def stop(torch: Any, profile: Any) -> None:
    """Stop it for certain."""
    try:
        profile.stop()
    except RuntimeError:
        if is_running(torch, unknown=False):
            stop_without_waiting(torch)
        raise


def stop_without_waiting(torch: Any) -> None:
    """Stop it as it is; what it has seen is lost."""
    disable = getattr(torch.autograd, "_disable_profiler", None)
    forget = getattr(torch.autograd.profiler, "_run_on_profiler_stop", None)
    if disable is not None:
        disable()
    if forget is not None:
        forget()


def exported(profile: Any) -> str:
    """Its Chrome JSON, which it can only write to a file."""
    with tempfile.TemporaryDirectory(prefix="gpumagic-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")


def _activities(torch: Any, kind: str) -> list[Any]:
    known = torch.profiler.ProfilerActivity
    device = getattr(known, ACTIVITIES.get(kind, ""), None)
    if device is None or device not in torch.profiler.supported_activities():
        return [known.CPU]
    return [known.CPU, device]


@contextlib.contextmanager
def _without_compiler(torch: Any) -> Iterator[None]:
    """Let it start without importing torch's compiler, where nobody has done so.

    It asks whether the compiler makes CUDA graphs: one that is not there makes none.
    """
    lazy = getattr(torch, "_lazy_modules", None)
    is_there = f"torch.{_COMPILER}" in sys.modules
    is_asked_for = os.environ.get(_COMPILED_GRAPHS) == "1"
    if is_there or is_asked_for or not isinstance(lazy, set) or _COMPILER not in lazy:
        yield
        return
    lazy.discard(_COMPILER)
    try:
        yield
    finally:
        lazy.add(_COMPILER)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let it print nothing, unless the user has said what it is to print."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
