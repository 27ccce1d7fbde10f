"""What the host was in, moment by moment; why the device was idle; lanes to draw.

A timeline is what a thread did, one thing after the other: rows of beginning, end and
label that do not overlap, in nanoseconds.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gpumagic.devices.kineto import BACKWARD_NODE, kind_of_call, may_be_waited_for
from gpumagic.gpu_open.records import Idle
from gpumagic.report.events import Piece, SpanKind, merged, pooled
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.gpu_open.trace_file import HostEvent, TraceEvents, Work
    from gpumagic.report.events import PieceRow

_Label = TypeVar("_Label")
_Over = TypeVar("_Over")
Timeline: TypeAlias = "list[tuple[int, int, _Label]]"

STEP = "ProfilerStep#"
OPTIMIZER = "Optimizer.step#"
INPUT = "enumerate(DataLoader)#"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"

_NEVER = sys.maxsize, sys.maxsize, None
_MOST_NAMES = 8
_BETWEEN_NS = 10_000  # a kernel that waits in its queue begins within so much
_MOST_LANES, _HARDLY_BUSY = 3, 0.02  # of the busiest stream: such a one is not drawn
_MOST_SPANS = 240
_LONGEST_LABEL = 100  # templates have names of thousands
_CALLS = {SpanKind.LAUNCH: "launch", SpanKind.WAIT: "host waits"}

_Row: TypeAlias = "PieceRow[str, int]"

# A mark about nearly all that is seen says nothing of a moment.
_NEARLY_ALL = 0.9

_FRAME = re.compile(r"(?P<file>.+?)\(\d+\): .+", re.DOTALL)
_NOT_THE_USERS_FILE = re.compile(
    r"^<frozen |(^|[/\\])(site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]"
)
# The profiler leaves out where packages lie: what is left begins with their name.
_NOT_THE_USERS = sys.stdlib_module_names | {
    *("torch", "functorch", "torchaudio", "torchgen", "torchvision", "triton"),
    *("accelerate", "apex", "deepspeed", "lightning", "pytorch_lightning"),
    *("datasets", "diffusers", "timm", "transformers", "tqdm"),
    *("PIL", "numpy", "pandas", "scipy", "sklearn"),
    *("IPython", "ipykernel", "traitlets", "typing_extensions"),
    *("_distutils_hack", "pkg_resources", "setuptools"),
}


def by_thread(events: Iterable[HostEvent]) -> dict[Any, list[HostEvent]]:
    """The events of each thread, in their order."""
    threads: dict[Any, list[HostEvent]] = defaultdict(list)
    for event in events:
        threads[event[3]].append(event)
    return threads


def outermost(*lists: Sequence[Any]) -> Timeline[str]:
    """What no other encloses, of one thread; each list in order of beginning."""
    found: Timeline[str] = []
    start = until = -sys.maxsize
    rows = sorted(chain.from_iterable(lists), key=itemgetter(0))
    for row in rows:
        began, ended = row[0], row[1]
        if ended <= until:
            continue
        if began == start:  # it encloses what was thought to be outermost
            found[-1] = began, ended, row[2]
            until = ended
        # The middle tells: microseconds with a fraction are rounded at both ends.
        elif began + ended >= 2 * until:
            start, until = max(began, until), ended
            found.append((start, until, row[2]))
    return found


def innermost(events: Iterable[HostEvent]) -> Timeline[str]:
    """What no other is within at that moment, of one thread."""
    found: Timeline[str] = []
    open_ones: list[tuple[int, str]] = []
    at = 0

    def close(until: int) -> None:
        nonlocal at
        while open_ones and open_ones[-1][0] <= until:
            end, name = open_ones.pop()
            if end > at:
                found.append((at, end, name))
                at = end

    for start, end, name, _ in events:
        close(start)
        if open_ones and start > at:
            found.append((at, start, open_ones[-1][1]))
        open_ones.append((min(end, open_ones[-1][0]) if open_ones else end, name))
        at = start
    close(sys.maxsize)
    return found


def at(timeline: Timeline[str], moment_ns: int) -> str:
    """What the thread was in at a moment; "" where it was in nothing."""
    place = bisect_right(timeline, moment_ns, key=itemgetter(0)) - 1
    if place < 0 or timeline[place][1] <= moment_ns:
        return ""
    return timeline[place][2]


def overlaid(
    under: Timeline[_Label], over: Timeline[_Over]
) -> Iterator[tuple[int, int, _Label, _Over | None]]:
    """The parts of one timeline, each with what another has there."""
    tops = iter(over)
    top = next(tops, _NEVER)
    for start, end, label in under:
        at = start
        while top[0] < end:
            if top[1] > at:
                if top[0] > at:
                    yield at, top[0], label, None
                    at = top[0]
                until = min(top[1], end)
                yield at, until, label, top[2]
                at = until
            if top[1] > end:
                break
            top = next(tops, _NEVER)
        if at < end:
            yield at, end, label, None


# ------------------------------------------------------------------------- phases


class Phases:
    """Whether the host was in forward, backward or the optimizer.

    Backward are the nodes of autograd, and all else on a thread that it has to itself;
    the optimizer is what torch marks so. What comes before a backward, or after an
    optimizer and before the next backward, is forward; what comes between a backward
    and its optimizer is neither.
    """

    def __init__(self, events: TraceEvents) -> None:
        nodes = by_thread(
            each for each in events.operators if each[2].startswith(BACKWARD_NODE)
        )
        updates = by_thread(
            each for each in events.marks if each[2].startswith(OPTIMIZER)
        )
        self._own = set(nodes) - {events.main_thread}
        self._threads: dict[Any, Timeline[str]] = defaultdict(list)
        for phase, threads in ((BACKWARD, nodes), (UPDATE, updates)):
            for thread, its in threads.items():
                rows = ((start, end, phase) for start, end, _ in outermost(its))
                self._threads[thread] = sorted([*self._threads[thread], *rows])
        self._all = sorted(chain.from_iterable(self._threads.values()))
        # when the host waited for batches of a DataLoader
        self.input = merged(e[:2] for e in events.marks if e[2].startswith(INPUT))

    def during(self, call: HostEvent | None = None) -> str:
        """The phase that the host made a call in; "" where none is known."""
        if not call:
            return ""
        moment_ns, thread = call.start_ns, call.thread
        found = at(self._threads.get(thread, []), moment_ns)
        if found or thread in self._own:
            return found or BACKWARD
        if at(self._all, moment_ns):  # in another thread's: who knows for whom this is
            return ""
        following = bisect_right(self._all, moment_ns, key=itemgetter(0))
        coming = self._all[following : following + 1]
        return FORWARD * any(row[2] == BACKWARD for row in coming)


def is_users(name: str) -> bool:
    """Whether a Python function is the user's own, by its name in a trace."""
    frame = _FRAME.fullmatch(name)
    if not frame or _NOT_THE_USERS_FILE.search(frame["file"]):
        return False
    package = re.split(r"[/\\]", frame["file"], maxsplit=1)[0].removesuffix(".py")
    return package not in _NOT_THE_USERS


class Threads:
    """What each thread was in: outermost operators and calls, innermost functions."""

    def __init__(self, events: TraceEvents, length_ns: int) -> None:
        self._marks = by_thread(
            each
            for each in events.marks
            if each.end_ns - each.start_ns < _NEARLY_ALL * length_ns
            and not each.name.startswith(STEP)
        )
        self._operators, self.calls = (
            {thread: outermost(its) for thread, its in by_thread(rows).items()}
            for rows in (events.operators, events.calls)
        )
        self._frames = {
            thread: innermost(its) for thread, its in by_thread(events.python).items()
        }

    def layers(self, thread: Any) -> Iterator[Timeline[str]]:
        """What it was in, by what tells most; the next is for where the last does not.

        The outermost operator or mark; the call; the innermost function of the user's.
        """
        yield outermost(self._operators.get(thread, []), self._marks.get(thread, []))
        yield self.calls.get(thread, [])
        yield self._frames.get(thread, [])

    def worked(self, thread: Any) -> Timeline[str]:
        """What of it is known to be host code: operators, calls, torch's own marks."""
        marks = [
            each
            for each in self._marks.get(thread, [])
            if each.name.startswith((INPUT, OPTIMIZER))
        ]
        operators = self._operators.get(thread, [])
        return outermost(operators, marks, self.calls.get(thread, []))


# ------------------------------------------------------------------ why it was idle


def idle_of(work: Sequence[Work], threads: Threads) -> Idle:
    """Why nothing ran between the first work and the last, as `Idle` defines it."""
    late: dict[Any, Timeline[None]] = defaultdict(list)
    took_ns: Counter[str] = Counter()
    until_ns, ended = work[0].end_ns, [work[0]]  # the last to end, and when
    for first in work:
        start_ns, end_ns, call = first.start_ns, first.end_ns, first.call
        if start_ns > until_ns:
            launched_ns, why = until_ns, "unknown"
            if call:
                launched_ns = min(max(call.end_ns, until_ns), start_ns)
                if launched_ns > until_ns:
                    late[call.thread].append((until_ns, launched_ns, None))
                if _on_others(ended, first):
                    why = "other"
                elif start_ns - launched_ns <= _BETWEEN_NS:
                    took_ns["between"] += start_ns - launched_ns
            took_ns["late"] += launched_ns - until_ns
            took_ns[why] += start_ns - launched_ns
        if end_ns > until_ns:
            until_ns, ended = end_ns, [first]
        elif end_ns == until_ns:
            ended.append(first)
    late_s, other_s, unknown_s, between_s = (
        took_ns[why] / 1e9 for why in ("late", "other", "unknown", "between")
    )
    host_was_in = _host_was_in(late, threads)
    return Idle(late_s, other_s, unknown_s, host_was_in, between_s)


def _on_others(ended: Sequence[Work], begins: Work) -> bool:
    """Whether all that ended ran on other streams."""
    streams = {(each.device, each.stream) for each in ended}
    return (begins.device, begins.stream) not in streams


def _host_was_in(
    late: dict[Any, Timeline[None]], threads: Threads
) -> tuple[tuple[str, float], ...]:
    """What threads were in while they were late, the longest first."""
    took_ns: Counter[str] = Counter()
    for thread, stretches in late.items():
        left = stretches
        for layer in threads.layers(thread):
            parts, left = overlaid(left, layer), []
            for start, end, _, name in parts:
                if name:
                    took_ns[name] += end - start
                else:
                    left.append((start, end, None))
        took_ns[""] += sum(end - start for start, end, _ in left)
    longest = sorted(took_ns.items(), key=lambda each: (-each[1], each[0]))
    return tuple((name, ns / 1e9) for name, ns in longest[:_MOST_NAMES] if ns)


# ------------------------------------------------------------------ lanes to be drawn


def lanes_of(
    events: TraceEvents, threads: Threads, zero_ns: int
) -> tuple[tuple[str, tuple[Piece[str], ...]], ...]:
    """The host's lane, then those of the busiest streams, with few enough strokes."""

    def lane(name: str, rows: Sequence[_Row]) -> tuple[str, tuple[Piece[str], ...]]:
        pieces = (
            Piece(
                shortened(label, _LONGEST_LABEL),
                kind,
                (start - zero_ns) / 1e9,
                (end - zero_ns) / 1e9,
            )
            for label, kind, start, end in pooled(rows, _MOST_SPANS)
        )
        return name, tuple(pieces)

    def busy_ns(stream: tuple[str, Sequence[_Row]]) -> int:
        return sum(row[3] - row[2] for row in stream[1])

    hosts = [("host", rows)] if (rows := list(_host(threads, events))) else []
    streams = sorted(_streams(events.work), key=busy_ns, reverse=True)
    seen = streams[: _MOST_LANES - len(hosts)]
    worth = (e for e in seen if busy_ns(e) >= _HARDLY_BUSY * busy_ns(seen[0]))
    return tuple(lane(*each) for each in (*hosts, *worth))


def _streams(work: Sequence[Work]) -> Iterator[tuple[str, list[_Row]]]:
    """What each stream did, each moment once."""
    streams: dict[tuple[Any, Any], list[_Row]] = defaultdict(list)
    for name, kind, communicates, start, end, device, stream, *_ in work:
        rows = streams[device, stream]
        began = max(start, rows[-1][3]) if rows else start
        if end > began or not rows:
            what = "kernel" if kind is SpanKind.KERNEL else "copy"
            rows.append((name, "communication" if communicates else what, began, end))
    several = len({device for device, _ in streams}) > 1
    for (device, stream), rows in streams.items():
        yield f"device {device}, " * several + f"stream {stream}", rows


def _host(threads: Threads, events: TraceEvents) -> Iterator[_Row]:
    """What the main thread worked at, and where it launched and waited meanwhile."""
    main, kind_of = events.main_thread, cache(kind_of_call)
    calls = threads.calls.get(main, [])
    copies = (work for work in events.work if work[1] is SpanKind.COPY)
    copied = {  # calls that returned after their copy was done
        bisect_right(calls, work.call.start_ns, key=itemgetter(0)) - 1
        for work in copies
        if work.call
        and work.call.thread == main
        and work.end_ns <= work.call.end_ns
        and may_be_waited_for(work.name)
    }
    kinds: Timeline[tuple[str, str]] = []
    for place, (start, end, name) in enumerate(calls):
        if kind := kind_of(name, copied=place in copied):
            kinds.append((start, end, (name, _CALLS[kind])))
    for start, end, outer, call in overlaid(threads.worked(main), kinds):
        name, what = call or (outer, "host code")
        yield name, what, start, end
