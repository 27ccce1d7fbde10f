"""What each thread of the host was in: moment by moment, as far as the trace knows.

A timeline is what a thread did, one thing after the other: rows of beginning, end and
label that do not overlap, in nanoseconds.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpumagic.devices.kineto import BACKWARD_NODE
from gpumagic.report.events import length, merged
from gpumagic.report.places import CodeLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.gpu_open.trace_events import HostEvent, TraceEvents, Work

_Label = TypeVar("_Label")
_Over = TypeVar("_Over")
Timeline: TypeAlias = "list[tuple[int, int, _Label]]"

STEP = "ProfilerStep#"
OPTIMIZER = "Optimizer.step#"
INPUT = "enumerate(DataLoader)#"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"

# A mark about nearly all that host or device did says nothing of a moment.
_NEARLY_ALL = 0.9

_FRAME = re.compile(r"(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
_INSTALLED = re.compile(
    r"(^|[/\\])(site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]"
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


def by_thread(events: Iterable[HostEvent]) -> dict[int, list[HostEvent]]:
    """The events of each thread, in their order."""
    threads: dict[int, list[HostEvent]] = defaultdict(list)
    for event in events:
        threads[event[3]].append(event)
    return threads


def together(*events: Sequence[HostEvent]) -> list[HostEvent]:
    """Lists of one thread as one, in order of beginning."""
    return sorted((each for some in events for each in some), key=_start_ns)


_start_ns = attrgetter("start_ns")


def outermost(events: Iterable[HostEvent]) -> Timeline[str]:
    """What no other encloses, of one thread and in order of beginning."""
    found: Timeline[str] = []
    start = until = -sys.maxsize
    for event in events:
        began, ended = event.start_ns, event.end_ns
        if ended <= until:
            continue
        if began == start:  # it encloses what was thought to be outermost
            found[-1] = began, ended, event.name
            until = ended
        # The middle tells: microseconds with a fraction are rounded at both ends.
        elif began + ended >= 2 * until:
            start, until = max(began, until), ended
            found.append((start, until, event.name))
    return found


def innermost(events: Iterable[HostEvent]) -> Timeline[str]:
    """What no other is within at that moment, of one thread."""
    found: Timeline[str] = []
    open_ones: list[tuple[int, str]] = []
    at = 0
    for event in events:
        at = _closed(found, open_ones, at, event.start_ns)
        if open_ones and event.start_ns > at:
            found.append((at, event.start_ns, open_ones[-1][1]))
        outer_ns = open_ones[-1][0] if open_ones else event.end_ns
        open_ones.append((min(event.end_ns, outer_ns), event.name))
        at = event.start_ns
    _closed(found, open_ones, at, sys.maxsize)
    return found


def _closed(
    found: Timeline[str], open_ones: list[tuple[int, str]], at: int, until: int
) -> int:
    """Write down what ends until then; since when nothing is written."""
    while open_ones and open_ones[-1][0] <= until:
        end, name = open_ones.pop()
        if end > at:
            found.append((at, end, name))
            at = end
    return at


def place_at(timeline: Timeline[_Label], moment_ns: int) -> int | None:
    """Which row of a timeline a moment lies in."""
    place = bisect_right(timeline, moment_ns, key=_began) - 1
    return place if place >= 0 and timeline[place][1] > moment_ns else None


_began = itemgetter(0)


def at(timeline: Timeline[_Label], moment_ns: int) -> _Label | None:
    """What the thread was in at a moment."""
    place = place_at(timeline, moment_ns)
    return None if place is None else timeline[place][2]


def overlaid(
    under: Timeline[_Label], over: Timeline[_Over]
) -> Iterator[tuple[int, int, _Label, _Over | None]]:
    """The parts of one timeline, each with what another has there."""
    tops = iter(over)
    top = next(tops, None)
    for start, end, label in under:
        at = start
        while top is not None and top[0] < end:
            if top[1] > at:
                if top[0] > at:
                    yield at, top[0], label, None
                    at = top[0]
                until = min(top[1], end)
                yield at, until, label, top[2]
                at = until
            if top[1] > end:
                break
            top = next(tops, None)
        if at < end:
            yield at, end, label, None


# ------------------------------------------------------------------------- marks


class Marks:
    """The marks of a trace that tell of a moment, and those that tell of steps.

    Args:
        events: The trace.
    """

    def __init__(self, events: TraceEvents) -> None:
        self.steps = [each for each in events.marks if each.name.startswith(STEP)]
        self._host = _span(*_hosts(events))
        self._device = _span(events.work)
        self._step_of = by_thread(self.steps)
        self.telling = [each for each in events.marks if self._tells(each)]

    @property
    def began_ns(self) -> int | None:
        """When the host did the first that the trace knows of."""
        return self._host and self._host[0]

    @property
    def length_ns(self) -> int | None:
        """From the first event of the host to its last."""
        return self._host and self._host[1] - self._host[0]

    def _tells(self, mark: HostEvent) -> bool:
        """Whether a mark is neither a step, nor around one, nor around nearly all."""
        if mark.name.startswith(STEP):
            return False
        for whole in filter(None, (self._host, self._device)):
            both_ns = min(mark.end_ns, whole[1]) - max(mark.start_ns, whole[0])
            if both_ns >= _NEARLY_ALL * (whole[1] - whole[0]):
                return False
        steps = self._step_of.get(mark.thread, [])
        place = bisect_left(steps, mark.start_ns, key=_start_ns)
        return place == len(steps) or steps[place].end_ns > mark.end_ns


def _span(*lists: Sequence[HostEvent] | Sequence[Work]) -> tuple[int, int] | None:
    """From the first beginning to the last end."""
    lists = tuple(filter(None, lists))
    if not lists:
        return None
    last_ns = max(max(each.end_ns for each in some) for some in lists)
    return min(some[0].start_ns for some in lists), last_ns


def _hosts(events: TraceEvents) -> tuple[list[HostEvent], ...]:
    return events.operators, events.calls, events.marks, events.python


# ------------------------------------------------------------------------- phases


class Phases:
    """Whether the host was in forward, backward or the optimizer.

    Backward are the nodes of autograd, and all else on a thread that it has to itself;
    the optimizer is what torch marks so. What comes before a backward, or after an
    optimizer and before the next backward, is forward; what comes between a backward
    and its optimizer is neither.

    Args:
        events: The trace.
    """

    def __init__(self, events: TraceEvents) -> None:
        nodes = by_thread(
            each for each in events.operators if each.name.startswith(BACKWARD_NODE)
        )
        updates = by_thread(
            each for each in events.marks if each.name.startswith(OPTIMIZER)
        )
        self._own = set(nodes) - {events.main_thread}
        self._threads: dict[int, Timeline[str]] = {
            thread: sorted(
                [
                    *(
                        (start, end, BACKWARD)
                        for start, end, _ in outermost(nodes[thread])
                    ),
                    *(
                        (start, end, UPDATE)
                        for start, end, _ in outermost(updates[thread])
                    ),
                ]
            )
            for thread in {*nodes, *updates}
        }
        waits = [
            (each.start_ns, each.end_ns)
            for each in events.marks
            if each.name.startswith(INPUT)
        ]
        # How long the host waited for batches of a DataLoader; None without one.
        self.input_ns = length(merged(waits)) if waits else None
        self._all = sorted(each for some in self._threads.values() for each in some)
        self.backward_thread = max(
            self._own, key=lambda thread: len(nodes[thread]), default=None
        )

    def at(self, thread: int, moment_ns: int) -> str:
        """The phase that a thread was in; "" where none is known."""
        found = at(self._threads.get(thread, []), moment_ns)
        if found is not None:
            return found
        if thread in self._own:
            return BACKWARD
        following = bisect_right(self._all, moment_ns, key=_began)
        if following and self._all[following - 1][1] > moment_ns:
            return ""  # another thread is in one, and who knows for whom this is
        coming = self._all[following][2] if following < len(self._all) else ""
        return FORWARD if coming == BACKWARD else ""


# -------------------------------------------------------------------------- lines


def users_frame(name: str) -> re.Match[str] | None:
    """The parts of a Python function's name, if it is the user's own."""
    frame = _FRAME.fullmatch(name)
    if frame is None:
        return None
    file = frame["file"]
    package = re.split(r"[/\\]", file, maxsplit=1)[0].removesuffix(".py")
    if file.startswith("<frozen ") or package in _NOT_THE_USERS:
        return None
    return None if _INSTALLED.search(file) else frame


def line_of(name: str) -> CodeLine:
    """The place of a Python function, from its name in a trace."""
    frame = _FRAME.fullmatch(name)
    if frame is None:
        return CodeLine(name)
    return CodeLine(f"{frame['file']}, line {frame['line']}, in {frame['function']}")


class Threads:
    """What each thread was in, worked out where it is asked for.

    Args:
        events: The trace.

        marks: Of it.

    Attributes:
        calls: The outermost calls of the device's runtime, by thread.
    """

    def __init__(self, events: TraceEvents, marks: Marks) -> None:
        self._operators = by_thread(events.operators)
        self._marks = by_thread(marks.telling)
        self._calls = by_thread(events.calls)
        self.calls = {thread: outermost(its) for thread, its in self._calls.items()}
        known = {each.name: users_frame(each.name) for each in events.python}
        self._python = by_thread(
            each for each in events.python if known[each.name] is not None
        )
        self._lines: dict[int, Timeline[str]] = {}

    def lines(self, thread: int) -> Timeline[str]:
        """The innermost function that is the user's."""
        if thread not in self._lines:
            self._lines[thread] = innermost(self._python.get(thread, []))
        return self._lines[thread]

    def layers(self, thread: int) -> Iterator[Timeline[str]]:
        """What it was in, by what tells most; the next is for where the last does not.

        The outermost operator or mark; the call; the innermost function of the user's.
        """
        operators = self._operators.get(thread, [])
        yield outermost(together(operators, self._marks.get(thread, [])))
        yield self.calls.get(thread, [])
        yield self.lines(thread)

    def worked(self, thread: int) -> Timeline[str]:
        """What of it is known to be host code: operators, calls, torch's own marks."""
        marks = [
            each
            for each in self._marks.get(thread, [])
            if each.name.startswith((INPUT, OPTIMIZER))
        ]
        operators = self._operators.get(thread, [])
        return outermost(together(operators, marks, self._calls.get(thread, [])))
