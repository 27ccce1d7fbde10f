"""The GPUs of an examination, and how they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Gpu
    from gpumagic.gpu_doctor.report import Facts


def answering(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs that the driver can reach."""
    return tuple(gpu for gpu in facts.inventory.gpus if gpu.problem is None)


def in_words(gpus: Sequence[Gpu]) -> str:
    """How many GPUs, and of which models."""
    names = sorted({gpu.name or "unknown model" for gpu in gpus})
    return f"{count_text(len(gpus), 'GPU')} ({', '.join(names)})"
