"""All that looks on while a training cell runs; what cannot look on says why."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.devices.copy_watch import copies_watched
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.watched.data_waits import waits_watched
from gpumagic.pin_loader.watched.seen_loaders import SeenWaits
from gpumagic.pin_loader.watched.traced_copies import TracedCopies, traced_copies

if TYPE_CHECKING:
    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import SeenRace

_ANEW = "run the cell again: by then it is there"
_WITHOUT = "everything else in this report holds"


class Missing(NamedTuple):
    """Why there is no trace, and what to do."""

    problem: str
    hint: str


class Watchers:
    """Looks at copies, waits for data, races, and the trace.

    Attributes:
        copies: What was copied to a device; None where nobody could look.

        waits: What was waited for.

        races: What the simulator has found.

        remarks: What could not be looked at.

        untraced: Why there is no trace; None where there is one, or nothing to trace.
    """

    def __init__(self) -> None:
        self.copies: list[SeenCopy] | None = None
        self.waits = SeenWaits()
        self.races: list[SeenRace] = []
        self.remarks: list[Remark] = []
        self.untraced: Missing | None = None
        self._watching = ExitStack()
        self._tracer = ExitStack()
        self._tracing: Tracing | None = None
        self._saw_torch = False

    def start_tracing(self, runtime: Runtime) -> None:
        """Trace from now on; it may leave work on the device that is to be waited for.

        torch's own tracer would start the device, where that has not been done yet.
        """
        if not (runtime.simulated or (runtime.kind != "cpu" and runtime.started())):
            return
        try:
            self._tracing = self._tracer.enter_context(runtime.trace())
        except DeviceError as error:
            self.untraced = _untraced(error)

    def start_watching(self, runtime: Runtime) -> None:
        """Look on from now on."""
        torch = loaded_torch()
        if torch is None:
            return
        self._saw_torch = True
        try:
            watched = waits_watched(torch, _pinning_ns)
            self.waits = self._watching.enter_context(watched)
        except GpuMagicError as error:
            self.remarks.append(Remark(error.problem, error.hint or ""))
        if runtime.kind != "cpu":
            self._watch_copies(torch, runtime)
        if self._tracing is not None:
            self._tracing.begin()

    def _watch_copies(self, torch: object, runtime: Runtime) -> None:
        try:
            watched = copies_watched(torch, runtime.kind)
            self.copies = self._watching.enter_context(watched)
        except DeviceError as error:
            self.remarks.append(Remark(error.problem, error.hint or ""))
        if not runtime.simulated:
            return  # torch's own search for races makes each operation slow
        with suppress(DeviceError):  # the user has said that none are looked for
            self.races = self._watching.enter_context(runtime.watch_races())

    def stop_watching(self) -> None:
        """Look on no more: what follows is ours."""
        self._watching.close()

    def stop_tracing(self, runtime: Runtime) -> None:
        """All devices are idle again: the trace ends here.

        Args:
            runtime: What the cell turned out to run on.
        """
        if not self._saw_torch and loaded_torch() is not None:
            self.remarks.append(
                Remark("this cell itself has imported torch: nobody looked on", _ANEW)
            )
        if self._tracing is None:
            used = runtime.kind != "cpu" and runtime.started()
            if used and self.untraced is None:
                self.untraced = Missing(
                    "this cell itself has started the device: there is no trace of it",
                    _ANEW,
                )
            return
        try:
            with self._tracer:
                self._tracing.end()
        except RuntimeError as error:  # a broken device: the rest is true without it
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._tracing = None
            self.untraced = Missing(f"the trace is lost: {reason}", _WITHOUT)

    def close(self) -> None:
        """Let none of them run on, however the cell has ended."""
        with self._tracer, self._watching:
            pass

    def traced(self) -> TracedCopies | None:
        """The sums of the trace; None where there is none."""
        if self._tracing is None:
            return None
        trace, self._tracing = self._tracing.trace(), None
        if trace.problem is not None:
            self.untraced = Missing(trace.problem, _without_option(trace.hint))
            return None
        return traced_copies(trace)


def _pinning_ns() -> int:
    """How long the simulated machine has been pinning; 0 where there is none."""
    return getattr(simulated_box(), "pinning_ns", 0)


def _untraced(error: DeviceError) -> Missing:
    return Missing(error.problem, _without_option(error.hint))


def _without_option(hint: str | None) -> str:
    """A hint that is not about an option of another magic."""
    return _WITHOUT if hint is None or "--profile" in hint else hint
