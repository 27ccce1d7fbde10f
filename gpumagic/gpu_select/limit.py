"""The limit that a process was started with: a scheduler's mask, or the kernel's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_select import environment
from gpumagic.gpu_select.environment import ORDER, VISIBLE
from gpumagic.gpu_select.machine import Place, places, rank_of

if TYPE_CHECKING:
    from gpumagic.gpu_select.situation import Situation


def limiting_mask(situation: Situation) -> str | None:
    """The value that the process was started with; None if it sets no limit."""
    known, value = environment.at_start(VISIBLE)
    if not known or situation.driver.overlooks(value):
        return None
    return value


def allowed_places(situation: Situation) -> tuple[Place, ...] | None:
    """What may be chosen, in the order of the limit; None where all may be."""
    value = limiting_mask(situation)
    if value is None:
        return None
    _, order = environment.at_start(ORDER)
    seen = situation.prediction(value, order)
    ranked = {
        place: rank
        for place in places(situation.inventory)
        if (rank := rank_of(place, seen)) is not None
    }
    return tuple(sorted(ranked, key=lambda place: ranked[place]))
