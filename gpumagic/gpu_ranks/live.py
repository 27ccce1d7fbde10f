"""One panel for all ranks while a cell runs, and the word when one does not come."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing
from gpumagic.gpu_ranks.answer_where import (
    hanging,
    waiting_text,
    where_of,
    where_table,
)
from gpumagic.gpu_ranks.answers import Alive, Unfinished
from gpumagic.gpu_ranks.engines import HEARS_S
from gpumagic.gpu_ranks.unfinished import Names, unfinished_text, verb
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.drawing.progress import Place
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.gpu_ranks.engines import Asked

_FEWEST_S_BETWEEN = 0.25
_BEGINS_AFTER_S = 1.0
_FAILED = frozenset({"raised", "lost", "died"})


class Panel:
    """Draws what ranks say, once that takes long."""

    def __init__(self, place: Place, *, hang_s: float) -> None:
        self._place = place
        self._hang_s = hang_s
        self._began_s = self._drawn_s = time.monotonic()
        self._interrupted_s: float | None = None

    def interrupted(self) -> None:
        """Say that Ctrl-C was sent on, and soon who does not hear it."""
        self._interrupted_s = time.monotonic()
        self._drawn_s = -math.inf

    def see(self, asked: Asked) -> None:
        """Draw how things stand, four times a second at most."""
        now_s = time.monotonic()
        early = now_s - self._began_s < _BEGINS_AFTER_S
        if (
            early and self._interrupted_s is None
        ) or now_s - self._drawn_s < _FEWEST_S_BETWEEN:
            return
        self._drawn_s = now_s
        self._place.show(self._drawing(asked, now_s))

    def _drawing(self, asked: Asked, now_s: float) -> Drawing:
        answers = [each for each in asked.checked() if not _is_silent(each)]
        took = seconds_text(now_s - self._began_s)
        running, all_of_them = len(asked.running), len(asked.results)
        title = f"{running} of {count_text(all_of_them, 'engine')} run since {took}"
        where = where_of(answers)
        if waiting := hanging(where, self._hang_s):
            title = waiting_text(waiting[0])
        failed = [each for each in where.unfinished if each.why in _FAILED]
        if any(each.why != "lost" for each in failed):
            title = f"{unfinished_text(failed, Names())}; {title}"
        if self._interrupted_s is not None:
            has_time = now_s - self._interrupted_s > HEARS_S
            title = _after_ctrl_c(answers, len(asked.interrupted), has_time=has_time)
        return Drawing(title, (where_table(where),))


def _is_silent(answer: Answer) -> bool:
    """Whether a rank has not said anything yet."""
    return isinstance(answer, Unfinished) and answer.why == "silent"


def _after_ctrl_c(answers: Sequence[Answer], sent_to: int, *, has_time: bool) -> str:
    """Who has come back, and who does not hear it, once there was time to."""
    running = [each.name for each in answers if isinstance(each, Alive)]
    if not has_time or not running:
        return f"Ctrl-C was sent to {count_text(sent_to, 'engine')}"
    said = f"{Names().several(running)} {verb(running, 'does', 'do')} not hear Ctrl-C"
    return f"{said}: press it again to stop waiting"
