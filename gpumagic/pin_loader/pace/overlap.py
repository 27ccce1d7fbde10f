"""How much of the copying to a device ran beside its kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.events import SpanKind, Window, seconds_busy

if TYPE_CHECKING:
    from gpumagic.report.events import Trace, TraceSpan

# `Memcpy HtoD (Pinned -> Device)`; AMD and Intel tell the direction only.
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|H2D|M2D")
_PAGEABLE = re.compile(r"\(\s*Pageable\b")
_KNOWN_MEMORY = re.compile(r"\(\s*(Pageable|Pinned)\b")


@dataclass(frozen=True)
class Copying:
    """The copies to one device in a trace.

    Attributes:
        copying_s: How long at least one was under way.

        hidden_s: How much of that ran beside a kernel of the same device.

        nbytes: What they moved; None is unknown.

        pageable_share: The share of it that came from pageable memory.
    """

    copies: int
    copying_s: float
    hidden_s: float
    nbytes: int | None = None
    pageable_share: float | None = None

    @property
    def overlap(self) -> float | None:
        """The share of copying that was hidden; None where nothing was copied."""
        return self.hidden_s / self.copying_s if self.copying_s > 0 else None


def copying_of(trace: Trace, device: int) -> Copying:
    """What a trace says of the copies to a device.

    Args:
        trace: What was seen; what lies outside of its window does not count.

        device: Its number.
    """
    own = [span for span in trace.spans if span.device == device]
    copies = [span for span in own if is_to_device(span)]
    window = Window(trace.length_s)
    copying = window.merged(copies)
    kernels = window.merged(each for each in own if each.kind is SpanKind.KERNEL)
    sizes = [span.nbytes for span in copies]
    known = [size for size in sizes if size is not None]
    return Copying(
        copies=len(copies),
        copying_s=seconds_busy([copying], at_once=1),
        hidden_s=seconds_busy([copying, kernels], at_once=2),
        nbytes=sum(known) if len(known) == len(sizes) else None,
        pageable_share=_pageable_share(copies),
    )


def is_to_device(span: TraceSpan) -> bool:
    """Whether a span is a copy from the host to a device."""
    return span.kind is SpanKind.COPY and bool(_TO_DEVICE.search(span.name))


def is_pageable(span: TraceSpan) -> bool | None:
    """Whether a copy to a device came from pageable memory; None is unknown."""
    if not _KNOWN_MEMORY.search(span.name):
        return None
    return bool(_PAGEABLE.search(span.name))


def estimated(
    wait_s: float, copy_s: float, compute_s: float, step_s: float
) -> float | None:
    """The share of copying, or of compute if that is shorter, that was hidden.

    It is what a step would take more if nothing ran at once. Waiting for data begins
    when the step before has been submitted: only what exceeds compute adds to a step.

    Args:
        wait_s: How long a step stands still for its batch.

        copy_s: The copy on its own.

        compute_s: Compute on its own.

        step_s: A whole step, from end to end.

    Returns:
        From 0 to 1; None where there is nothing that could overlap.
    """
    shorter_s = min(copy_s, compute_s)
    if shorter_s <= 0:
        return None
    apart_s = max(wait_s - compute_s, 0.0) + copy_s + compute_s
    return min(max((apart_s - step_s) / shorter_s, 0.0), 1.0)


def _pageable_share(copies: list[TraceSpan]) -> float | None:
    """By bytes; None where a name or a size is missing."""
    total = pageable = 0
    for span in copies:
        from_pageable = is_pageable(span)
        if from_pageable is None or span.nbytes is None:
            return None
        total += span.nbytes
        pageable += span.nbytes if from_pageable else 0
    return pageable / total if total else None
