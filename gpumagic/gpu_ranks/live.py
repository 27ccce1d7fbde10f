"""One panel for all ranks while a cell runs, and the word when one does not come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from gpumagic.drawing import Column, Drawing, Table
from gpumagic.gpu_ranks import analysis
from gpumagic.gpu_ranks.answers import Alive, read
from gpumagic.gpu_ranks.view_where import waiting_text
from gpumagic.notebook.live import place_in
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from gpumagic.gpu_ranks.engines import Asked
    from gpumagic.gpu_ranks.records import Waiting

_FEWEST_S_BETWEEN = 0.25
_BEGINS_AFTER_S = 1.0
_MOST_ROWS = 8


class Panel:
    """Draws what ranks say until the cell has ended, and is gone then.

    Args:
        shell: Where it is drawn.

        hang_s: How long the same collective is open until it is told.
    """

    def __init__(self, shell: Any, *, hang_s: float) -> None:
        self._place = place_in(shell)
        self._hang_s = hang_s
        self._began_s = self._drawn_s = time.monotonic()
        self._open: tuple[Any, float] = (None, 0.0)
        self._interrupted = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._place.clear()

    def interrupted(self, running: Sequence[int]) -> None:
        """Say that Ctrl-C was sent on, and what a second one does."""
        told = count_text(len(running), "engine")
        self._interrupted = (
            f"Ctrl-C was sent to {told}; one that waits in a collective may not hear "
            "it. Ctrl-C again stops waiting."
        )
        self._drawn_s = 0.0

    def see(self, asked: Asked) -> None:
        """Draw how things stand, four times a second at most."""
        now_s = time.monotonic()
        early = now_s - self._began_s < _BEGINS_AFTER_S
        if early or now_s - self._drawn_s < _FEWEST_S_BETWEEN:
            return
        self._drawn_s = now_s
        self._place.show(self._drawing(asked, now_s))

    def _drawing(self, asked: Asked, now_s: float) -> Drawing:
        said = asked.alive()
        waiting = self._hanging(analysis.where(said).waiting, now_s)
        alive = [each for one in said if isinstance(each := read(one, 0), Alive)]
        took = seconds_text(now_s - self._began_s)
        title = f"{len(asked.running)} of {len(asked.results)} engines run since {took}"
        if waiting is not None:
            title = waiting_text(waiting)
        return Drawing(self._interrupted or title, (_table(alive),) if alive else ())

    def _hanging(self, waiting: Sequence[Waiting], now_s: float) -> Waiting | None:
        """The collective that has been open for long with the same ranks missing."""
        first = next((each for each in waiting if each.missing), None)
        key = first and (first.collective, first.number, first.missing)
        if key != self._open[0]:
            self._open = key, now_s
        return first if first and now_s - self._open[1] >= self._hang_s else None


def _table(alive: Sequence[Alive]) -> Table:
    return Table(
        "Where ranks are",
        (Column("Rank", number=True), Column("Is"), Column("At"), Column("Steps")),
        tuple(
            (
                str(each.name),
                f"waits in {each.inside}" if each.inside else "works",
                "" if each.line is None else each.line.where,
                _steps(each),
            )
            for each in sorted(alive, key=lambda each: each.name)[:_MOST_ROWS]
        ),
    )


def _steps(each: Alive) -> str:
    if each.progress is None:
        return ""
    done, total = each.progress
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"
