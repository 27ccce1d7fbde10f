"""A run that looks for missing waits between streams, and claims no time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.once import error_line
from gpumagic.cuda_sync_time.report import RaceReport

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.report.events import Code, SeenRace


class RaceRun:
    """One run between two moments, with the race detector on.

    Args:
        instruments: Where the runtime is found; torch is imported for it.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._runtime = instruments.torch_runtime()
        self._watch = ExitStack()
        self._races: list[SeenRace] = []
        self._failed: str | None = None

    def begin(self) -> None:
        """Wait for all earlier work, and look from now on.

        Raises:
            DeviceError: This kind of device cannot be watched.
        """
        self._runtime.synchronize()
        self._races = self._watch.enter_context(self._runtime.watch_races())

    def end(self, *, error: BaseException | None = None) -> None:
        """Look no longer."""
        self._watch.close()
        self._failed = error_line(error)

    def report(self, code: Code) -> RaceReport:
        """What was seen."""
        runtime = self._runtime
        on_device = runtime.kind != "cpu"
        watcher = "the simulated GPU" if runtime.simulated else "torch's sanitizer"
        return RaceReport(
            code=code,
            setting=self._instruments.setting(runtime),
            races=tuple(self._races),
            watcher=watcher if on_device else "",
            failed=self._failed,
            problem=None if on_device else _NO_STREAMS,
            hint=None if on_device else _SIMULATE,
        )


_NO_STREAMS = "on the CPU one call is done before the next begins: nothing can race"
_SIMULATE = (
    'gpumagic.simulate("h100") gives streams that can; its device is called "sim"'
)
