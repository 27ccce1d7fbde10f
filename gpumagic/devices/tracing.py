"""Traces what host and devices do during a block, by torch's own profiler."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpumagic.devices import kineto, torch_private, torch_profiler
from gpumagic.errors import DeviceError, first_line
from gpumagic.report.events import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.kineto import Reading

_BEGIN, _END = "gpumagic: all idle, begin", "gpumagic: all idle, end"
_WARM_UP = "gpumagic: warming up"

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


class Tracing(Protocol):
    """A trace that is being taken."""

    def begin(self) -> None:
        """The window begins: all devices are idle, the user's code comes next."""

    def end(self) -> None:
        """The window ends: all devices are idle again; or it has been cut before."""

    def cut(self) -> bool:
        """End the window here, and keep nothing of what comes later."""

    def trace(self) -> Trace:
        """What was seen between begin and end; to be asked after the block."""

    def save(self, path: str | Path) -> None:
        """Write it as JSON for Perfetto and Chrome, once the block has ended."""


@contextlib.contextmanager
def trace(torch: Any, kind: str) -> Iterator[Tracing]:
    """Trace what torch does on the host and on one kind of device during a block."""
    torch_profiler.require_startable(torch)
    tracing = _ProfilerTracing(torch, kind)
    tracing.start()
    try:
        yield tracing
    finally:
        tracing.stop()


class _ProfilerTracing:
    """A `Tracing` by `torch.profiler`."""

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch = torch
        self._kind = kind
        self._module = None if kind == "cpu" else getattr(torch, kind, None)
        self._profile: Any = None
        self._expects_devices = False
        self._may_lose = False
        self._text: str | None = None
        self._problem = LOST
        self._began_ns = self._ended_ns = 0
        self._is_cut = False

    def start(self) -> None:
        """Start the profiler and let its first costs be paid."""
        if self._in_use() and torch_private.is_capturing(self._torch, self._kind):
            raise DeviceError(*CAPTURING)
        self._profile = torch_profiler.started(self._torch, self._kind)
        try:
            self._warm_up()
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                raise torch_profiler.not_started(error) from error
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
        if profile is None:
            return
        try:
            self._text = torch_profiler.exported(profile)
        except (RuntimeError, OSError) as error:
            self._lose(error)

    def _halt(self) -> None:
        """Let the profiler see no more; what it has seen can be told later."""
        profile, self._profile = self._profile, None
        if not torch_profiler.is_running(self._torch, unknown=True):
            return  # the code has ended ours by starting one of its own
        if not self._ended_ns:
            self._problem = UNENDED
            torch_profiler.stop_without_waiting(self._torch)
            return
        try:
            torch_profiler.stop(self._torch, profile)
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
        if self._text is None:
            return Trace((), length_s, *self._problem)
        try:
            seen = kineto.read(self._text, _BEGIN, _END)
        except ValueError:  # a mark is missing
            return Trace((), length_s, *LOST)
        problem, hint = self._lacking(seen)
        return Trace(
            seen.spans,
            seen.length_s,
            problem,
            hint,
            seen.operators,
            self._is_cut,
            seen.began_unix_ns,
        )

    def _lacking(self, seen: Reading) -> tuple[str, str] | tuple[None, None]:
        """Why devices are missing from it, at least in part."""
        if seen.sees_devices and self._may_lose and not seen.sees_earlier_work:
            return HEADLESS
        if seen.sees_devices or not self._expects_devices:
            return None, None
        if self._kind in torch_profiler.ACTIVITIES:
            return BLIND
        return (
            f"torch's profiler does not see devices of kind {self._kind!r}",
            "what is shown is the host's part",
        )

    def save(self, path: str | Path) -> None:
        """Write the profiler's own JSON, which has more than `trace` tells."""
        if self._text is None:
            raise DeviceError(*self._problem)
        Path(path).write_text(self._text, encoding="utf-8")

    def _warm_up(self) -> None:
        """Make the first mark, and let CUPTI come up (about 200 ms the first time).

        It is done within the session: an empty session before it, as a warm-up, can
        leave all later ones of the process blind.
        """
        self._mark(_WARM_UP)
        self._expects_devices = self._in_use()
        sees = torch_profiler.sees_devices(self._torch, self._kind)
        if self._module is None or not self._expects_devices or not sees:
            return
        spin = getattr(self._module, "_sleep", None)
        if spin is not None:
            # Kernels that need no memory: the counters stay as they are.
            first_ones = torch_profiler.kernels_to_lose(self._torch)
            for _ in range(first_ones):
                spin(0)
            self._may_lose = first_ones > 1
        else:
            self._torch.zeros(1, device=self._kind)
        self._module.synchronize()

    def _in_use(self) -> bool:
        if self._module is None:
            return False
        started = getattr(self._module, "is_initialized", None)
        return started is None or bool(started())

    def _mark(self, name: str) -> None:
        with self._torch.profiler.record_function(name):
            pass
