"""Ranks side by side: lanes on one clock, or bars where they have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.view_busy import (
    COMMUNICATION,
    FOR_OTHERS,
    ORDER,
    SeenLane,
    apart,
    laid_over,
)
from gpumagic.cuda_sync_time.view_profile import kernel_name
from gpumagic.drawing import Span
from gpumagic.drawing.lanes import LINE_WIDTH
from gpumagic.gpu_open.trace_records import Clock
from gpumagic.gpu_open.view_shares import bars, joined
from gpumagic.gpu_open.view_trace import TracePicture, is_host, kernel_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part, Stacks
    from gpumagic.gpu_open.trace_records import (
        RankShare,
        RankTrace,
        Together,
    )

_CAPTION = "Each rank: what it worked, and when it waited"


def picture(
    together: Together,
    pairs: Sequence[tuple[RankShare, RankTrace | None]],
) -> Part:
    """Lanes where there is a common clock and something to draw, else bars."""
    known = all(each.offset_s is not None for each, _ in pairs)
    if together.clock is not Clock.APART and known:
        lanes = _lanes(pairs)
        if any(lane.spans for lane in lanes):
            began_s = [each.offset_s or 0.0 for each, _ in pairs]
            ended_s = [(each.offset_s or 0.0) + each.length_s for each, _ in pairs]
            window = Span(min(began_s), max(ended_s))
            return TracePicture(_caption(together, len(pairs)), lanes, ORDER, window)
    return _bars(together, [each for each, _ in pairs])


def _caption(together: Together, shown: int) -> str:
    if shown == len(together.ranks):
        return _CAPTION
    return f"{shown} of {len(together.ranks)} ranks: what they worked, when they waited"


def _bars(together: Together, shares: Sequence[RankShare]) -> Stacks:
    named = ((f"rank {each.rank}", each, each.length_s) for each in shares)
    return bars(_caption(together, len(shares)), named)


def _lanes(
    pairs: Sequence[tuple[RankShare, RankTrace | None]],
) -> tuple[SeenLane, ...]:
    """What each rank did, on the clock that all share."""
    return tuple(
        SeenLane(
            f"rank {each.rank}",
            () if rank is None else tuple(_spans(each, rank, each.offset_s or 0.0)),
        )
        for each, rank in pairs
    )


def _spans(each: RankShare, rank: RankTrace, offset_s: float) -> Iterator[Span]:
    """Its own work, and where there is none, when it waited and what it sent."""

    def span(start_s: float, end_s: float, label: str, kind: str) -> Span:
        return Span(start_s + offset_s, end_s + offset_s, label, kind)

    work = apart(
        span(one.start_s, one.end_s, kernel_text(kernel_name(one.label)), one.kind)
        for lane in rank.lanes
        if not is_host(lane)
        for one in lane.spans
        if one.kind != COMMUNICATION
    )
    waits = apart(span(*moments, "", FOR_OTHERS) for moments in each.waiting)
    moves = apart(
        span(one.start_s, one.end_s, one.name, COMMUNICATION)
        for one in rank.collectives
    )
    # Gaps that nobody could see do not part what is drawn as one.
    gap_s = (rank.length_s or 0.0) / LINE_WIDTH
    together = sorted(laid_over(moves, waits), key=_start)
    yield from laid_over(joined(together, gap_s), joined(work, gap_s))


def _start(span: Span) -> float:
    return span.start_s
