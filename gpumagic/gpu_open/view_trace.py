"""What all views of traces share: lanes, names of kernels, files, how it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.view_busy import ORDER, Picture, SeenLane
from gpumagic.cuda_sync_time.view_profile import kernel_name
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Lane,
    Meter,
    Paragraph,
    Property,
    Span,
    Table,
    how_measured,
)
from gpumagic.drawing.palette import MEANINGS
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    count_text,
    listed,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell
    from gpumagic.drawing.timeline import Scale
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import (
        FileRead,
        KernelSum,
        LaneTrace,
        RankTrace,
    )

NEGLIGIBLE = 0.01  # of the time: what takes less holds nobody up
LONGEST_NAME = 30  # in sight; all names are told in full behind it
_ROOM = 50  # characters for a name, its kind and its count, beside times and bars
LONGEST_FULL = 300
_LONGEST_FILE = 60
_HOST = frozenset({"host code", "launch", "host waits"})
_MOST_FILES = 12
_NODE = "autograd::engine::evaluate_function: "

BUSY = (
    "The time counts from the first work of the GPU to the last. Busy: at least one "
    "kernel, copy or fill ran. Idle is the rest."
)
HEIGHTS = (
    "Where work is too fine to draw one by one, height is the share of time that was "
    "busy."
)
HIDDEN = (
    "Communication is hidden while a kernel computes. "
    "The rest is told as only with communication."
)


def share(part_s: float | None, whole_s: float | None) -> float | None:
    """Which share of a time another one is, as far as both are known."""
    return part_s / whole_s if part_s is not None and whole_s else None


def exposed_s(rank: RankTrace) -> float | None:
    """How long a rank communicated with no kernel computing meanwhile."""
    if rank.communication_s is None or rank.hidden_communication_s is None:
        return None
    return max(rank.communication_s - rank.hidden_communication_s, 0.0)


def rank_name(rank: RankTrace) -> str:
    """What a rank is called in sentences; nothing where it has no number."""
    return "" if rank.rank is None else f"rank {rank.rank}"


def file_name(rank: RankTrace) -> str:
    """Its file, to be typed; of a very long name the beginning."""
    return shortened(rank.file.name, _LONGEST_FILE)


def host_name(name: str | None) -> str:
    """What the host was in, in the words of its user.

    >>> host_name("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    'the DataLoader'
    >>> host_name("autograd::engine::evaluate_function: AddmmBackward0")
    'AddmmBackward0'
    >>> host_name("## forward ##"), host_name(None)
    ('forward', 'Python, between operators')
    """
    if not name:
        return "Python, between operators"
    if name.startswith("enumerate(DataLoader)"):
        return "the DataLoader"
    name = name.removeprefix(_NODE).strip("# ")
    return name.removeprefix("torch::autograd::") or UNKNOWN


# ------------------------------------------------------------------------- lanes


@dataclass(frozen=True)
class RecordedLane(SeenLane):
    """A lane some of whose spans stand for several; how many there were is known."""

    count: int = 0
    recorded_busy_s: float | None = None

    @cached_property
    def busy_s(self) -> float:
        """How long it was busy before spans were put together."""
        if self.recorded_busy_s is None:
            return SeenLane(self.name, self.spans).busy_s
        waits = [each for each in self.drawn if each.kind == "host waits"]
        return max(self.recorded_busy_s - sum(map(_length, waits)), 0.0)

    def words(self, scale: Scale) -> str:
        """The lane in one sentence."""
        busy, length = seconds_text(self.busy_s), seconds_text(scale.length_s)
        return f"{self.name}: busy {busy} of {length}, {count_text(self.count, 'span')}"


def is_host(lane: LaneTrace) -> bool:
    """Whether it is a thread, and no stream."""
    return any(span.kind in _HOST for span in lane.spans)


def drawn_lane(lane: LaneTrace, window: Span | None, zero_s: float) -> RecordedLane:
    """A lane as pictures have it, cut to what is shown."""
    spans = tuple(
        Span(
            each.start_s - zero_s,
            each.end_s - zero_s,
            kernel_name(each.label),
            each.kind,
        )
        for each in lane.spans
    )
    whole = RecordedLane(lane.name, spans, lane.count, lane.busy_s)
    if window is None or all(_inside(span, window) for span in spans):
        return whole
    cut = tuple(_cut(span, window) for span in spans if _touches(span, window))
    return replace(whole, spans=cut, recorded_busy_s=None)


class TracePicture(Picture):
    """A picture of a recording; what its heights mean stands where all of it does."""

    def remarks(self, *, heights: bool) -> Iterator[str]:  # noqa: ARG002
        """What it does not show as it was, beside what is said in `HEIGHTS`."""
        yield from super().remarks(heights=False)


def picture(rank: RankTrace, lanes: Iterable[LaneTrace]) -> TracePicture:
    """Some lanes of a rank, from its first device work to its last."""
    if rank.length_s is not None:
        window, zero_s = Span(0.0, rank.length_s), 0.0
    else:
        starts = (span.start_s for lane in rank.lanes for span in lane.spans)
        window, zero_s = None, min(starts, default=0.0)
    drawn = tuple(drawn_lane(each, window, zero_s) for each in lanes)
    return TracePicture("", drawn, meant(drawn), window)


def meant(lanes: Iterable[Lane]) -> tuple[str, ...]:
    """The kinds in their order; those that no picture knows come last."""
    used = dict.fromkeys(span.kind for lane in lanes for span in lane.spans)
    return (*ORDER, *(kind for kind in used if kind not in MEANINGS))


def _length(span: Span) -> float:
    return span.end_s - span.start_s


def _inside(span: Span, window: Span) -> bool:
    return window.start_s <= span.start_s and span.end_s <= window.end_s


def _touches(span: Span, window: Span) -> bool:
    return span.start_s < window.end_s and span.end_s > window.start_s


def _cut(span: Span, window: Span) -> Span:
    start_s, end_s = max(span.start_s, window.start_s), min(span.end_s, window.end_s)
    return replace(span, start_s=start_s, end_s=end_s)


# ----------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Named:
    """All runs of what has one name, or is of one kind."""

    name: str
    kind: str
    count: int
    total_s: float
    longest_s: float
    longest: str = ""  # the name that took most of it, where several are together


def kernel_text(name: str, most: int = LONGEST_NAME) -> str:
    """A name without its middle: kernels of a library begin alike, and many end alike.

    >>> kernel_text("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1")
    'cutlass_80_tensoro...nt_align1'
    """
    if len(name) <= most:
        return name
    end = most // 3 - 1
    return f"{name[: most - end - 3]}...{name[-end:]}"


def by_short_name(kernels: Iterable[KernelSum]) -> list[Named]:
    """However many types and shapes each was made for; the longest first."""
    return _together(kernels, lambda each: (kernel_name(each.name), each.kind))


def by_kind(kernels: Iterable[KernelSum]) -> list[Named]:
    """What the kernels work out; the longest first."""
    return _together(kernels, lambda each: (each.kind, each.kind))


def _together(
    kernels: Iterable[KernelSum], key: Callable[[KernelSum], tuple[str, str]]
) -> list[Named]:
    alike: dict[tuple[str, str], list[KernelSum]] = {}
    for each in kernels:
        alike.setdefault(key(each), []).append(each)
    named = [
        Named(
            *names,
            count=sum(each.count for each in its),
            total_s=sum(each.total_s for each in its),
            longest_s=max(each.longest_s for each in its),
            longest=kernel_name(max(its, key=lambda each: each.total_s).name),
        )
        for names, its in alike.items()
    ]
    return sorted(named, key=lambda each: -each.total_s)


def kernel_table(rank: RankTrace, most: int) -> Table:
    """A row for each of the longest names, short enough for one screen."""
    rows = by_short_name(rank.kernels)
    whole_s = sum(each.total_s for each in rows)
    beside = max(
        len(each.kind) + max(len(f"{each.count:,}"), 5) for each in rows[:most]
    )
    room = min(_ROOM - beside, LONGEST_NAME)
    properties = (
        Property(Column("Kernel"), lambda each: kernel_text(each.name, room)),
        Property(Column("Kind"), lambda each: each.kind),
        *_sums(whole_s),
    )
    caption = "What took most of the GPU's time"
    return Table.of(caption, properties, rows[:most], len(rows))


def _sums(whole_s: float) -> tuple[Property, ...]:
    """The columns that all tables of kernels end with."""
    return (
        Property(Column("Count", number=True), lambda each: f"{each.count:,}"),
        Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
        Property(Column("Of all"), lambda each: part_meter(each.total_s, whole_s)),
    )


def part_meter(part_s: float, whole_s: float | None) -> Cell:
    """A short bar with its share."""
    its = share(part_s, whole_s)
    return Meter(its, share_text(its), is_short=True)


def kernel_details(kernels: Sequence[KernelSum], *further: Table) -> Iterator[Details]:
    """All of them by their full names, and by what they work out."""
    if not kernels:
        return
    whole_s = sum(each.total_s for each in kernels)
    longest = Property(
        Column("Longest", number=True), lambda each: seconds_text(each.longest_s)
    )
    full = (
        Property(Column("Kernel"), lambda each: shortened(each.name, LONGEST_FULL)),
        Property(Column("Kind"), lambda each: each.kind),
        *_sums(whole_s)[:2],
        longest,
    )
    kinds = (
        Property(Column("Kind"), lambda each: each.name),
        *_sums(whole_s),
        Property(Column("Most of it"), lambda each: kernel_text(each.longest)),
    )
    table = Table.of("", full, kernels)
    yield Details("All kernels, by their full names", (table,), "kernels")
    table = Table.of("", kinds, by_kind(kernels))
    yield Details("What kernels worked out", (table, *further), "kinds")


# ---------------------------------------------------------------- files, and how


def unknown_entries(file: FileRead) -> int:
    """How many entries of a file are of kinds that nobody here knows."""
    return sum(count for _, count in file.unknown)


def file_details(report: TraceReport) -> Details:
    """Each file with how much of it was read; those that are not whole first."""
    read = [(each.file, _number(each)) for each in report.ranks]
    files = [*((each, None) for each in report.left_out), *read]
    properties = (
        Property(Column("File"), lambda each: each[0].name),
        Property(Column("Rank", number=True), lambda each: each[1]),
        Property(
            Column("Unpacked", number=True), lambda each: bytes_text(each[0].nbytes)
        ),
        Property(Column("Entries", number=True), lambda each: f"{each[0].events:,}"),
        Property(Column("Missing"), lambda each: each[0].missing or "nothing"),
        Property(Column("Unknown kinds"), lambda each: _unknown(each[0])),
    )
    ordered = sorted(files, key=lambda each: not each[0].missing)
    table = Table.of("", properties, ordered[:_MOST_FILES], len(files))
    return Details("What was read", (table,), "file")


def _number(rank: RankTrace) -> Cell:
    return None if rank.rank is None else str(rank.rank)


def _unknown(file: FileRead) -> str:
    kinds = [f"{count:,} {kind}" for kind, count in file.unknown]
    return listed(kinds, most=4) if kinds else "none"


def how(
    report: TraceReport, facts: Iterable[tuple[str, Cell]], *meanings: str
) -> Details:
    """How the figures came about: of what device, from what, in what sense."""
    devices = dict.fromkeys(each.device_name or UNKNOWN for each in report.ranks)
    pairs: list[tuple[str, Cell]] = [
        ("device", listed(tuple(devices), ", ", 4)),
        *facts,
        ("recorded by", "torch's profiler; read from its file, nothing was run"),
    ]
    if report.read_s is not None:
        pairs.append(("read in", seconds_text(report.read_s)))
    drawn = () if report.comparison is not None else (HEIGHTS,)
    said = Paragraph(" ".join((*meanings, BUSY, *drawn)))
    return how_measured(Grid("", tuple(pairs)), said)
