"""How much of its copying a loop hides behind kernels: from a trace, or estimated."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.errors import DeviceError
from gpumagic.pin_loader.report import Remark
from gpumagic.report import robust
from gpumagic.report.events import SpanKind, Window, seconds_busy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.loops import Loop
    from gpumagic.pin_loader.report import CopyMode, Rates, Step
    from gpumagic.report.events import Interval, Trace, TraceSpan

_TRACED_STEPS = 10
# `Memcpy HtoD (Pinned -> Device)`; AMD and Intel tell the direction only.
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|H2D|M2D")
_PAGEABLE = re.compile(r"\(\s*Pageable\b")
_KNOWN_MEMORY = re.compile(r"\(\s*(Pageable|Pinned)\b")


def traced(
    loop: Loop, runtime: Runtime, device: int | None, remarks: list[Remark]
) -> Copying | None:
    """What a trace says of some steps; it is taken apart, since it costs time."""
    if device is None:
        return None
    try:
        with runtime.trace() as tracing:
            loop.run(_TRACED_STEPS, begin=tracing.begin, end=tracing.end)
        seen = tracing.trace()
    except DeviceError as error:
        remarks.append(
            Remark(f"the overlap was not traced: {error.problem}", error.hint)
        )
        return None
    if seen.problem is not None:
        remarks.append(
            Remark(f"the overlap was not traced: {seen.problem}", seen.hint or "")
        )
        return None
    return copying_of(seen, device)


def estimates(
    rates: Rates,
    pairs: list[tuple[float, float]],
    waits_s: list[float],
    *,
    pinned: bool,
) -> tuple[float | None, float | None]:
    """The overlap without a trace, from the times alone.

    Args:
        rates: How long copy and compute take on their own.

        pairs: Seconds for a step, old and new.

        waits_s: How long a step waited for its batch, old and new.

        pinned: Whether batches of the old loader are pinned.
    """
    modes = (
        rates.copy(pinned=pinned, blocking=True),
        rates.copy(pinned=True, blocking=False),
    )
    steps_s = (robust.median(seconds) for seconds in zip(*pairs, strict=True))
    old, new = map(_estimate, (rates.step,) * 2, modes, waits_s, steps_s)
    return old, new


def _estimate(
    step: Step | None, mode: CopyMode | None, wait_s: float, step_s: float
) -> float | None:
    if step is None or mode is None:
        return None
    # What a blocking copy takes is what the host sees; else only the device knows.
    copy = mode.host if mode.blocking or mode.device is None else mode.device
    return estimated(wait_s, copy.median_s, step.samples.median_s, step_s)


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


class TracedCopies(NamedTuple):
    """Each moment counts once, whichever device was at it.

    Attributes:
        copying_s: How long copies from the host to a device were under way.

        hidden_s: How long such a copy ran beside a kernel of the same device.

        kernel_s: How long at least one kernel ran.
    """

    copying_s: float
    hidden_s: float
    kernel_s: float


def traced_copies(trace: Trace) -> TracedCopies:
    """Add up what a trace has of copies to devices."""
    window = Window(trace.length_s)
    copies = _by_device(trace, window, is_to_device)
    kernels = _by_device(trace, window, _is_kernel)
    both = [_shared(spans, kernels.get(device, [])) for device, spans in copies.items()]
    return TracedCopies(
        copying_s=seconds_busy(copies.values(), at_once=1),
        hidden_s=seconds_busy(both, at_once=1),
        kernel_s=seconds_busy(kernels.values(), at_once=1),
    )


def _is_kernel(span: TraceSpan) -> bool:
    return span.kind is SpanKind.KERNEL


def _by_device(
    trace: Trace, window: Window, wanted: Callable[[TraceSpan], bool]
) -> dict[int | None, list[Interval]]:
    spans: dict[int | None, list[TraceSpan]] = defaultdict(list)
    for span in filter(wanted, trace.spans):
        spans[span.device].append(span)
    return {device: window.merged(found) for device, found in spans.items()}


def _shared(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Where both are; each is in order and apart from its neighbours."""
    shared, here, there = [], 0, 0
    while here < len(first) and there < len(second):
        start_s = max(first[here][0], second[there][0])
        end_s = min(first[here][1], second[there][1])
        if start_s < end_s:
            shared.append((start_s, end_s))
        if first[here][1] <= second[there][1]:
            here += 1
        else:
            there += 1
    return shared
