"""Whether two indices of one tensor can reach the same element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from gpumagic.tensor_info.meetings import meetings
from gpumagic.tensor_info.walks import (
    Walk,
    Walks,
    distinct,
    divisor,
    indices,
    met_by_pair,
    reach,
    walks_of,
)

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import Geometry


@dataclass(frozen=True)
class Overlap:
    """A verdict of "yes", "no" or "not decided", and its reason in words."""

    verdict: str
    why: str


def inside(g: Geometry) -> Overlap:
    """Whether any element of the tensor has more than one index.

    Decided exactly for up to two dims that are not walked as one, and for nearly
    all others; where the search would take too long it is "not decided".
    """
    if g.numel < 2:
        return Overlap("no", "there are no two elements")
    repeated = [dim for dim in g.walked_dims if g.stride[dim] == 0]
    if repeated:
        dim = repeated[0]
        count = g.size[dim]
        return Overlap("yes", f"dim {dim} has stride 0: its {count} indices are one")
    walks = walks_of(g)
    if _each_clears_the_shorter(walks):
        return Overlap("no", "each stride is longer than all shorter ones can reach")
    return _of_two_dims(g) or _by_counting(walks)


def _each_clears_the_shorter(walks: Walks) -> bool:
    far = 0
    for walk in walks:
        if walk.step <= far:
            return False
        far += walk.reach
    return True


def _of_two_dims(g: Geometry) -> Overlap | None:
    """The overlap that two dims alone make, in words; None if no two do."""
    for one, other in combinations(g.walked_dims, 2):
        walks = [Walk(abs(g.stride[dim]), g.size[dim]) for dim in (one, other)]
        if all(met_by_pair(*walks)):
            common = math.gcd(g.stride[one], g.stride[other])
            times = [walk.step // common for walk in reversed(walks)]
            return Overlap(
                "yes",
                f"{_steps(times[0])} of dim {one} and {_steps(times[1])} of dim "
                f"{other} end in the same place",
            )
    return None


def _by_counting(walks: Walks) -> Overlap:
    """What is left when no two dims collide: collisions of three and more."""
    total = indices(walks)
    places = reach(walks) // divisor(walks) + 1
    if total > places:
        return Overlap("yes", f"{total} indices have only {places} places to go to")
    collide = _collide(walks, total)
    if collide is None:
        return Overlap("not decided", "the strides interlock in too many ways to try")
    if collide:
        return Overlap("yes", "steps along several dims together lead to one place")
    return Overlap("no", "no two sums of the strides are equal")


def _collide(walks: Walks, total: int) -> bool | None:
    met = meetings(walks, walks, 0)
    if met is not None:
        return met > total
    count = distinct(walks)
    return None if count is None else count < total


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
