"""Says why nothing ran on the device: in exactly the words of `trace_records.Idle`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_open.host import overlaid
from gpumagic.gpu_open.trace_records import HostWork, Idle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.gpu_open.host import Threads, Timeline
    from gpumagic.gpu_open.trace_events import HostEvent, Work

_MOST_NAMES = 8
_BETWEEN_NS = 10_000  # a kernel that waits in its queue begins within so much


def idle_of(work: Sequence[Work], calls: Sequence[HostEvent], threads: Threads) -> Idle:
    """Why nothing ran, between the first work and the last."""
    late: dict[Any, Timeline[None]] = defaultdict(list)
    late_ns = other_ns = unknown_ns = between_ns = 0
    until_ns, ended = work[0].end_ns, [work[0]]  # the last to end, and when
    for first in work:
        start_ns, end_ns = first[3], first[4]
        if start_ns > until_ns:
            gap_ns = start_ns - until_ns
            if first.call is None:
                unknown_ns += gap_ns
            else:
                call = calls[first.call]
                launched_ns = min(call.end_ns, start_ns)
                if launched_ns > until_ns:
                    late[call.thread].append((until_ns, launched_ns, None))
                    late_ns += launched_ns - until_ns
                    gap_ns = start_ns - launched_ns
                if _on_others(ended, first):
                    other_ns += gap_ns
                else:
                    unknown_ns += gap_ns
                    between_ns += gap_ns if gap_ns <= _BETWEEN_NS else 0
        if end_ns > until_ns:
            until_ns, ended = end_ns, [first]
        elif end_ns == until_ns:
            ended.append(first)
    return Idle(
        late_ns / 1e9,
        other_ns / 1e9,
        unknown_ns / 1e9,
        _host_was_in(late, threads),
        between_s=between_ns / 1e9,
    )


def _on_others(ended: Sequence[Work], begins: Work) -> bool:
    """Whether all that ended is known to have run on other streams."""
    return begins.stream is not None and all(
        each.stream is not None
        and (each.device, each.stream) != (begins.device, begins.stream)
        for each in ended
    )


def _host_was_in(
    late: dict[Any, Timeline[None]], threads: Threads
) -> tuple[HostWork, ...]:
    """What threads were in while they were late, the longest first."""
    took_ns: Counter[str | None] = Counter()
    for thread, stretches in late.items():
        left = stretches
        for layer in threads.layers(thread):
            parts, left = overlaid(left, layer), []
            for start, end, _, name in parts:
                if name is None:
                    left.append((start, end, None))
                else:
                    took_ns[name] += end - start
        took_ns[None] += sum(end - start for start, end, _ in left)
    longest = sorted(took_ns.items(), key=lambda each: (-each[1], each[0] or ""))
    return tuple(HostWork(name, ns / 1e9) for name, ns in longest[:_MOST_NAMES] if ns)
