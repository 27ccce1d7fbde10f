"""Says why nothing ran on the device: in exactly the words of `trace_records.Idle`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_open.host import overlaid
from gpumagic.gpu_open.trace_records import HostWork, Idle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_open.host import Threads, Timeline
    from gpumagic.gpu_open.trace_events import HostEvent, Work

_MOST_NAMES = 8
_BETWEEN_NS = 10_000  # a kernel that waits in its queue begins within so much


class Gap(NamedTuple):
    """A time without device work."""

    start_ns: int  # when the last work ended
    # the streams on which work ended at that moment
    after: set[tuple[int | None, int | None]]
    work: Work  # what began at its end


def gaps(work: Sequence[Work]) -> Iterator[Gap]:
    """The times without work, between the first and the last."""
    if not work:
        return
    until, ended = work[0].end_ns, {_stream(work[0])}
    for each in work:
        start, end = each.start_ns, each.end_ns
        if start > until:
            yield Gap(until, ended, each)
        if end > until:
            until, ended = end, {_stream(each)}
        elif end == until:
            ended.add(_stream(each))


def _stream(work: Work) -> tuple[int | None, int | None]:
    return work.device, work.stream


def idle_of(work: Sequence[Work], calls: Sequence[HostEvent], threads: Threads) -> Idle:
    """Why nothing ran."""
    late: dict[int, Timeline[None]] = defaultdict(list)
    late_ns = other_ns = unknown_ns = unlaunched_ns = between_ns = 0
    for start_ns, after, first in gaps(work):
        gap_ns = first.start_ns - start_ns
        if first.call is None:
            unknown_ns += gap_ns
            unlaunched_ns += gap_ns
            continue
        call = calls[first.call]
        launched_ns = min(call.end_ns, first.start_ns)
        if launched_ns > start_ns:
            late[call.thread].append((start_ns, launched_ns, None))
            late_ns += launched_ns - start_ns
            gap_ns = first.start_ns - launched_ns
        if _on_others(after, first):
            other_ns += gap_ns
        else:
            unknown_ns += gap_ns
            between_ns += gap_ns if gap_ns <= _BETWEEN_NS else 0
    was_in = _host_was_in(late, threads)
    return Idle(
        late_ns / 1e9,
        other_ns / 1e9,
        unknown_ns / 1e9,
        was_in,
        unlaunched_s=unlaunched_ns / 1e9,
        between_s=between_ns / 1e9,
    )


def _on_others(ended: set[tuple[int | None, int | None]], begins: Work) -> bool:
    """Whether all that ended is known to have run on other streams."""
    known = begins.stream is not None and all(stream is not None for _, stream in ended)
    return known and _stream(begins) not in ended


def _host_was_in(
    late: dict[int, Timeline[None]], threads: Threads
) -> tuple[HostWork, ...]:
    """What threads were in while they were late, the longest first."""
    took_ns: Counter[str | None] = Counter()
    for thread, stretches in late.items():
        rest = stretches
        for layer in threads.layers(thread):
            rest = _untold(rest, layer, took_ns)
        took_ns[None] += sum(end - start for start, end, _ in rest)
    longest = sorted(took_ns.items(), key=lambda each: (-each[1], each[0] or ""))
    return tuple(HostWork(name, ns / 1e9) for name, ns in longest[:_MOST_NAMES] if ns)


def _untold(
    stretches: Timeline[None], layer: Timeline[str], took_ns: Counter[str | None]
) -> Timeline[None]:
    """Add up what a layer tells of stretches, and give back where it tells nothing."""
    rest: Timeline[None] = []
    for start, end, _, name in overlaid(stretches, layer):
        if name is None:
            rest.append((start, end, None))
        else:
            took_ns[name] += end - start
    return rest
