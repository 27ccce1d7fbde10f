"""What a profile adds: what took most of the time, how busy it was, every lane."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time.view_busy import drawn_span, stream_lanes
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Lane,
    Meter,
    Note,
    Property,
    Span,
    Table,
    Timeline,
)
from gpumagic.drawing.timeline import MOST_LANES
from gpumagic.report.events import DEVICE_KINDS, SpanKind
from gpumagic.report.units import seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.cuda_sync_time.report import Profile, Setting, TopKernel
    from gpumagic.drawing import Cell, Part
    from gpumagic.report.events import OperatorTime

_SUBMITTING = frozenset({SpanKind.LAUNCH, SpanKind.WAIT})
_NAMESPACES = re.compile(r"(?:\w+::|\(anonymous namespace\)::)+(?=\w)")
_PARAMETERS = re.compile(r"(?<=\w)\(.*\)$")  # a copy has a blank before them
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel"})  # of cutlass
_KERNELS = "What took most of the GPU's time"


def profile_notes(profile: Profile) -> Iterator[Note]:
    """What is missing from it, and where it was saved."""
    if profile.problem:
        yield Note("warning", profile.problem, profile.hint or "")
    if profile.saved_as:
        yield Note("note", f"{profile.saved_as} is for https://ui.perfetto.dev")


def profile_details(profile: Profile, setting: Setting) -> Iterator[Details]:
    """The figures behind the picture, all names in full, and every lane."""
    if profile.launches:
        parts: list[Part] = [Grid("", tuple(_shares(profile)))]
        if profile.streams:
            parts.append(_streams(profile, setting))
        if profile.kernels:
            parts.append(_by_name(profile))
        yield Details("How busy the GPU was, and with what", tuple(parts), "busy")
    if profile.operators and profile.launches:
        table = replace(operators_table(profile.operators), caption="")
        yield Details("Operators on the CPU", (table,), "operators")
    if profile.spans:
        yield Details("Every thread and stream", (timeline(profile, setting),), "lanes")


def timeline(profile: Profile, setting: Setting) -> Timeline:
    """Host lanes first, then the streams; of very many the busiest ones."""
    host: dict[tuple[int, str], list[Span]] = {}
    streams: dict[tuple[int, int], list[Span]] = {}
    for each in profile.spans:
        drawn = drawn_span(each)
        if each.kind in DEVICE_KINDS and each.device is not None:
            key = each.device, -1 if each.stream is None else each.stream
            streams.setdefault(key, []).append(drawn)
        else:
            what = "waits, launches" if each.kind in _SUBMITTING else ""
            host.setdefault((each.thread or 0, what), []).append(drawn)
    lanes = [Lane(_host_name(key), tuple(host[key])) for key in sorted(host)]
    lanes.extend(stream_lanes(streams, setting, MOST_LANES - len(lanes)))
    return Timeline("", tuple(lanes), (), Span(0.0, profile.length_s))


def _host_name(lane: tuple[int, str]) -> str:
    thread, what = lane
    name = f"host, thread {thread}" if thread else "host"
    return f"{name}: {what}" if what else name


def _shares(profile: Profile) -> Iterator[tuple[str, Cell]]:
    length = profile.length_s

    def timed(seconds: float) -> str:
        share = share_text(min(seconds / length, 1.0) if length > 0 else None)
        return f"{seconds_text(seconds)}, {share} of the time"

    yield "at least one stream busy", timed(profile.busy_s)
    yield "no stream busy", timed(profile.idle_s)
    yield "two streams or more at once", timed(profile.overlapped_s)
    if profile.copying_s > 0:
        hidden = share_text(min(profile.hidden_copy_s / profile.copying_s, 1.0))
        said = f"{seconds_text(profile.copying_s)}, {hidden} of it behind kernels"
        yield "copies", said
    yield "kernels, copies and fills", f"{profile.launches:,}"
    if profile.in_flight is not None:
        yield "most in the queue of a stream", f"{profile.in_flight:,}"


def _streams(profile: Profile, setting: Setting) -> Table:
    properties = (
        Property(
            Column("Stream"),
            lambda each: f"{setting.kind}:{each.device} stream {each.stream}",
        ),
        Property(Column("Count", number=True), lambda each: f"{each.spans:,}"),
        Property(Column("Busy", number=True), lambda each: seconds_text(each.busy_s)),
    )
    return Table.of("", properties, profile.streams)


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


class _Named(NamedTuple):
    """All kernels of one name."""

    name: str
    kind: str
    times: int
    total_s: float
    bound: str | None


def _by_short_name(profile: Profile) -> list[_Named]:
    """However many types and shapes each was made for; the dearest first."""
    alike: dict[tuple[str, str], list[TopKernel]] = {}
    for each in profile.kernels:
        alike.setdefault((kernel_name(each.name), each.kind), []).append(each)
    named = [
        _Named(
            *key,
            times=sum(each.times for each in its),
            total_s=sum(each.total_s for each in its),
            bound=max(its, key=lambda each: each.total_s).bound,
        )
        for key, its in alike.items()
    ]
    return sorted(named, key=lambda each: -each.total_s)


def dearest(profile: Profile) -> tuple[str, float | None]:
    """The name that took most of the time, and its share."""
    first = _by_short_name(profile)[0]
    return first.name, _of_busy_time(profile, first.total_s)


def kernel_table(profile: Profile) -> Table:
    """A row for each name, with what bounds it where that is known."""
    bound = Property(Column("Limited by"), lambda each: each.bound or "-")
    known = any(each.bound for each in profile.kernels)
    properties = (
        Property(Column("Kernel or copy"), lambda each: each.name),
        Property(Column("Count", number=True), lambda each: f"{each.times:,}"),
        Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
        Property(
            Column("Of busy time"),
            lambda each: _meter(profile, each.total_s, is_short=known),
        ),
        *((bound,) if known else ()),
    )
    return Table.of(_KERNELS, properties, _by_short_name(profile), name="kernels")


def _by_name(profile: Profile) -> Table:
    properties = (
        Property(Column("Kernel or copy"), lambda each: each.name),
        Property(Column("Kind"), lambda each: each.kind),
        Property(Column("Count", number=True), lambda each: f"{each.times:,}"),
        Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
        Property(
            Column("Longest", number=True), lambda each: seconds_text(each.longest_s)
        ),
    )
    return Table.of("All kernels, by their full names", properties, profile.kernels)


def operators_table(operators: Sequence[OperatorTime]) -> Table:
    """What torch's operators took on the host, the dearest by themselves first."""
    whole_s = sum(each.self_s for each in operators)

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
    return Table.of("Operators on the CPU", properties, operators, name="operators")


def _of_busy_time(profile: Profile, seconds: float) -> float | None:
    """Which share of the time of all streams that is."""
    busy = sum(each.busy_s for each in profile.streams) or profile.busy_s
    return min(seconds / busy, 1.0) if busy > 0 else None


def _meter(profile: Profile, seconds: float, *, is_short: bool) -> Meter:
    share = _of_busy_time(profile, seconds)
    return Meter(share, share_text(share), is_short=is_short)
