"""Who was busy when, in one picture: what is known is solid, the rest is hatched."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Lane,
    Meter,
    Property,
    Span,
    Table,
    Timeline,
)
from gpumagic.drawing.timeline import Scale
from gpumagic.report.events import DEVICE_KINDS, SpanKind, stretches
from gpumagic.report.units import UNKNOWN, count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.cuda_sync_time.answer_run import TimingReport
    from gpumagic.cuda_sync_time.records import Profile, Setting, TopKernel
    from gpumagic.drawing import Cell, Part
    from gpumagic.report.events import OperatorTime, TraceSpan

CAPTION = "Who was busy when"
PERHAPS = "perhaps busy"
CODE, WAITS, KERNEL = "host code", "host waits", "kernel"
_KINDS = {
    SpanKind.HOST: CODE,
    SpanKind.LAUNCH: "launch",
    SpanKind.WAIT: WAITS,
    SpanKind.KERNEL: KERNEL,
    SpanKind.COPY: "copy",
    SpanKind.FILL: "copy",
}
COMMUNICATION, FOR_OTHERS = "communication", "waits for others"
ORDER = (*dict.fromkeys(_KINDS.values()), COMMUNICATION, FOR_OTHERS, PERHAPS)
_IDLE = frozenset({WAITS, FOR_OTHERS, PERHAPS})  # what does not count as busy
_AT_WORK = "at work"
_CELLS_EACH = 4  # of the width of a terminal, for each span of several kinds
_HARDLY_MORE = 1.3  # times as many spans as there should be; their widths differ
_HOST_LANES = 3

StreamKey = tuple[int, int]  # a device, its stream; -1 is an unknown one


def _drawn_span(span: TraceSpan) -> Span:
    """A span as pictures have it; its kind gives it its colour."""
    kind = _KINDS[span.kind]
    if span.kind is SpanKind.KERNEL and span.name.lower().startswith("nccl"):
        kind = COMMUNICATION
    return Span(span.start_s, span.end_s, span.name, kind)


class SeenLane(Lane):
    """A lane in which waiting is not being busy, nor is what nobody knows."""

    @cached_property
    def is_known(self) -> bool:
        """Whether all of it was seen."""
        return all(span.kind != PERHAPS for span in self.drawn)

    @cached_property
    def busy_s(self) -> float:
        """How long it was busy for certain."""
        certain = tuple(span for span in self.drawn if span.kind not in _IDLE)
        return Lane(self.name, certain).busy_s

    def words(self, scale: Scale) -> str:
        """The lane in one sentence."""
        said = super().words(scale)
        return said if self.is_known else said.replace(": busy", ": busy at least", 1)


@dataclass(frozen=True)
class _SeenScale(Scale):
    """A scale on which a lane is busy as far as that is known."""

    def share(self, lane: Lane) -> str:
        """How much of it the lane was busy for certain."""
        text = share_text(_part(lane.busy_s, self.length_s))
        if not isinstance(lane, SeenLane) or lane.is_known:
            return text
        return f"at least {text}" if lane.busy_s > 0 else UNKNOWN


def _part(seconds: float, whole_s: float) -> float | None:
    return min(seconds / whole_s, 1.0) if whole_s > 0 else None


class Picture(Timeline):
    """A timeline that says how busy each was as far as that is known."""

    @cached_property
    def scale(self) -> Scale:
        """The time that the lanes share."""
        return _SeenScale(**vars(super().scale))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        most = max(options.max_width // _CELLS_EACH, 1)
        lanes = tuple(_fit_for_text(lane, most) for lane in self.lanes)
        yield from Timeline.__rich_console__(
            replace(self, lanes=lanes), console, options
        )


def picture(report: TimingReport, *, most: int) -> Picture:
    """The host's lanes first, then those of the devices."""
    length_s = max(report.run.elapsed_s, 0.0)
    if report.seen.length_s > 0:
        length_s = report.seen.length_s  # on the clock of what was seen of it
    host = list(_host_lanes(report, length_s))
    lanes = [*host, *_device_lanes(report, length_s, most - len(host))]
    return Picture(CAPTION, tuple(lanes), ORDER, Span(0.0, length_s))


def _fit_for_text(lane: Lane, most: int) -> Lane:
    """Kinds that follow each other faster than letters can, by the stretch.

    The short ones of a kind are one, as long as they were together: else the lane would
    be drawn by its height alone, which tells no kind from the other.
    """
    kinds = {span.kind for span in lane.drawn}
    if len(lane.drawn) <= most or len(kinds) == 1:
        return lane
    length_s = lane.drawn[-1].end_s - lane.drawn[0].start_s
    shortest_s = length_s * len(kinds) / most
    drawn = _pooled(lane, shortest_s)
    while len(drawn) > most * _HARDLY_MORE and shortest_s < length_s:
        shortest_s *= _HARDLY_MORE
        drawn = _pooled(lane, shortest_s)
    return SeenLane(lane.name, drawn)


def _pooled(lane: Lane, shortest_s: float) -> tuple[Span, ...]:
    groups = stretches(lane.drawn, shortest_s)
    return tuple(each for group in groups for each in _pool(group))


def _pool(group: Sequence[Span]) -> Iterator[Span]:
    at_s = group[0].start_s
    for kind in dict.fromkeys(span.kind for span in group):
        seconds = sum(span.end_s - span.start_s for span in group if span.kind == kind)
        yield Span(at_s, at_s + seconds, "", kind)
        at_s += seconds


# ---------------------------------------------------------------------- the host


def _host_lanes(report: TimingReport, length_s: float) -> Iterator[Lane]:
    """The thread that ran the code, and those that launched something as well."""
    threads: dict[int, list[TraceSpan]] = {0: []}
    for span in report.seen.spans:
        if span.kind not in DEVICE_KINDS:
            threads.setdefault(span.thread or 0, []).append(span)
    returned_s = min(max(report.run.naive_s, 0.0), length_s)
    whole = [Span(0.0, returned_s, "", CODE), Span(returned_s, length_s, "", WAITS)]
    submits = [
        thread
        for thread, spans in threads.items()
        if not thread or any(span.kind is not SpanKind.HOST for span in spans)
    ]
    submits.sort(key=lambda thread: (thread > 0, -len(threads[thread])))
    for thread in sorted(submits[:_HOST_LANES]):
        spans = threads[thread]
        over = [_drawn_span(each) for each in spans if each.kind is not SpanKind.HOST]
        own = [_drawn_span(each) for each in spans if each.kind is SpanKind.HOST]
        below = apart(own) if thread else whole
        name = f"host, thread {thread}" if thread else "host"
        yield SeenLane(name, tuple(laid_over(below, apart(over))))


def apart(spans: Iterable[Span]) -> list[Span]:
    """The spans without what earlier ones cover."""
    alone: list[Span] = []
    until_s = 0.0
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        start_s = max(span.start_s, until_s)
        if start_s < span.end_s or start_s == span.start_s:
            alone.append(replace(span, start_s=start_s))
            until_s = max(until_s, span.end_s)
    return alone


def laid_over(below: Sequence[Span], above: Sequence[Span]) -> Iterator[Span]:
    """The upper spans, and of the lower ones what they leave free; both apart."""
    yield from above
    first = 0
    for span in below:
        at_s = span.start_s
        while first < len(above) and above[first].end_s <= span.start_s:
            first += 1
        for place in range(first, len(above)):
            over = above[place]
            if over.start_s >= span.end_s:
                break
            if over.start_s > at_s:
                yield replace(span, start_s=at_s, end_s=over.start_s)
            at_s = max(at_s, over.end_s)
        if at_s < span.end_s:
            yield replace(span, start_s=at_s)


# ------------------------------------------------------------------- the devices


def _device_lanes(report: TimingReport, length_s: float, room: int) -> list[Lane]:
    if not report.run.uses_device:
        return []
    if report.seen.busy_s is None:
        return list(_as_far_as_known(report, length_s))
    streams: dict[StreamKey, list[Span]] = {}
    for each in report.seen.spans:
        if each.kind in DEVICE_KINDS:
            key = each.device or 0, -1 if each.stream is None else each.stream
            streams.setdefault(key, []).append(_drawn_span(each))
    idle = {number for number, _ in report.setting.devices} - {
        each[0] for each in streams
    }
    streams |= {(number, -1): [] for number in idle}
    return _stream_lanes(streams, report.setting.kind, room)


def _stream_lanes(
    streams: dict[StreamKey, list[Span]], kind: str, room: int
) -> list[Lane]:
    """A lane for each stream, or for each device if only so all of them are seen."""
    busy = {key: Lane("", tuple(spans)).busy_s for key, spans in streams.items()}
    # Where room is short, the idlest of them come last.
    busiest = sorted(sorted(streams), key=lambda key: -busy[key])[: max(room, 0)]
    ordered = sorted(streams, key=lambda key: (key not in busiest, key))
    devices = Counter(device for device, _ in streams)
    all_seen = {device for device, _ in busiest} == devices.keys()
    is_crowded = len(streams) > room and (not all_seen or len(devices) > 1)
    if is_crowded and len(devices) <= room:
        return [_one_lane(number, streams, kind) for number in sorted(devices)]
    lanes: list[Lane] = []
    for device, stream in ordered:
        name = f"{kind}:{device}"
        if stream >= 0 and devices[device] > 1:
            name += f" stream {stream}"
        lanes.append(SeenLane(name, tuple(streams[device, stream])))
    return lanes


def _one_lane(number: int, streams: dict[StreamKey, list[Span]], kind: str) -> Lane:
    """All that ran on a device; what ran at the same time lies on each other."""
    its = [spans for (device, _), spans in streams.items() if device == number]
    joined = sorted(chain.from_iterable(its), key=lambda span: span.start_s)
    name = f"{kind}:{number}, {count_text(len(its), 'stream')}"
    return SeenLane(name, tuple(joined))


def _as_far_as_known(report: TimingReport, length_s: float) -> Iterator[Lane]:
    """What two stamps and a pair of events tell, with the waits that were seen.

    A device works as long as its stream is not done though the code has returned, and
    a single one as long as the host waits for it.
    """
    run, kind = report.run, report.setting.kind
    done = dict.fromkeys(number for number, _ in report.setting.devices) | run.events
    alone = len(done) == 1
    end_s = returned_s = min(max(run.naive_s, 0.0), length_s)
    if report.tells(run.waited_s):
        end_s = length_s
    waited = [
        (each.start_s, each.end_s)
        for each in report.seen.spans
        if each.kind is SpanKind.WAIT and each.start_s < each.end_s <= returned_s
    ]
    for number, done_s in done.items():
        until_s = min(max(done_s or 0.0, returned_s), end_s)
        sure = [(returned_s, until_s)]
        if alone:
            sure = [*waited, (returned_s, end_s)]
        above = apart(
            Span(*each, _AT_WORK, KERNEL) for each in sure if each[0] < each[1]
        )
        # Nobody knows of all streams: it may have worked until the end.
        behind_s = run.waited_s if done_s is None else run.tail_s or 0.0
        unknown_until_s = length_s if report.tells(behind_s) else until_s
        below = [Span(0.0, unknown_until_s, "", PERHAPS)]
        yield SeenLane(f"{kind}:{number}", tuple(laid_over(below, above)))


_NAMESPACES = re.compile(r"(?:\w+::|\(anonymous namespace\)::)+(?=\w)")
_PARAMETERS = re.compile(r"(?<=\w)\(.*\)$")  # a copy has a blank before them
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel"})  # of cutlass
_COUNT_AND_TOTAL = (
    Property(Column("Count", number=True), lambda each: f"{each.times:,}"),
    Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
)


def profile_details(profile: Profile, setting: Setting) -> Iterator[Details]:
    """The figures behind the picture, and all names in full."""
    if profile.launches:
        parts: list[Part] = [Grid("", tuple(_shares(profile, setting)))]
        if profile.kernels:
            properties = (
                Property(Column("Kernel or copy"), lambda each: each.name),
                *_COUNT_AND_TOTAL,
                Property(
                    Column("Longest", number=True),
                    lambda each: seconds_text(each.longest_s),
                ),
            )
            caption = "All kernels, by their full names"
            parts.append(Table.of(caption, properties, profile.kernels))
        yield Details("How busy the GPU was, and with what", tuple(parts), "busy")
    if profile.operators and profile.launches:
        table = replace(operators_table(profile.operators), caption="")
        yield Details("Operators on the CPU", (table,), "operators")


def _shares(profile: Profile, setting: Setting) -> Iterator[tuple[str, Cell]]:
    length = profile.length_s

    def timed(seconds: float) -> str:
        share = share_text(_part(seconds, length))
        return f"{seconds_text(seconds)}, {share} of the time"

    busy_s = profile.busy_s or 0.0
    yield "at least one stream busy", timed(busy_s)
    yield "no stream busy", timed(max(length - busy_s, 0.0))
    yield "two streams or more at once", timed(profile.overlapped_s)
    if profile.copying_s > 0:
        hidden = share_text(_part(profile.hidden_copy_s, profile.copying_s))
        said = f"{seconds_text(profile.copying_s)}, {hidden} of it behind kernels"
        yield "copies", said
    yield "kernels, copies and fills", f"{profile.launches:,}"
    for each in profile.streams:
        name = f"{setting.kind}:{each.device} stream {each.stream} busy"
        yield name, timed(each.busy_s)


# --------------------------------------------------------------------- kernels


def kernel_name(name: str) -> str:
    """A kernel without its parameters and arguments of templates.

    >>> kernel_name("void at::native::reduce_kernel<512, 1>(at::Tensor)")
    'reduce_kernel'
    >>> kernel_name("Memcpy HtoD (Pinned -> Device)"), kernel_name("aten::mm")
    ('Memcpy HtoD (Pinned -> Device)', 'aten::mm')
    >>> kernel_name("void cutlass::Kernel<sm80_gemm>(sm80_gemm::Params)")
    'sm80_gemm'
    >>> kernel_name("at::cuda::(anonymous namespace)::spin_kernel(long)")
    'spin_kernel'
    """
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    if bare == name and not _PARAMETERS.search(name) and "<" not in name:
        return name  # no function of C++, but a copy or an operator
    first, *inner = re.split(r"[<(]", bare, maxsplit=2)
    short = _NAMESPACES.sub("", first).strip()
    if short in _WRAPPERS and inner:
        return re.split(r"[>,]", inner[0], maxsplit=1)[0].strip() or short
    return short or name


def _by_short_name(profile: Profile) -> list[TopKernel]:
    """However many types and shapes each was made for; the dearest first."""
    alike: defaultdict[tuple[str, str], list[TopKernel]] = defaultdict(list)
    for each in profile.kernels:
        alike[kernel_name(each.name), each.kind].append(each)
    named = [
        replace(
            max(its, key=lambda each: each.total_s),
            name=name,
            times=sum(each.times for each in its),
            total_s=sum(each.total_s for each in its),
        )
        for (name, _), its in alike.items()
    ]
    return sorted(named, key=lambda each: -each.total_s)


def dearest(profile: Profile) -> tuple[str, float | None]:
    """The name that took most of the time, and its share."""
    first = _by_short_name(profile)[0]
    return first.name, _of_busy_time(profile, first.total_s)


def kernel_table(profile: Profile, guessed: Collection[str] = ()) -> Table:
    """A row for each name, with what bounds it where that is known."""
    known = any(each.bound for each in profile.kernels)

    def name(each: TopKernel) -> str:
        return f"{each.name} (guess)" if each.name in guessed else each.name

    def share(each: TopKernel) -> Meter:
        of_all = _of_busy_time(profile, each.total_s)
        return Meter(of_all, share_text(of_all), is_short=known)

    properties = [
        Property(Column("Kernel or copy"), name),
        *_COUNT_AND_TOTAL,
        Property(Column("Of busy time"), share),
    ]
    if known:
        bound = Property(Column("Limited by"), lambda each: each.bound or "-")
        properties.append(bound)
    caption = "What took most of the GPU's time"
    return Table.of(caption, properties, _by_short_name(profile), name="kernels")


def _of_busy_time(profile: Profile, seconds: float) -> float | None:
    """Which share of the time of all streams that is."""
    busy = sum(each.busy_s for each in profile.streams) or profile.busy_s
    return _part(seconds, busy or 0.0)


def operators_table(operators: Sequence[OperatorTime]) -> Table:
    """What torch's operators took on the host, the dearest by themselves first."""
    whole_s = sum(each.self_s for each in operators)

    def of_all(operator: OperatorTime) -> Meter:
        share = _part(operator.self_s, whole_s)
        return Meter(share, share_text(share))

    properties = (
        Property(Column("Operator"), lambda each: each.name),
        Property(Column("Calls", number=True), lambda each: f"{each.count:,}"),
        Property(Column("Itself", number=True), lambda each: seconds_text(each.self_s)),
        Property(Column("Of all"), of_all),
        Property(
            Column("With others", number=True),
            lambda each: seconds_text(each.total_s),
        ),
    )
    return Table.of("Operators on the CPU", properties, operators, name="operators")
