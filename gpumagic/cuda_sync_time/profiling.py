"""What a trace adds up to: who was busy, what ran at once, what was hidden.

Everything is summed from the intervals themselves. Tables that add up durations
count twice what ran at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.records.profile import Profile, StreamShare, TopKernel
from gpumagic.report.events import DEVICE_KINDS, SpanKind, Window, seconds_busy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.report.events import Trace, TraceSpan

    Queue: TypeAlias = tuple[int, int | None]  # a device, one of its streams

MOST_KERNELS = 12
# CUDA holds 1,024 entries of a stream; some of them are waits and marks of events,
# which no profiler shows.
FULL_QUEUE = 1000


def profile_of(trace: Trace, *, saved_as: str | None = None) -> Profile:
    """Sum up a trace.

    Args:
        trace: What was seen; what lies outside of its window does not count.

        saved_as: The file that holds all of it, if there is one.
    """
    work = [span for span in trace.spans if span.kind in DEVICE_KINDS]
    window = Window(trace.length_s)
    queues = _by_queue(work)
    busy = {queue: window.merged(spans) for queue, spans in queues.items()}
    copies = window.merged(each for each in work if each.kind is SpanKind.COPY)
    kernels = window.merged(each for each in work if each.kind is SpanKind.KERNEL)
    return Profile(
        length_s=trace.length_s,
        spans=trace.spans,
        busy_s=seconds_busy(busy.values(), at_once=1),
        overlapped_s=seconds_busy(busy.values(), at_once=2),
        copying_s=seconds_busy([copies], at_once=1),
        hidden_copy_s=seconds_busy([copies, kernels], at_once=2),
        launches=len(work),
        in_flight=max(map(_most_in_flight, queues.values()), default=0) or None,
        streams=tuple(
            StreamShare(
                *queue, len(queues[queue]), seconds_busy([busy[queue]], at_once=1)
            )
            for queue in sorted(queues, key=_in_order)
        ),
        kernels=_top_kernels(work, window),
        problem=trace.problem,
        hint=trace.hint,
        saved_as=saved_as,
    )


def flags_of(profile: Profile) -> tuple[Flag, ...]:
    """What a reader has to know of a profile: that launching became waiting."""
    if profile.in_flight is None or profile.in_flight < FULL_QUEUE:
        return ()
    return (Flag(FlagKind.QUEUE_FULL, amount=profile.in_flight),)


def _by_queue(work: Iterable[TraceSpan]) -> dict[Queue, list[TraceSpan]]:
    queues: defaultdict[Queue, list[TraceSpan]] = defaultdict(list)
    for span in work:
        queues[span.device or 0, span.stream].append(span)
    return dict(queues)


def _in_order(queue: Queue) -> tuple[int, bool, int]:
    """Devices and streams by their numbers, a stream without one last."""
    device, stream = queue
    return device, stream is None, stream or 0


def _most_in_flight(spans: Iterable[TraceSpan]) -> int:
    """The most that one stream held at a moment, launched and not yet done."""
    steps = [
        step
        for span in spans
        if span.launched_s is not None
        # At one moment what is done leaves before what is launched comes.
        for step in ((span.launched_s, 1), (max(span.end_s, span.launched_s), -1))
    ]
    steps.sort()
    most = held = 0
    for _, step in steps:
        held += step
        most = max(most, held)
    return most


def _top_kernels(work: Iterable[TraceSpan], window: Window) -> tuple[TopKernel, ...]:
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for span in work:
        start_s, end_s = window.cut(span)
        seconds[span.name, span.kind.value].append(end_s - start_s)
    kernels = [
        TopKernel(name, kind, len(each), sum(each), max(each))
        for (name, kind), each in seconds.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.total_s, kernel.name))
    return tuple(kernels[:MOST_KERNELS])
