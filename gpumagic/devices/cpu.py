"""What this process can do without an accelerator: the host clock, and no more."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Runtime

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpumagic.devices.tracing import Tracing

_CPUINFO = Path("/proc/cpuinfo")


class CpuRuntime(Runtime):
    """A `Runtime` on the host itself. It needs no torch."""

    def device_name(self, device: int) -> str | None:  # noqa: ARG002 -- there is one
        """What the maker calls it: Linux keeps that here, and seldom anywhere else."""
        try:
            lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        names = (
            line.partition(":")[2] for line in lines if line.startswith("model name")
        )
        return next(names, "").strip() or platform.processor() or None

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what torch does on the host during a block."""
        import torch

        from gpumagic.devices.tracing import trace

        return trace(torch, self.kind)
