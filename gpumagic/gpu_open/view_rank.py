"""One process by its trace: how busy the GPU was, what held it back, what to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.view_profile import operators_table
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Table,
)
from gpumagic.drawing.document import MOST_NOTES, MOST_ROWS
from gpumagic.gpu_open.view_advice import GRAVE, WORTH_A_NOTE, notes
from gpumagic.gpu_open.view_trace import (
    HIDDEN,
    NEGLIGIBLE,
    by_kind,
    by_short_name,
    exposed_s,
    file_details,
    file_name,
    host_name,
    how,
    is_host,
    kernel_details,
    kernel_table,
    kernel_text,
    part_meter,
    picture,
    rank_name,
    share,
    unknown_entries,
)
from gpumagic.report.robust import median, quartiles
from gpumagic.report.units import (
    bytes_text,
    range_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.cuda_sync_time.view_busy import Picture
    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import (
        Collective,
        Idle,
        LaneTrace,
        RankTrace,
        Step,
    )

_HOST_LANES, _LANES = 1, 3  # in sight
_HARDLY_BUSY = 0.02  # of the busiest stream: such a one is folded
_PHASES = {"input": "input: the host waited for it"}
_OTHER = "other"  # the kind of kernels that none of the others fits
_WIDTH, _FEWEST_ROWS = 80, 2
# What is left of the first screen beside title, headings, axis and legend.
_LINES, _PIXELS = 14, 390
_EACH_LANE, _EACH_NOTE, _EACH_FOLDED, _EACH_ROW = 33, 22, 21, 28

_IDLE = (
    "The host was late: the next work was launched only after the GPU ran dry. "
    "Another stream: it was launched in time, and what ran last ran elsewhere. "
    "From one kernel to the next: what had been launched began within 10 us."
)


def headline(rank: RankTrace) -> str:
    """How long, how busy, and what held it back."""
    name = rank_name(rank)
    said = _answer(rank)
    return f"{name}: {said}" if name else said


def _answer(rank: RankTrace) -> str:
    if not rank.length_s:
        if unknown_entries(rank.file) and rank.host_length_s is None:
            return "nothing of torch's profiler is in this trace"
        ran = "" if rank.host_length_s is None else seconds_text(rank.host_length_s)
        host = f"; the host ran for {ran}" if ran else ""
        return f"no GPU work is in this trace{host}"
    length_s = rank.length_s
    busy = share_text(share(rank.busy_s, length_s))
    said = f"{seconds_text(length_s)}, the GPU was busy {busy} of it"
    exposed = share(exposed_s(rank), length_s) or 0.0
    if exposed >= NEGLIGIBLE:
        said += f", {share_text(exposed)} only with communication"
    held = _held_up(rank.idle, length_s)
    if held:
        return f"{said}; {held}"
    return said if exposed >= NEGLIGIBLE else f"{said}{_mostly(rank)}"


def _held_up(idle: Idle | None, length_s: float) -> str:
    if idle is None:
        return ""
    known_s, known = max(
        (idle.host_late_s, "the host was late for {}"),
        (idle.other_stream_s, "{} idle between two streams"),
        (idle.between_s, "{} idle from one kernel to the next"),
    )
    unknown_s = idle.unexplained_s + idle.unlaunched_s
    unknown = seconds_text(unknown_s)
    is_large = unknown_s > max(known_s, GRAVE * length_s)
    if known_s < (WORTH_A_NOTE if is_large else NEGLIGIBLE) * length_s:
        return f"why it was idle for {unknown} is unknown" if is_large else ""
    said = known.format(seconds_text(known_s))
    return f"{said}, {unknown} idle for unknown reasons" if is_large else said


def _mostly(rank: RankTrace) -> str:
    if not rank.kernels:
        return ", only with copies"
    kind, name = by_kind(rank.kernels)[0], by_short_name(rank.kernels)[0]
    whole_s = sum(each.total_s for each in rank.kernels)
    if kind.name == _OTHER:
        of_all = share_text(share(name.total_s, whole_s))
        return f", mostly {kernel_text(name.name)} ({of_all})"
    return f", mostly {kind.name} kernels ({share_text(share(kind.total_s, whole_s))})"


def parts(report: TraceReport, rank: RankTrace) -> Iterator[Part]:
    """Who was busy when, what took the time, what to do; all else is folded."""
    shown, lanes = notes(rank), _lanes_in_sight(rank)
    folded = (
        *_folded(rank),
        file_details(report),
        how(report, _facts(rank), *((HIDDEN,) if rank.communication_s else ())),
    )
    drawn = picture(rank, lanes) if lanes else None
    if drawn is not None:
        yield drawn
    rows = _rows_left(drawn, shown[:MOST_NOTES], folded)
    table = _table_in_sight(rank, rows) if rows else None
    if table is not None:
        yield table
    yield from shown
    yield from folded


def _rows_left(
    drawn: Picture | None, shown: Sequence[Note], folded: Sequence[Details]
) -> int:
    """How many rows of a table the first screen has room for; none if hardly any.

    A terminal has lines for it, a notebook pixels, as JupyterLab spaces them out.
    """
    lanes = 0 if drawn is None else len(drawn.shown)
    lines = _LINES - lanes - sum(map(_lines_of, shown))
    pixels = (
        _PIXELS
        - _EACH_LANE * lanes
        - sum(_EACH_NOTE * (1 + bool(each.hint)) for each in shown)
    )
    pixels -= _EACH_FOLDED * len(folded)
    rows = min(lines, pixels // _EACH_ROW, MOST_ROWS)
    return rows if rows >= _FEWEST_ROWS else 0


def _lines_of(note: Note) -> int:
    """How many lines a terminal needs for it: the sign before each takes some room."""
    said = (f"! {note.kind}: {note.text}", f"    -> {note.hint}" if note.hint else "")
    return sum(-(-len(each) // _WIDTH) for each in said)


# --------------------------------------------------------------------- in sight


def _lanes_in_sight(rank: RankTrace) -> list[LaneTrace]:
    host = [lane for lane in rank.lanes if is_host(lane)]
    streams = [lane for lane in rank.lanes if not is_host(lane)]
    hosts = host[:_HOST_LANES]
    least_s = _HARDLY_BUSY * max((lane.busy_s for lane in streams), default=0.0)
    seen = [lane for lane in streams if lane.busy_s >= least_s]
    return [*hosts, *seen[: _LANES - len(hosts)]]


def _table_in_sight(rank: RankTrace, most: int) -> Table | None:
    """What has to change: the host's work where it is late, else the kernels."""
    if rank.length_s is None:
        table = operators_table(rank.operators)
        return table.beginning(most) if rank.operators else None
    late_s = rank.idle.host_late_s if rank.idle is not None else 0.0
    if late_s > GRAVE * rank.length_s and rank.idle and len(rank.idle.host_was_in) > 1:
        return _host_table(rank.idle).beginning(most)
    return kernel_table(rank, most) if rank.kernels else None


def _host_table(idle: Idle) -> Table:
    properties = (
        Property(
            Column("The host was in"), lambda each: shortened(host_name(each.name), 48)
        ),
        Property(Column("Late", number=True), lambda each: seconds_text(each.seconds)),
        Property(
            Column("Of it"), lambda each: part_meter(each.seconds, idle.host_late_s)
        ),
    )
    return Table.of(
        "Where the host was while it was late", properties, idle.host_was_in
    )


# ----------------------------------------------------------------------- folded


def _folded(rank: RankTrace) -> Iterator[Details]:
    yield from kernel_details(rank.kernels, *([_phases(rank)] if rank.phases else ()))
    if rank.idle is not None and rank.length_s:
        yield Details("Why the GPU was idle", tuple(_idle(rank, rank.idle)), "idle")
    if rank.steps:
        yield Details("Step by step", tuple(_steps(rank.steps)), "steps")
    if rank.lines:
        yield Details("What lines launched", (_lines(rank),), "lines")
    if rank.operators and rank.length_s is not None:
        yield Details(
            "Operators on the host",
            (replace(operators_table(rank.operators), caption=""),),
            "operators",
        )
    if rank.collectives:
        yield Details("What it did with others", (_collectives(rank),), "collectives")
    in_sight = _lanes_in_sight(rank)
    if others := [lane for lane in rank.lanes if lane not in in_sight]:
        yield Details("Other threads and streams", (picture(rank, others),), "lanes")


def _phases(rank: RankTrace) -> Table:
    whole_s = sum(seconds for _, seconds in rank.phases)
    properties = (
        Property(Column("For"), lambda each: _PHASES.get(each[0], each[0])),
        Property(Column("Time", number=True), lambda each: seconds_text(each[1])),
        Property(Column("Of all"), lambda each: part_meter(each[1], whole_s)),
    )
    return Table.of("What it worked for", properties, rank.phases)


def _idle(rank: RankTrace, idle: Idle) -> Iterator[Part]:
    def timed(seconds: float) -> str:
        its = share_text(share(seconds, rank.length_s))
        return f"{seconds_text(seconds)}, {its} of the time"

    yield Grid(
        "",
        (
            ("the host was late", timed(idle.host_late_s)),
            ("another stream", timed(idle.other_stream_s)),
            *(
                (name, timed(seconds))
                for name, seconds in (
                    ("from one kernel to the next", idle.between_s),
                    ("no launch in the file", idle.unlaunched_s),
                )
                if seconds
            ),
            ("unknown", timed(idle.unexplained_s)),
        ),
    )
    if idle.host_was_in:
        yield _host_table(idle)
    yield Paragraph(_IDLE)


def _steps(steps: Sequence[Step]) -> Iterator[Part]:
    lengths = [each.length_s for each in steps]
    usual_s = median(lengths)
    low_s, high_s = quartiles(lengths)
    pairs: list[tuple[str, Cell]] = [("steps", f"{len(steps):,}")]
    if len(steps) > 1:
        half = range_text(seconds_text(low_s), seconds_text(high_s))
        pairs += [("median", seconds_text(usual_s)), ("middle half", half)]
    yield Grid("", tuple(pairs))
    if len(set(lengths)) > 1:
        yield Sparkline("Length of a step", lengths, seconds_text)
    properties = (
        Property(Column("Step", number=True), lambda each: str(each.number)),
        Property(
            Column("Begins", number=True), lambda each: seconds_text(each.start_s)
        ),
        Property(
            Column("Length", number=True), lambda each: seconds_text(each.length_s)
        ),
        Property(Column("GPU busy"), _busy_in),
    )
    yield Table.of("", properties, steps)


def _busy_in(step: Step) -> Cell:
    return None if step.busy_s is None else part_meter(step.busy_s, step.length_s)


def _lines(rank: RankTrace) -> Table:
    most_s = sum(each.device_s for each in rank.lines)
    properties = (
        Property(Column("Line"), lambda each: shortened(each.line.where, 60)),
        Property(Column("Launches", number=True), lambda each: f"{each.launches:,}"),
        Property(Column("GPU", number=True), lambda each: seconds_text(each.device_s)),
        Property(Column("Of these"), lambda each: part_meter(each.device_s, most_s)),
        Property(Column("Code"), lambda each: shortened(each.line.source or "", 60)),
    )
    known = any(each.line.source for each in rank.lines)
    return Table.of("", properties if known else properties[:-1], rank.lines)


@dataclass(frozen=True)
class _Named:
    """The communication of one name."""

    name: str
    count: int
    total_s: float
    longest_s: float
    nbytes: int | None


def _by_name(collectives: Sequence[Collective]) -> list[_Named]:
    alike: dict[str, list[Collective]] = {}
    for each in collectives:
        alike.setdefault(each.name, []).append(each)
    named = [
        _Named(
            name,
            len(its),
            sum(each.end_s - each.start_s for each in its),
            max(each.end_s - each.start_s for each in its),
            None
            if any(each.nbytes is None for each in its)
            else sum(each.nbytes or 0 for each in its),
        )
        for name, its in alike.items()
    ]
    return sorted(named, key=lambda each: -each.total_s)


def _collectives(rank: RankTrace) -> Table:
    properties = (
        Property(Column("Communication"), lambda each: shortened(each.name, 40)),
        Property(Column("Count", number=True), lambda each: f"{each.count:,}"),
        Property(Column("Total", number=True), lambda each: seconds_text(each.total_s)),
        Property(
            Column("Longest", number=True), lambda each: seconds_text(each.longest_s)
        ),
        Property(Column("Sent", number=True), lambda each: _sent(each.nbytes)),
    )
    return Table.of("", properties, _by_name(rank.collectives))


def _sent(nbytes: int | None) -> Cell:
    return None if nbytes is None else bytes_text(nbytes)


def _facts(rank: RankTrace) -> Iterator[tuple[str, Cell]]:
    yield "file", file_name(rank)
    if rank.world_size is not None and rank.world_size > 1:
        yield "ranks of the job", f"{rank.world_size:,}"
    for name, seconds in (
        ("computing", rank.compute_s),
        ("communicating", rank.communication_s),
        ("of that, hidden", rank.hidden_communication_s),
        ("copies and fills", rank.copy_s),
        ("idle", rank.idle_s),
    ):
        if seconds:
            of_all = share_text(share(seconds, rank.length_s))
            yield name, f"{seconds_text(seconds)}, {of_all} of the time"
    if rank.launches is not None:
        yield "launches", f"{rank.launches:,}"
    if rank.streams is not None:
        yield "streams", str(rank.streams)
    if rank.devices > 1:
        yield "devices in the file", str(rank.devices)
