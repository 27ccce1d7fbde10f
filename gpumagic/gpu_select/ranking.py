"""Which of the places that can be had are the best, and which are equally good."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.gpu_select.naming import together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.gpu_select.machine import Place
    from gpumagic.gpu_select.usage import Usage

# A difference in free memory below this share of the memory is noise.
_NOISE_SHARE = 0.01


@dataclass
class Ranking:
    """The best places in order, and what is to be said of chance."""

    taken: list[Place] = field(default_factory=list)
    remarks: dict[Place, str] = field(default_factory=dict)


def rank(
    usages: Sequence[Usage], count: int, pick: Callable[[Sequence[Place]], Place]
) -> Ranking:
    """Take the best places, as many as there are up to a count.

    More free memory is better; of those that differ by noise only, the one with
    fewer compute processes, then the less busy one, then a whole GPU. What is
    unknown ranks behind what is known.

    Args:
        usages: The places to take from.

        count: How many are wanted.

        pick: Takes one of several that are equal.
    """
    ranking, left = Ranking(), list(usages)
    while left and len(ranking.taken) < count:
        equals = [usage.place for usage in _foremost(left)]
        wanted = count - len(ranking.taken)
        drawn = equals if len(equals) <= wanted else _draw(equals, wanted, pick)
        if drawn is not equals:
            ranking.remarks |= _remarks(equals, drawn)
        ranking.taken += drawn
        left = [usage for usage in left if usage.place not in drawn]
    return ranking


def _foremost(usages: Sequence[Usage]) -> Sequence[Usage]:
    """The best, and all that equal it."""
    foremost = _with_most_memory(usages)
    for figure in (_processes, _busy, _is_slice):
        least = min(figure(usage) for usage in foremost)
        foremost = [usage for usage in foremost if figure(usage) == least]
    return foremost


def _with_most_memory(usages: Sequence[Usage]) -> Sequence[Usage]:
    known = {
        usage: usage.free_bytes for usage in usages if usage.free_bytes is not None
    }
    if not known:
        return usages
    noise = _NOISE_SHARE * max(usage.total_bytes or 0 for usage in known)
    enough = max(known.values()) - noise
    return [usage for usage, free in known.items() if free >= enough]


def _processes(usage: Usage) -> float:
    return math.inf if usage.processes is None else usage.processes


def _busy(usage: Usage) -> float:
    return math.inf if usage.busy_share is None else usage.busy_share


def _is_slice(usage: Usage) -> bool:
    return usage.place.part is not None


def _draw(
    equals: list[Place], count: int, pick: Callable[[Sequence[Place]], Place]
) -> list[Place]:
    """So many of the equals, by number."""
    left = list(equals)
    for _ in range(count):
        left.remove(pick(tuple(left)))
    return [place for place in equals if place not in left]


def _remarks(equals: list[Place], drawn: list[Place]) -> dict[Place, str]:
    remarks = {}
    for place in equals:
        if place in drawn:
            others = together(other for other in equals if other != place)
            remarks[place] = f"equal to {others}; taken at random"
        else:
            which = "which was" if len(drawn) == 1 else "which were"
            remarks[place] = f"equal to {together(drawn)}, {which} taken at random"
    return remarks
