"""Traces what host and devices do during a block, by torch's own profiler.

What has to be known about that, and is not written in its manual:

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
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.devices import kineto, torch_private
from gpumagic.devices.nvidia import driver_initialised, why_no_cuda
from gpumagic.errors import DeviceError, first_line
from gpumagic.report.events import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.kineto import Reading
    from gpumagic.simulator.observing import SimulatedTracing

    Tracing: TypeAlias = "ProfilerTracing | SimulatedTracing"

_BEGIN, _END = "gpumagic: all idle, begin", "gpumagic: all idle, end"
_WARM_UP = "gpumagic: warming up"
ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU"}  # by kind, what it can see
_LOSING_FROM, _LOSING_UNTIL = (12, 6), (13, 1)
_ENOUGH_TO_LOSE = 200  # sessions in one process; they take a thousandth of a second
_COMPILER, _COMPILED_GRAPHS = "_inductor", "TORCHINDUCTOR_CUDAGRAPHS"
_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "6"  # above the highest level there is

LOST = (
    "the trace was lost: the code used torch's profiler itself",
    "leave the profiler to one of the two: run this without --profile",
)
UNENDED = (
    "the trace was lost: what was traced did not come to its end",
    "the times do not depend on it",
)
CAPTURING = (
    "a graph is being captured, which the profiler would break: it waits at its end",
    "run this without --profile, or profile the replay of the graph",
)
BLIND = (
    "no GPU activity could be traced",
    "a GPU serves one profiler at a time: is nsys, DCGM or another one attached?",
)
HEADLESS = (
    "the first kernels of this trace are missing: CUPTI loses more with each trace",
    "restart the kernel; torch built for CUDA 13.1 or newer loses none",
)


@contextlib.contextmanager
def trace(torch: Any, kind: str) -> Iterator[Tracing]:
    """Trace what torch does on the host and on one kind of device during a block."""
    require_startable(torch)
    tracing = ProfilerTracing(torch, kind)
    tracing.start()
    try:
        yield tracing
    finally:
        tracing.stop()


class ProfilerTracing:
    """A trace that is being taken by `torch.profiler`.

    The window lies between `begin` and `end`, which are called when all devices are
    idle; what was seen is told, and saved, once the block has ended.
    """

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch = torch
        self._kind = kind
        self._module: Any = getattr(torch, kind, None)
        self._profile: Any = None
        self._expects_devices = False
        self._may_lose = False
        self._text = ""
        self._problem = LOST
        self._began_ns = self._ended_ns = 0
        self._is_cut = False

    def start(self) -> None:
        """Start the profiler and let its first costs be paid."""
        if self._in_use() and torch_private.is_capturing(self._torch, self._kind):
            raise DeviceError(*CAPTURING)
        self._profile = started(self._torch, self._kind)
        try:
            self._warm_up()
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise not_started(error) from error
            raise

    def begin(self) -> None:
        """The window begins."""
        self._mark(_BEGIN)
        self._began_ns = time.perf_counter_ns()

    def end(self) -> None:
        """The window ends."""
        if not self._is_cut:
            self._ended_ns = time.perf_counter_ns()
            self._mark(_END)

    def cut(self) -> bool:
        """End it here, unless a graph is being captured, which that would break."""
        if self._in_use() and torch_private.is_capturing(self._torch, self._kind):
            return False
        self.end()
        self._is_cut = True
        self._halt()
        return True

    def stop(self) -> None:
        """Stop the profiler, whatever has happened; what fails is told by `trace`.

        Where the window has not ended, there is nothing to tell, and so nothing to wait
        for: the device may be at work for long, or be captured from.
        """
        if not self._is_cut:
            self._halt()
        profile, self._profile = self._profile, None
        if not profile:
            return
        try:
            self._text = exported(profile)
        except (RuntimeError, OSError) as error:
            self._lose(error)

    def _halt(self) -> None:
        """Let the profiler see no more; what it has seen can be told later."""
        profile, self._profile = self._profile, None
        if not is_running(self._torch, unknown=True):
            return  # the code has ended ours by starting one of its own
        if not self._ended_ns:
            self._problem = UNENDED
            stop_without_waiting(self._torch)
            return
        try:
            stop(self._torch, profile)
            self._profile = profile
        except (RuntimeError, OSError) as error:
            self._lose(error)
        # The code may have been the first to use the device.
        self._expects_devices = self._expects_devices or self._in_use()

    def _lose(self, error: Exception) -> None:
        """The code has run, and its time is worth more than its picture."""
        told = f"the trace is lost: {first_line(error)}"
        self._problem = told, "the times do not depend on it"

    def trace(self) -> Trace:
        """What was seen between begin and end."""
        length_s = max(self._ended_ns - self._began_ns, 0) / 1e9
        if not self._text:
            return Trace((), length_s, *self._problem)
        try:
            seen = kineto.read(self._text, _BEGIN, _END)
        except ValueError:  # a mark is missing
            return Trace((), length_s, *LOST)
        problem, hint = self._lacking(seen)
        return replace(seen, problem=problem, hint=hint, is_cut=self._is_cut)

    def _lacking(self, seen: Reading) -> tuple[str, str] | tuple[None, None]:
        """Why devices are missing from it, at least in part."""
        if seen.sees_devices and self._may_lose and not seen.sees_earlier_work:
            return HEADLESS
        if seen.sees_devices or not self._expects_devices:
            return None, None
        if self._kind in ACTIVITIES:
            return BLIND
        return (
            f"torch's profiler does not see devices of kind {self._kind!r}",
            "what is shown is the host's part",
        )

    def save(self, path: str | Path) -> None:
        """Write the profiler's own JSON, which has more than `trace` tells."""
        if not self._text:
            raise DeviceError(*self._problem)
        Path(path).write_text(self._text, encoding="utf-8")

    def _warm_up(self) -> None:
        """Make the first mark, and let CUPTI come up (about 200 ms the first time).

        It is done within the session: an empty session before it, as a warm-up, can
        leave all later ones of the process blind.
        """
        self._mark(_WARM_UP)
        self._expects_devices = self._in_use()
        if not self._expects_devices or not sees_devices(self._torch, self._kind):
            return
        if spin := getattr(self._module, "_sleep", None):
            # Kernels that need no memory: the counters stay as they are.
            first_ones = kernels_to_lose(self._torch)
            for _ in range(first_ones):
                spin(0)
            self._may_lose = first_ones > 1
        else:
            self._torch.zeros(1, device=self._kind)
        self._module.synchronize()

    def _in_use(self) -> bool:
        if self._kind == "cpu" or not self._module:
            return False
        return bool(getattr(self._module, "is_initialized", lambda: True)())

    def _mark(self, name: str) -> None:
        with self._torch.profiler.record_function(name):
            pass


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
    could_start = not torch.cuda.is_initialized() and not why_no_cuda(torch)
    if could_start and not driver_initialised():
        raise DeviceError(
            "torch's profiler would start CUDA, which has not been used yet",
            'use it once before: torch.zeros(1, device="cuda")',
        )


def is_running(torch: Any, *, unknown: bool) -> bool:
    """Whether a profiler is running in this thread."""
    return bool(getattr(torch.autograd, "_profiler_enabled", lambda: unknown)())


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
    found = tuple(map(int, re.findall(r"\d+", version or "")[:2]))
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
    getattr(torch.autograd, "_disable_profiler", bool)()
    getattr(torch.autograd.profiler, "_run_on_profiler_stop", bool)()


def exported(profile: Any) -> str:
    """Its Chrome JSON, which it can only write to a file."""
    with tempfile.TemporaryDirectory(prefix="gpumagic-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")


def _activities(torch: Any, kind: str) -> list[Any]:
    known = torch.profiler.ProfilerActivity
    device = getattr(known, ACTIVITIES.get(kind, ""), None)
    if device not in torch.profiler.supported_activities():
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
