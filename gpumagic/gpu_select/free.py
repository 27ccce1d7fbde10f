"""Chooses the best of the GPUs that are free, and says why each other is not."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import Place, places, require_gpus
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    part_text,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.request import Request

    # What speaks against a place, and what would do away with that.
    Reasons: TypeAlias = Mapping[str, tuple[str, ...]]

# A difference in free memory below this share of the memory is noise.
_NOISE_SHARE = 0.01
# An idle GPU that draws a desktop, or whose driver keeps a little, is still free.
_FREE_AT_SHARE = 0.05
_WAIT = "--wait 10m to wait for more"
_SHARE = "--min-free 20GiB to share a GPU with others"


@dataclass(frozen=True)
class Choice:
    """The places that are to become cuda:0, cuda:1 and so on, in this order."""

    places: tuple[Place, ...]
    whys: Mapping[Place, str] = field(default_factory=dict)  # for and against each


class NotEnough(GpuMagicError):
    """Fewer places fit than were asked for; `whys` say why."""

    def __init__(self, problem: str, hint: str, whys: Mapping[Place, str]) -> None:
        super().__init__(problem, hint)
        self.whys = whys


def freest(
    request: Request,
    inventory: Inventory,
    *,
    allowed: Sequence[Place],
    claimed: Mapping[str, str],
    pick: Callable[[Sequence[Place]], Place] = random.choice,
) -> Choice:
    """The best of the places that are free, as many as are asked for.

    `claimed` says of UUIDs which other process has chosen them; `pick` takes one of
    those that are equally good.
    """
    require_gpus(inventory)
    against = {
        each: dict(_against(each, request, allowed, claimed))
        for each in places(inventory)
    }
    fitting = [place for place, reasons in against.items() if not reasons]
    if len(fitting) < request.count:
        raise _not_enough(request, inventory, against)
    taken = list[Place]()
    while len(taken) < request.count:
        best = pick(_foremost(fitting))
        fitting.remove(best)
        taken.append(best)
    return Choice(tuple(taken), _whys(against, taken))


def _foremost(found: Sequence[Place]) -> list[Place]:
    """The best, and all that equal it.

    More free memory is better; of those that differ by noise only, the one with
    fewer processes, then the less busy one, then a whole GPU. What is unknown ranks
    behind what is known.
    """
    noise = _NOISE_SHARE * max(x.device.memory_total_bytes or 0 for x in found)
    most = max(x.device.memory_free_bytes or 0 for x in found)

    def rank(place: Place) -> tuple[float, ...]:
        little = (place.device.memory_free_bytes or 0) < most - noise
        use = place.processes, place.busy_share
        return little, *(math.inf if x is None else x for x in use), place.is_slice

    best = min(map(rank, found))
    return [each for each in found if rank(each) == best]


def _against(
    place: Place,
    request: Request,
    allowed: Sequence[Place],
    claimed: Mapping[str, str],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What speaks against a place, and the ways out; what is unknown never does."""
    mode = place.gpu.compute_mode or ""
    if not place.is_within(allowed):
        yield "outside of what this kernel was given", ("--force to leave the limit",)
    if request.count > 1 and place.is_slice:
        yield "one process sees one slice, several asked for", ("-n 1 for a slice",)
    if holder := claimed.get(place.uuid or ""):
        yield f"claimed by {holder}", (_WAIT,)
    if mode == "prohibited":
        yield "its compute mode forbids CUDA", ()
    elif mode.startswith("exclusive") and place.processes:
        yield "its compute mode admits one process, which is there", (_WAIT,)
    if request.min_free_bytes:
        yield from _against_size(place, request.min_free_bytes)
    else:
        yield from _against_sharing(place)


def _against_sharing(place: Place) -> Iterator[tuple[str, tuple[str, ...]]]:
    ways = _WAIT, _SHARE
    if place.processes:
        yield f"{count_text(place.processes, 'process', 'processes')} on it", ways
    used, total = place.device.memory_used_bytes or 0, place.device.memory_total_bytes
    if total and used > total * _FREE_AT_SHARE:
        yield f"{part_text(used, total)} in use", ways


def _against_size(place: Place, needed: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    free, total = place.device.memory_free_bytes, place.device.memory_total_bytes
    asked, less = f"{bytes_text(needed)} asked for", "less for --min-free"
    if (total or needed) < needed:
        yield f"{bytes_text(total)} in all, {asked}", (less,)
    elif free is not None and free < needed:
        yield f"{bytes_text(free)} free, {asked}", (_WAIT, less)


def _whys(against: Mapping[Place, Reasons], taken: Sequence[Place]) -> dict[Place, str]:
    """What is said of each place: what speaks against it, or how free it is."""
    whys = {}
    for place, reasons in against.items():
        said = list(reasons) or [_use_of(place)]
        if not reasons and place not in taken:
            said.append("free as well")
        whys[place] = "; ".join(said)
    return whys


def _use_of(place: Place) -> str:
    """What is known of its use, in words."""
    free, count, busy = (
        place.device.memory_free_bytes,
        place.processes,
        place.busy_share,
    )
    words = (
        (free, f"{bytes_text(free)} free"),
        (count, count_text(count, "process", "processes")),
        (busy, f"{share_text(busy)} busy"),
    )
    known = [text for figure, text in words if figure is not None]
    return ", ".join(known) or "nothing is known of its use"


def _not_enough(
    request: Request,
    inventory: Inventory,
    against: Mapping[Place, Reasons],
) -> NotEnough:
    found = sum(not reasons for reasons in against.values())
    ways = [way for each in against.values() for more in each.values() for way in more]
    if found:
        ways.insert(0, f"-n {found} for what there is")
    hint = "type %gpu_select without a word to see what there is"
    if ways:
        hint = f"give {listed(list(dict.fromkeys(ways)), ' or ')}"
    return NotEnough(
        f"{count_text(request.count, 'GPU')} asked for, {found or 'none'} free"
        f"{out_of_reach(inventory)}",
        hint,
        _whys(against, ()),
    )


def out_of_reach(inventory: Inventory) -> str:
    """Of GPUs that cannot be asked: they are no places, and still are to be named."""
    return "".join(
        f"; GPU {gpu.index} is out of reach: {gpu.problem}"
        for gpu in inventory.gpus
        if gpu.problem
    )
