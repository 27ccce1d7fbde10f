"""What a profile adds: what took most of the time, and how busy it was."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Grid, Meter, Property, Table
from gpumagic.report.units import seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gpumagic.cuda_sync_time.records import Profile, Setting, TopKernel
    from gpumagic.drawing import Cell, Part
    from gpumagic.report.events import OperatorTime

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
        share = share_text(min(seconds / length, 1.0) if length > 0 else None)
        return f"{seconds_text(seconds)}, {share} of the time"

    yield "at least one stream busy", timed(profile.busy_s)
    yield "no stream busy", timed(max(length - profile.busy_s, 0.0))
    yield "two streams or more at once", timed(profile.overlapped_s)
    if profile.copying_s > 0:
        hidden = share_text(min(profile.hidden_copy_s / profile.copying_s, 1.0))
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

    bound = Property(Column("Limited by"), lambda each: each.bound or "-")
    properties = (
        Property(Column("Kernel or copy"), name),
        *_COUNT_AND_TOTAL,
        Property(Column("Of busy time"), share),
        *((bound,) if known else ()),
    )
    caption = "What took most of the GPU's time"
    return Table.of(caption, properties, _by_short_name(profile), name="kernels")


def _of_busy_time(profile: Profile, seconds: float) -> float | None:
    """Which share of the time of all streams that is."""
    busy = sum(each.busy_s for each in profile.streams) or profile.busy_s
    return min(seconds / busy, 1.0) if busy > 0 else None


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
