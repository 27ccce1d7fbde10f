"""What ran when: a lane for each stream and thread, and what took most of the time."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Lane,
    Meter,
    Note,
    Paragraph,
    Property,
    Span,
    Table,
    Timeline,
)
from gpumagic.drawing.timeline import MOST_LANES
from gpumagic.report.events import DEVICE_KINDS, SpanKind
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import Profile, Setting, TopKernel
    from gpumagic.drawing import Part
    from gpumagic.report.events import OperatorTime, TraceSpan

_KINDS = {
    SpanKind.KERNEL: "kernel",
    SpanKind.COPY: "copy or fill",
    SpanKind.FILL: "copy or fill",
    SpanKind.WAIT: "the host waits",
    SpanKind.LAUNCH: "launch",
    SpanKind.HOST: "operation",
}
_SUBMITTING = frozenset({SpanKind.LAUNCH, SpanKind.WAIT})


def profile_parts(profile: Profile, setting: Setting) -> Iterator[Part]:
    """The timeline, the shares, the longest kernels, and where it was saved."""
    if profile.problem:
        yield Note("warning", profile.problem, profile.hint or "")
    if profile.operators and not profile.launches:
        yield operators_table(profile)
    else:
        yield timeline(profile, setting)
    if profile.launches:
        yield Paragraph(" ".join(_shares(profile)))
    if profile.kernels:
        yield _kernels(profile)
    if profile.saved_as:
        yield Note(
            "note",
            f"the whole trace was saved as {profile.saved_as}",
            "open it at https://ui.perfetto.dev",
        )


def timeline(profile: Profile, setting: Setting) -> Timeline:
    """Host lanes first, then the streams; of very many the busiest ones.

    Where a device would not be seen at all, each device has one lane instead.
    """
    host: dict[tuple[int, str], list[Span]] = {}
    streams: dict[tuple[int, int], list[Span]] = {}
    for each in profile.spans:
        drawn = Span(each.start_s, each.end_s, each.name, _KINDS[each.kind])
        if each.kind in DEVICE_KINDS and each.device is not None:
            key = each.device, -1 if each.stream is None else each.stream
            streams.setdefault(key, []).append(drawn)
        else:
            host.setdefault(_host_lane(each), []).append(drawn)
    lanes = [Lane(_host_name(key), tuple(host[key])) for key in sorted(host)]
    lanes.extend(_device_lanes(streams, setting, MOST_LANES - len(lanes)))
    return Timeline(
        "What ran when",
        tuple(lanes),
        tuple(dict.fromkeys(_KINDS.values())),
        Span(0.0, profile.length_s),
    )


def _device_lanes(
    streams: dict[tuple[int, int], list[Span]], setting: Setting, room: int
) -> list[Lane]:
    """A lane for each stream, or for each device if only so all of them are seen."""
    ordered = _busiest_first(streams, room)
    devices = {device for device, _ in streams}
    if {device for device, _ in ordered[:room]} != devices and len(devices) <= room:
        return [_one_lane(number, streams, setting) for number in sorted(devices)]
    return [Lane(_stream_name(*key, setting), tuple(streams[key])) for key in ordered]


def _busiest_first(
    streams: dict[tuple[int, int], list[Span]], room: int
) -> list[tuple[int, int]]:
    """The streams in order; where room is short, the idlest of them come last."""
    busy = {key: Lane("", tuple(spans)).busy_s for key, spans in streams.items()}
    by_time = sorted(sorted(streams), key=lambda key: -busy[key])
    busiest = set(by_time[: max(room, 0)])
    return sorted(streams, key=lambda key: (key not in busiest, key))


def _one_lane(
    number: int, streams: dict[tuple[int, int], list[Span]], setting: Setting
) -> Lane:
    """All that ran on a device; what ran at the same time lies on each other."""
    its = [spans for (device, _), spans in streams.items() if device == number]
    joined = sorted(chain.from_iterable(its), key=lambda span: span.start_s)
    name = f"{setting.kind}:{number}, {count_text(len(its), 'stream')}"
    return Lane(name, tuple(joined))


def _host_lane(span: TraceSpan) -> tuple[int, str]:
    """Waits and launches lie inside operations, so they have a lane of their own."""
    what = "waits, launches" if span.kind in _SUBMITTING else ""
    return span.thread or 0, what


def _host_name(lane: tuple[int, str]) -> str:
    thread, what = lane
    name = f"host, thread {thread}" if thread else "host"
    return f"{name}: {what}" if what else name


def _stream_name(device: int, stream: int, setting: Setting) -> str:
    name = f"{setting.kind}:{device}"
    return name if stream < 0 else f"{name} stream {stream}"


def _shares(profile: Profile) -> Iterator[str]:
    length = profile.length_s

    def share(seconds: float) -> str:
        return share_text(min(seconds / length, 1.0) if length > 0 else None)

    yield (
        f"At least one stream was busy for {share(profile.busy_s)} of the time "
        f"({seconds_text(profile.busy_s)}), and none for {share(profile.idle_s)}."
    )
    if profile.overlapped_s > 0:
        yield f"At least two streams ran at once for {share(profile.overlapped_s)}."
    if profile.copying_s > 0:
        hidden = share_text(min(profile.hidden_copy_s / profile.copying_s, 1.0))
        yield (
            f"Copies took {seconds_text(profile.copying_s)}; {hidden} of that was "
            "hidden behind kernels."
        )
    count = f"{profile.launches:,} kernels, copies and fills"
    if profile.launches == 1:
        count = "1 kernel, copy or fill"
    queued = profile.in_flight
    most = "" if queued is None else f"; up to {queued:,} were in the queue of a stream"
    yield f"There were {count} in all{most}."


def _kernels(profile: Profile) -> Table:
    busy = sum(each.busy_s for each in profile.streams) or profile.busy_s

    def of_busy_time(kernel: TopKernel) -> Meter:
        share = min(kernel.total_s / busy, 1.0) if busy > 0 else None
        return Meter(share, share_text(share))

    properties = (
        Property(Column("Kernel or copy"), lambda each: each.name),
        Property(Column("Kind"), lambda each: each.kind),
        Property(Column("Count", number=True), lambda each: f"{each.times:,}"),
        Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
        Property(Column("Of busy time"), of_busy_time),
        Property(
            Column("Longest", number=True), lambda each: seconds_text(each.longest_s)
        ),
    )
    caption = "What took most of the devices' time"
    return Table.of(caption, properties, profile.kernels)


def operators_table(profile: Profile) -> Table:
    """What torch's operators took on the host, the dearest by themselves first."""
    whole_s = sum(each.self_s for each in profile.operators)

    def of_all(operator: OperatorTime) -> Meter:
        share = operator.self_s / whole_s if whole_s > 0 else None
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
    return Table.of(
        "Operators on the CPU", properties, profile.operators, name="operators"
    )
