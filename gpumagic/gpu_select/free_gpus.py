"""Chooses the best of the GPUs that are free, and says why each other is not."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_select.choice import (
    Choice,
    NotEnough,
    Opinion,
    is_within,
    may_have,
    out_of_reach,
)
from gpumagic.gpu_select.machine import (
    Place,
    find,
    places,
    require_gpus,
    together,
)
from gpumagic.gpu_select.usage import busy_text, usage_of
from gpumagic.report.units import bytes_text, count_text, listed, part_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.request import Request
    from gpumagic.gpu_select.usage import Usage

# A difference in free memory below this share of the memory is noise.
_NOISE_SHARE = 0.01
# An idle GPU that draws a desktop, or whose driver keeps a little, is still free.
_FREE_AT_SHARE = 0.05


def freest(  # noqa: PLR0913 -- the machine, and what else speaks for or against
    request: Request,
    inventory: Inventory,
    *,
    allowed: Sequence[Place] | None,
    claimed: Mapping[str, str],
    is_mine: Callable[[int], bool | None],
    pick: Callable[[Sequence[Place]], Place],
) -> Choice:
    """The best of the places that are free, as many as are asked for."""
    require_gpus(inventory)
    excluded = [find(name, inventory) for name in request.exclude]
    usages = [
        usage_of(place, is_mine, own_yield=request.mine_ok)
        for place in places(inventory)
    ]
    refusals = {
        usage: [
            *_of_identity(usage.place, request, allowed, excluded),
            *_of_claim(usage.place, claimed),
            *_of_use(usage, request),
        ]
        for usage in usages
    }
    fitting = [usage for usage in usages if not refusals[usage]]
    ranking = _rank(fitting, request.count, pick)
    if len(ranking.taken) < request.count:
        raise _not_enough(request, inventory, refusals)
    opinions = (_opinion(usage, refusals[usage], ranking) for usage in usages)
    return Choice(tuple(ranking.taken), tuple(opinions))


def _of_identity(
    place: Place,
    request: Request,
    allowed: Sequence[Place] | None,
    excluded: Iterable[Place],
) -> Iterable[_Refusal]:
    """What speaks against a place because of which it is."""
    name = place.gpu.name
    if not may_have(place, allowed):
        yield _Refusal(_Cause.LIMIT, "outside of what this kernel was given")
    if any(is_within(place, each) for each in excluded):
        yield _Refusal(_Cause.FILTER, "excluded")
    if request.model and request.model.lower() not in (name or "").lower():
        is_called = "its model is unknown" if name is None else f"it is of model {name}"
        yield _Refusal(_Cause.FILTER, f"{is_called}, {request.model} asked for")
    if request.count > 1 and place.part is not None:
        yield _Refusal(_Cause.SLICE, "one process sees one slice, several asked for")


def _of_claim(place: Place, claimed: Mapping[str, str]) -> Iterable[_Refusal]:
    if place.uuid is not None and place.uuid in claimed:
        yield _Refusal(_Cause.CLAIM, f"claimed by {claimed[place.uuid]}")


def _opinion(usage: Usage, reasons: Sequence[_Refusal], ranking: _Ranking) -> Opinion:
    place = usage.place
    taken = place in ranking.taken
    if reasons:
        return Opinion(place, taken, "; ".join(each.why for each in reasons))
    behind = "" if taken else f"free as well, but behind {together(ranking.taken)}"
    remark = ranking.remarks.get(place, behind)
    return Opinion(place, taken, f"{usage}; {remark}" if remark else str(usage))


def _not_enough(
    request: Request,
    inventory: Inventory,
    refusals: Mapping[Usage, Sequence[_Refusal]],
) -> NotEnough:
    found = sum(not reasons for reasons in refusals.values())
    asked = count_text(request.count, "GPU")
    one = found <= 1
    if _has_limits(request):
        fit = "fits" if one else "fit"
    else:
        fit = "is free" if one else "are free"
    opinions = tuple(
        Opinion(usage.place, taken=False, why="; ".join(each.why for each in reasons))
        if reasons
        else Opinion(usage.place, taken=False, why=f"{usage}; fits")
        for usage, reasons in refusals.items()
    )
    return NotEnough(
        f"{asked} {'was' if request.count == 1 else 'were'} asked for, "
        f"{found or 'none'} {fit}{out_of_reach(inventory)}",
        _way_out(request, found, refusals.items()),
        opinions,
    )


def _has_limits(request: Request) -> bool:
    limits = (request.min_free_bytes, request.max_util_share, request.model)
    return bool(request.exclude) or any(limit is not None for limit in limits)


# ---------------------------------------------------------------- ranking


@dataclass
class _Ranking:
    """The best places in order, and what is to be said of chance."""

    taken: list[Place] = field(default_factory=list)
    remarks: dict[Place, str] = field(default_factory=dict)


def _rank(
    usages: Sequence[Usage], count: int, pick: Callable[[Sequence[Place]], Place]
) -> _Ranking:
    """Take the best places, as many as there are up to a count.

    More free memory is better; of those that differ by noise only, the one with
    fewer compute processes, then the less busy one, then a whole GPU. What is
    unknown ranks behind what is known.

    Of several that are equal, `pick` takes one.
    """
    ranking, left = _Ranking(), list(usages)
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


# ---------------------------------------------------------------- refusing


class _Cause(enum.Enum):
    """What a refusal comes from: each has a way out of its own."""

    LIMIT = "limit"  # the process was not given it
    FILTER = "filter"  # the user does not want it
    SLICE = "slice"  # one process sees one
    MODE = "mode"
    CLAIM = "claim"
    USE = "use"
    NEED = "need"  # free memory is not enough
    SIZE = "size"  # all of its memory would not be enough


_PASSING = {_Cause.CLAIM, _Cause.USE, _Cause.NEED}  # what time may heal


class _Refusal(NamedTuple):
    """A reason against a place."""

    cause: _Cause
    why: str


def _of_use(usage: Usage, request: Request) -> Iterator[_Refusal]:
    """What speaks against a place because of how it is used; unknowns never do."""
    yield from _of_mode(usage)
    if request.min_free_bytes is None:
        yield from _of_not_being_free(usage)
    else:
        yield from _of_need(usage, request.min_free_bytes)
    limit, busy = request.max_util_share, usage.busy_share
    if limit is not None and busy is not None and busy > limit:
        yield _Refusal(
            _Cause.USE,
            f"{busy_text(busy)}, at most {limit * 100:.3g} % asked for",
        )


def _of_not_being_free(usage: Usage) -> Iterator[_Refusal]:
    if usage.processes:
        count = count_text(usage.processes, "process", "processes")
        own = usage.own_processes and not usage.own_yield
        yield _Refusal(_Cause.USE, f"{count} on it{_of_yours(usage) if own else ''}")
    used, total = usage.used_bytes, usage.total_bytes
    if used is not None and total is not None and used > total * _FREE_AT_SHARE:
        listed_ones = usage.processes or usage.own_processes
        unseen = "" if listed_ones else " by processes that are not listed"
        yield _Refusal(_Cause.USE, f"{part_text(used, total)} in use{unseen}")


def _of_yours(usage: Usage) -> str:
    all_own = usage.own_processes == usage.processes
    return ", your own" if all_own else f", {usage.own_processes} of them your own"


def _of_need(usage: Usage, needed: int) -> Iterator[_Refusal]:
    free, total = usage.free_bytes, usage.total_bytes
    asked = f"{bytes_text(needed)} asked for"
    if total is not None and total < needed:
        yield _Refusal(_Cause.SIZE, f"{bytes_text(total)} in all, {asked}")
    elif free is not None and free < needed:
        yield _Refusal(_Cause.NEED, f"{bytes_text(free)} free, {asked}")


def _of_mode(usage: Usage) -> Iterator[_Refusal]:
    """CUDA cannot start on it, whatever is free."""
    mode = usage.place.gpu.compute_mode or ""
    processes = (usage.processes or 0) + usage.own_processes * usage.own_yield
    if mode == "prohibited":
        yield _Refusal(_Cause.MODE, "its compute mode forbids CUDA")
    elif mode.startswith("exclusive") and processes:
        why = "its compute mode admits one process, which is there"
        yield _Refusal(_Cause.MODE, why)


# ---------------------------------------------------------------- ways out


def _way_out(
    request: Request,
    found: int,
    refused: Iterable[tuple[Usage, Sequence[_Refusal]]],
) -> str:
    """What to type after fewer places were found than asked for."""
    cases = [(usage, {each.cause for each in reasons}) for usage, reasons in refused]
    mine = not request.mine_ok and any(_mine_in_the_way(*case) for case in cases)
    causes = [each for _, each in cases if each]
    # Waiting is of use where the GPUs in the way would be enough, if they were free.
    waited_for = sum(each <= _PASSING for each in causes)
    passing = waited_for and found + waited_for >= request.count
    too_small = any(_Cause.SIZE in each for each in causes)
    largest = max((usage.total_bytes or 0 for usage, _ in cases), default=0)
    shared = causes.count({_Cause.USE}) if request.min_free_bytes is None else 0
    sharing = shared and found + shared >= request.count
    ways = [
        *([f"-n {found} for what there is"] if found else []),
        *(["-n 1 for a slice"] if {_Cause.SLICE} in causes and not found else []),
        *(["--mine-ok to count your own processes as free"] if mine else []),
        *(["--wait 10m to wait for more"] if passing else []),
        *(["--min-free 20GiB to share a GPU with others"] if sharing else []),
        *(["less for --min-free"] if {_Cause.NEED} in causes else []),
        *([_of_the_largest(largest)] if too_small and not passing else []),
        *(["less to filter by"] if {_Cause.FILTER} in causes else []),
        *(["--force to leave the limit"] if {_Cause.LIMIT} in causes else []),
    ]
    if ways:
        return f"type {listed(ways, ' or ')}"
    return "type %gpu_select without a word to see what there is"


def _of_the_largest(total_bytes: int) -> str:
    return f"less for --min-free, as the largest has {bytes_text(total_bytes)} in all"


def _mine_in_the_way(usage: Usage, causes: set[_Cause]) -> bool:
    """Whether the place might be had, were it not for the user's own processes."""
    return (
        bool(causes) and usage.own_processes > 0 and causes <= {_Cause.USE, _Cause.NEED}
    )
