"""The best of the GPUs that are free, and why each other is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_select import refusing
from gpumagic.gpu_select.choice import (
    Choice,
    NotEnough,
    Opinion,
    is_within,
    may_have,
    out_of_reach,
)
from gpumagic.gpu_select.machine import Place, places
from gpumagic.gpu_select.naming import find, require_gpus, together
from gpumagic.gpu_select.ranking import rank
from gpumagic.gpu_select.refusing import Cause, Refusal
from gpumagic.gpu_select.usage import usage_of
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.ranking import Ranking
    from gpumagic.gpu_select.request import Request
    from gpumagic.gpu_select.usage import Usage


def freest(  # noqa: PLR0913 -- the machine, and what else speaks for or against
    request: Request,
    inventory: Inventory,
    *,
    allowed: Sequence[Place] | None,
    claimed: Mapping[str, str],
    is_mine: Callable[[int], bool | None],
    pick: Callable[[Sequence[Place]], Place],
) -> Choice:
    """The best of the places that are free, as many as are asked for.

    Args:
        request: How many, and what each must have.

        inventory: The machine.

        allowed: What this process may choose from; None without a limit.

        claimed: Who has claimed a place, by its UUID.

        is_mine: Whether a process belongs to the user; None where that is unknown.

        pick: Takes one of several places that are equally good.

    Raises:
        NotEnough: Fewer places fit; its opinions say why each other does not.

        GpuMagicError: The machine has no GPU, or a name to exclude means nothing.
    """
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
            *refusing.of_use(usage, request),
        ]
        for usage in usages
    }
    fitting = [usage for usage in usages if not refusals[usage]]
    ranking = rank(fitting, request.count, pick)
    if len(ranking.taken) < request.count:
        raise _not_enough(request, inventory, refusals)
    opinions = (_opinion(usage, refusals[usage], ranking) for usage in usages)
    return Choice(tuple(ranking.taken), tuple(opinions))


def _of_identity(
    place: Place,
    request: Request,
    allowed: Sequence[Place] | None,
    excluded: Iterable[Place],
) -> Iterable[Refusal]:
    """What speaks against a place because of which it is."""
    name = place.gpu.name
    if not may_have(place, allowed):
        yield Refusal(Cause.LIMIT, "outside of what this kernel was given")
    if any(is_within(place, each) for each in excluded):
        yield Refusal(Cause.FILTER, "excluded")
    if request.model and request.model.lower() not in (name or "").lower():
        is_called = "its model is unknown" if name is None else f"it is of model {name}"
        yield Refusal(Cause.FILTER, f"{is_called}, {request.model} asked for")
    if request.count > 1 and place.part is not None:
        yield Refusal(Cause.SLICE, "one process sees one slice, several asked for")


def _of_claim(place: Place, claimed: Mapping[str, str]) -> Iterable[Refusal]:
    if place.uuid is not None and place.uuid in claimed:
        yield Refusal(Cause.CLAIM, f"claimed by {claimed[place.uuid]}")


def _opinion(usage: Usage, reasons: Sequence[Refusal], ranking: Ranking) -> Opinion:
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
    refusals: Mapping[Usage, Sequence[Refusal]],
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
        refusing.way_out(request, found, refusals.items()),
        opinions,
    )


def _has_limits(request: Request) -> bool:
    limits = (request.min_free_bytes, request.max_util_share, request.model)
    return bool(request.exclude) or any(limit is not None for limit in limits)
