"""What this process can do without an accelerator: the host clock, and no more.

The CPU has done its work by the time a call returns. So there is nothing to wait
for, an event is a reading of the clock, and there are neither streams nor counters.
"""

# ruff: noqa: ARG002 -- the protocol names a device, a stream, a tensor; here is one

from __future__ import annotations

import contextlib
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import SeenRace, SyncCall

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class HostEvent:
    """A reading of the host clock in the place of a device event."""

    at_ns: int = field(default_factory=time.perf_counter_ns)


class CpuRuntime:
    """A `Runtime` on the host itself. It needs no torch."""

    kind = "cpu"
    simulated = False

    def started(self) -> bool:
        """Always: asking a CPU starts nothing."""
        return True

    def device_count(self) -> int | None:
        """One, however many cores: torch has a single CPU device."""
        return 1

    def device_name(self, device: int) -> str | None:
        """What the maker calls it, where the system tells."""
        return _model_name() or platform.processor() or None

    def devices_in_use(self) -> tuple[int, ...]:
        """The one device."""
        return (0,)

    def current_device(self) -> int | None:
        """The one device."""
        return 0

    def now_ns(self) -> int:
        """The clock of this machine."""
        return time.perf_counter_ns()

    def synchronize(self) -> None:
        """Return at once: what was called is done."""

    def current_stream(self, device: int) -> Any | None:
        """None: there are no streams."""
        return None

    def on_stream(self, stream: Any | None) -> AbstractContextManager[Any]:
        """A block that changes nothing."""
        return contextlib.nullcontext()

    def record(self, stream: Any | None) -> Any | None:
        """The host clock now."""
        return HostEvent()

    def reached(self, event: Any | None) -> bool:
        """Always: the clock has passed it."""
        return True

    def wait(self, event: Any | None) -> None:
        """Return at once."""

    def elapsed_s(self, start: Any | None, end: Any | None) -> float | None:
        """Host time between two events."""
        if start is None or end is None:
            return None
        return float(end.at_ns - start.at_ns) / 1e9

    def memory_stats(self, device: int) -> Mapping[str, Any] | None:
        """None: torch does not count host memory."""
        return None

    def memory_snapshot(self) -> list[dict[str, Any]] | None:
        """None: torch does not count host memory."""
        return None

    def memory_bytes(self, device: int) -> tuple[int, int] | None:
        """None: the RAM is not this device's own."""
        return None

    def can_pin(self) -> bool:
        """Never: memory is page-locked for a device that fetches it."""
        return False

    def pin(self, tensor: Any) -> Any:
        """Never possible."""
        raise DeviceError(
            "memory is page-locked for an accelerator to fetch, and none is used here",
            "leave pin_memory off: on a CPU it saves no copy",
        )

    def is_pinned(self, tensor: Any) -> bool:
        """False: none is page-locked for this device."""
        return False

    def watch_syncs(self) -> AbstractContextManager[list[SyncCall]]:
        """An empty list: there is nothing to wait for."""
        return contextlib.nullcontext([])

    def watch_races(self) -> AbstractContextManager[list[SeenRace]]:
        """An empty list: one call is done before the next begins."""
        return contextlib.nullcontext([])

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what torch does on the host during a block."""
        import torch

        from gpumagic.devices.tracing import trace

        return trace(torch, self.kind)


def _model_name() -> str | None:
    """Linux keeps the name here; `platform.processor()` is often empty there."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip() or None
