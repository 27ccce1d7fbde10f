"""Ranks side by side: lanes on one clock, or bars where they have none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.cuda_sync_time.view_busy import (
    COMMUNICATION,
    FOR_OTHERS,
    ORDER,
    Picture,
    SeenLane,
    apart,
    laid_over,
)
from gpumagic.cuda_sync_time.view_profile import kernel_name
from gpumagic.drawing import Span, Stack, Stacks
from gpumagic.drawing.lanes import LINE_WIDTH
from gpumagic.gpu_open.trace_records import Clock
from gpumagic.gpu_open.view_trace import LONGEST_NAME, is_host
from gpumagic.report.units import seconds_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import (
        Collective,
        RankShare,
        RankTrace,
        Together,
    )

_OWN = "kernel"
_CAPTION = "Each rank: what it worked, and when it waited"

_Key: TypeAlias = "tuple[str | None, str, int]"


def picture(
    report: TraceReport,
    together: Together,
    pairs: Sequence[tuple[RankShare, RankTrace | None]],
) -> Part:
    """Lanes where there is a common clock and something to draw, else bars."""
    if together.clock is not Clock.APART:
        lanes = _lanes(pairs, _moves(report.ranks))
        if any(lane.spans for lane in lanes):
            return Picture(_caption(together, len(pairs)), lanes, ORDER)
    return _bars(together, [each for each, _ in pairs])


def _caption(together: Together, shown: int) -> str:
    if shown == len(together.ranks):
        return _CAPTION
    return f"{shown} of {len(together.ranks)} ranks: what they worked, when they waited"


def _bars(together: Together, shares: Sequence[RankShare]) -> Stacks:
    stacks = tuple(
        Stack(
            f"rank {each.rank}",
            (
                (_OWN, each.own_s),
                (FOR_OTHERS, each.waits_s),
                (COMMUNICATION, each.moves_s),
            ),
            seconds_text(each.length_s),
        )
        for each in shares
    )
    legend = ((_OWN, "own work"), (FOR_OTHERS, ""), (COMMUNICATION, "data moves"))
    return Stacks(_caption(together, len(shares)), stacks, legend)


def _lanes(
    pairs: Sequence[tuple[RankShare, RankTrace | None]], moves: dict[_Key, float]
) -> tuple[SeenLane, ...]:
    """What each rank did, on the clock that all share."""
    return tuple(
        SeenLane(
            f"rank {each.rank}",
            () if rank is None else tuple(_spans(rank, moves, each.offset_s or 0.0)),
        )
        for each, rank in pairs
    )


def _spans(
    rank: RankTrace, moves: dict[_Key, float], offset_s: float
) -> Iterator[Span]:
    """Its own work, and where there is none, what it waited and what it sent."""
    work = [
        Span(
            each.start_s + offset_s,
            each.end_s + offset_s,
            shortened(kernel_name(each.label), LONGEST_NAME),
            each.kind,
        )
        for lane in rank.lanes
        if not is_host(lane)
        for each in lane.spans
        if each.kind != COMMUNICATION
    ]
    together = apart(
        span
        for each in rank.collectives
        for span in _halves(each, moves.get(_key(each)), offset_s)
    )
    # Gaps that nobody could see do not part what is drawn as one.
    gap_s = (rank.length_s or 0.0) / LINE_WIDTH
    yield from laid_over(together, _joined(apart(work), gap_s))


def _joined(spans: Sequence[Span], gap_s: float) -> list[Span]:
    """Spans that follow each other and are of one kind, as one."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        near = last is not None and span.start_s - last.end_s <= gap_s
        if last is not None and near and last.kind == span.kind:
            label = last.label if last.label == span.label else ""
            joined[-1] = replace(last, end_s=max(last.end_s, span.end_s), label=label)
        else:
            joined.append(span)
    return joined


def _key(each: Collective) -> _Key:
    return each.group, each.name, each.number


def _moves(ranks: Sequence[RankTrace]) -> dict[_Key, float]:
    """How long the transfer of each collective took: what the last to come took."""
    taken: dict[_Key, list[float]] = {}
    for rank in ranks:
        for each in rank.collectives:
            taken.setdefault(_key(each), []).append(each.end_s - each.start_s)
    return {key: min(its) for key, its in taken.items() if len(its) > 1}


def _halves(each: Collective, moves_s: float | None, offset_s: float) -> Iterator[Span]:
    """First it waits for others, then data moves."""
    start_s, end_s = each.start_s + offset_s, each.end_s + offset_s
    if moves_s is None:
        yield Span(start_s, end_s, each.name, COMMUNICATION)
        return
    begins_s = max(end_s - moves_s, start_s)
    if begins_s > start_s:
        yield Span(start_s, begins_s, f"{each.name} waits", FOR_OTHERS)
    yield Span(begins_s, end_s, each.name, COMMUNICATION)
