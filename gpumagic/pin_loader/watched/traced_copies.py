"""How much of the copying to devices ran beside kernels, from a trace."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.pin_loader.pace.overlap import is_to_device
from gpumagic.report.events import SpanKind, Window, seconds_busy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.report.events import Interval, Trace, TraceSpan


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
