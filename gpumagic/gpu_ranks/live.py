"""One panel for all ranks while a cell runs, and the word when one does not come."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Self

from gpumagic.drawing import Column, Drawing, Table
from gpumagic.gpu_ranks import analysis
from gpumagic.gpu_ranks.answers import Alive, Done, Sums
from gpumagic.gpu_ranks.records import Unfinished
from gpumagic.gpu_ranks.view_where import waiting_text
from gpumagic.notebook.live import place_in
from gpumagic.report.units import count_text, listed, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from gpumagic.gpu_ranks.answers import Answer
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
            f"Ctrl-C was sent to {told}. Waiting in a collective, a rank may not hear "
            "it: Ctrl-C again stops waiting."
        )
        self._drawn_s = -math.inf

    def see(self, asked: Asked) -> None:
        """Draw how things stand, four times a second at most."""
        now_s = time.monotonic()
        early = now_s - self._began_s < _BEGINS_AFTER_S and not self._interrupted
        if early or now_s - self._drawn_s < _FEWEST_S_BETWEEN:
            return
        self._drawn_s = now_s
        self._place.show(self._drawing(asked, now_s))

    def _drawing(self, asked: Asked, now_s: float) -> Drawing:
        answers = asked.checked()
        took = seconds_text(now_s - self._began_s)
        running, all_of_them = len(asked.running), len(asked.results)
        title = f"{running} of {count_text(all_of_them, 'engine')} run since {took}"
        if gone := [str(each.name) for each in answers if _has_died(each)]:
            title = f"Engine of rank {listed(gone)} is gone; {title}"
        if waiting := self._hanging(answers):
            title = waiting_text(waiting)
        return Drawing(self._interrupted or title, (_table(answers),))

    def _hanging(self, answers: Sequence[Answer]) -> Waiting | None:
        """The collective that has long been open, as a rank has not called it."""
        return next(
            (
                each
                for each in analysis.where_of(answers).waiting
                if each.waited_s is not None and each.waited_s >= self._hang_s
            ),
            None,
        )


def _has_died(answer: Answer) -> bool:
    return isinstance(answer, Unfinished) and answer.why == "died"


def _table(answers: Sequence[Answer]) -> Table:
    rows = sorted(answers, key=lambda each: each.name)
    return Table(
        "Where ranks are",
        (Column("Rank", number=True), Column("Is"), Column("At"), Column("Steps")),
        tuple((str(each.name), *_row(each)) for each in rows[:_MOST_ROWS]),
    )


def _row(answer: Answer) -> tuple[str, str, str]:
    if isinstance(answer, Done | Sums):
        return "at the end" if answer.error is None else "has failed", "", ""
    if isinstance(answer, Unfinished):
        return "begins" if answer.why == "silent" else f"has {answer.why}", "", ""
    if not isinstance(answer, Alive):
        return "at the end", "", ""
    line = "" if answer.line is None else answer.line.where
    return _state(answer), line, _steps(answer)


def _state(alive: Alive) -> str:
    """Waiting or working; backward waits for others without being in torch's Python."""
    if alive.inside:
        return f"waits in {alive.inside}"
    return "waits for others" if alive.working is False else "works"


def _steps(each: Alive) -> str:
    if each.progress is None:
        return ""
    done, total = each.progress
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"
