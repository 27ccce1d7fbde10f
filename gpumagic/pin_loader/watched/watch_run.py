"""A training cell that is watched, from all devices idle to all devices idle.

It is told as two calls round the user's code and not as a function that is given the
code, because a cell may be awaited between them, or end in an error.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.records.setting import Setting
from gpumagic.pin_loader.watched.last_idle import first_line, wait_until_idle
from gpumagic.pin_loader.watched.watch_findings import Ended, Findings
from gpumagic.pin_loader.watched.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.report import WatchReport
    from gpumagic.report.events import Code


class WatchRun:
    """Watches what runs between `begin` and `end`.

    Attributes:
        late_error: What the wait at the end has raised, if the code itself has not:
            an error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        open_runtime: The best runtime that there is at the moment.

        names: What the notebook calls its objects.

        only: The name of the one loader whose waits are wanted; None wants all.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        names: Callable[[], Mapping[str, object]],
        *,
        only: str | None = None,
    ) -> None:
        self.late_error: BaseException | None = None
        self._open_runtime = open_runtime
        self._names = names
        self._only = only
        self._runtime: Runtime = CpuRuntime()
        self._watchers = Watchers()
        self._machine: Any = None
        self._device_ns = self._host_ns = 0
        self._findings: Findings | None = None

    def begin(self) -> None:
        """Wait until all devices are idle, and look on from now on.

        Raises:
            DeviceError: The devices cannot be waited for, since an earlier cell has
                broken them. Everything is as before.
        """
        self._runtime, self._machine = self._open_runtime(), simulated_box()
        with ExitStack() as undo:
            undo.callback(self._watchers.close)
            try:
                wait_until_idle(self._runtime)
                self._watchers.start_tracing(self._runtime)
                wait_until_idle(self._runtime)  # what the tracer has tried out
            except RuntimeError as error:
                raise _broken(error) from error
            self._watchers.start_watching(self._runtime)
            undo.pop_all()
        self._host_ns = time.perf_counter_ns()
        self._device_ns = self._runtime.now_ns()

    def end(self, error: BaseException | None = None) -> None:
        """Wait until all devices are idle again, and look on no more.

        An error of the code is not raised here; see `late_error` for those that come
        to light only now.

        Args:
            error: What the code has raised.
        """
        try:
            begun, self._runtime = self._runtime, self._runtime_at_end()
            if error is None:
                self._wait()
            host_ns, device_ns = time.perf_counter_ns(), self._runtime.now_ns()
            self._watchers.stop_watching()
            self._watchers.stop_tracing(self._runtime)
        finally:
            self._watchers.close()
        host_s = elapsed_s = (host_ns - self._host_ns) / 1e9
        if self._runtime.simulated and begun.simulated and self._same_machine():
            elapsed_s = (device_ns - self._device_ns) / 1e9
        self._findings = Findings(
            self._watchers,
            self._names(),
            self._only,
            Ended(
                self._setting(),
                elapsed_s,
                host_s,
                _error_line(error or self.late_error),
            ),
        )

    def report(self, code: Code) -> WatchReport:
        """What was seen, once it has ended.

        Args:
            code: What was watched.
        """
        if self._findings is None:
            raise RuntimeError("this run has not ended")
        return self._findings.report(code)

    # ------------------------------------------------------------------ the end

    def _runtime_at_end(self) -> Runtime:
        """The runtime of the beginning, or that of a device the cell has started."""
        if not self._same_machine():
            # Its clock says nothing of this time, and its tensors are gone.
            return self._open_runtime() if simulated_box() else CpuRuntime()
        if self._runtime.kind != "cpu":
            return self._runtime
        found = self._open_runtime()
        return found if found.started() else self._runtime

    def _same_machine(self) -> bool:
        return simulated_box() is self._machine

    def _wait(self) -> None:
        try:
            wait_until_idle(self._runtime)
        except (RuntimeError, KeyboardInterrupt) as failure:
            self.late_error = failure

    def _setting(self) -> Setting:
        runtime, torch = self._runtime, loaded_torch()
        device = name = None
        try:
            device = None if runtime.kind == "cpu" else runtime.current_device()
            name = runtime.device_name(device or 0)
        except RuntimeError:  # a device in error answers nothing any more
            pass
        version = getattr(torch, "__version__", None)
        box = simulated_box() if runtime.simulated else None
        return Setting(
            kind=word_of(runtime.kind),
            label=str(getattr(box, "label", "")),
            device=device,
            device_name=name,
            torch_version=None if version is None else str(version),
        )


def _error_line(error: BaseException | None) -> str | None:
    """An error as one line, "ValueError: text"; None if there is none."""
    if error is None:
        return None
    text, name = first_line(error), type(error).__name__
    return name if text == name else f"{name}: {text}"


def _broken(error: BaseException) -> DeviceError:
    return DeviceError(
        f"an earlier cell has left an error on the device: {first_line(error)}",
        "if that is still so when you run this again, restart the kernel: "
        "CUDA does not recover from it",
    )
