"""Chooses the best of the GPUs that are free, and says why each other is not."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import Place, places, require_gpus
from gpumagic.report.units import bytes_text, count_text, listed, part_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Gpu, GpuProcess, Inventory
    from gpumagic.gpu_select.request import Request

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


@dataclass(frozen=True)
class Usage:
    """What is known of the use of one place; None is unknown."""

    place: Place
    total_bytes: int | None
    free_bytes: int | None
    used_bytes: int | None  # without what the driver keeps for itself
    processes: int | None = None  # how many compute on it
    busy_share: float | None = None  # its utilisation

    def __str__(self) -> str:
        free, processes, busy = self.free_bytes, self.processes, self.busy_share
        return ", ".join(
            [
                "free memory unknown" if free is None else f"{bytes_text(free)} free",
                "processes not listed"
                if processes is None
                else count_text(processes, "process", "processes"),
                "utilisation unknown" if busy is None else f"{busy * 100:.3g} % busy",
            ]
        )


def usage_of(place: Place) -> Usage:
    """The use of a place; of a slice only its memory is told."""
    if place.part is not None:
        part = place.gpu.mig[place.part]
        free, used = part.memory_free_bytes, part.memory_used_bytes
        return Usage(place, part.memory_total_bytes, free, used)
    gpu = place.gpu
    total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
    used = gpu.memory_used_bytes
    if used is None and total is not None and free is not None:
        used = max(0, total - free - (gpu.memory_reserved_bytes or 0))
    count = None if gpu.processes is None else len(computing(gpu))
    return Usage(place, total, free, used, count, gpu.utilisation_share)


def computing(gpu: Gpu) -> list[GpuProcess]:
    """The processes that compute on it; those that only draw do not count."""
    return [each for each in gpu.processes or () if each.kind == "compute"]


# ---------------------------------------------------------------- the choice


def freest(
    request: Request,
    inventory: Inventory,
    *,
    allowed: Sequence[Place] | None,
    claimed: Mapping[str, str],
    pick: Callable[[Sequence[Usage]], Usage] = random.choice,
) -> Choice:
    """The best of the places that are free, as many as are asked for.

    `claimed` says of UUIDs which other process has chosen them; `pick` takes one of
    those that are equally good.
    """
    require_gpus(inventory)
    usages = [usage_of(place) for place in places(inventory)]
    against = {each: list(_against(each, request, allowed, claimed)) for each in usages}
    fitting = [each for each in usages if not against[each]]
    if len(fitting) < request.count:
        raise _not_enough(request, inventory, against)
    taken = list[Place]()
    while len(taken) < request.count:
        best = pick(_foremost(fitting))
        fitting.remove(best)
        taken.append(best.place)
    return Choice(tuple(taken), _whys(against, taken))


def _foremost(usages: Sequence[Usage]) -> list[Usage]:
    """The best, and all that equal it.

    More free memory is better; of those that differ by noise only, the one with
    fewer processes, then the less busy one, then a whole GPU. What is unknown ranks
    behind what is known.
    """
    noise = _NOISE_SHARE * max(each.total_bytes or 0 for each in usages)
    most = max(-1 if each.free_bytes is None else each.free_bytes for each in usages)

    def rank(usage: Usage) -> tuple[float, ...]:
        free = -1 if usage.free_bytes is None else usage.free_bytes
        processes, busy = usage.processes, usage.busy_share
        return (
            free < most - noise,
            math.inf if processes is None else processes,
            math.inf if busy is None else busy,
            usage.place.part is not None,
        )

    best = min(map(rank, usages))
    return [each for each in usages if rank(each) == best]


class _Against(NamedTuple):
    """A reason against a place, and what would do away with it."""

    why: str
    ways: tuple[str, ...] = ()


def _against(
    usage: Usage,
    request: Request,
    allowed: Sequence[Place] | None,
    claimed: Mapping[str, str],
) -> Iterator[_Against]:
    """What speaks against a place; what is unknown never does."""
    place, mode = usage.place, usage.place.gpu.compute_mode or ""
    if not place.is_within(allowed):
        why = "outside of what this kernel was given"
        yield _Against(why, ("--force to leave the limit",))
    if request.count > 1 and place.part is not None:
        why = "one process sees one slice, several asked for"
        yield _Against(why, ("-n 1 for a slice",))
    if place.uuid is not None and place.uuid in claimed:
        yield _Against(f"claimed by {claimed[place.uuid]}", (_WAIT,))
    if mode == "prohibited":
        yield _Against("its compute mode forbids CUDA")
    elif mode.startswith("exclusive") and usage.processes:
        yield _Against("its compute mode admits one process, which is there", (_WAIT,))
    if request.min_free_bytes is None:
        yield from _against_sharing(usage)
    else:
        yield from _against_size(usage, request.min_free_bytes)


def _against_sharing(usage: Usage) -> Iterator[_Against]:
    if usage.processes:
        count = count_text(usage.processes, "process", "processes")
        yield _Against(f"{count} on it", (_WAIT, _SHARE))
    used, total = usage.used_bytes, usage.total_bytes
    if used is not None and total is not None and used > total * _FREE_AT_SHARE:
        unseen = "" if usage.processes else " by processes that are not listed"
        why = f"{part_text(used, total)} in use{unseen}"
        yield _Against(why, (_WAIT, _SHARE))


def _against_size(usage: Usage, needed: int) -> Iterator[_Against]:
    free, total = usage.free_bytes, usage.total_bytes
    asked, less = f"{bytes_text(needed)} asked for", "less for --min-free"
    if total is not None and total < needed:
        yield _Against(f"{bytes_text(total)} in all, {asked}", (less,))
    elif free is not None and free < needed:
        yield _Against(f"{bytes_text(free)} free, {asked}", (_WAIT, less))


def _whys(
    against: Mapping[Usage, Sequence[_Against]], taken: Sequence[Place]
) -> dict[Place, str]:
    """What is said of each place: what speaks against it, or how free it is."""
    whys = {}
    for usage, reasons in against.items():
        said = [each.why for each in reasons] or [str(usage)]
        if not reasons and usage.place not in taken:
            said.append("free as well")
        whys[usage.place] = "; ".join(said)
    return whys


def _not_enough(
    request: Request,
    inventory: Inventory,
    against: Mapping[Usage, Sequence[_Against]],
) -> NotEnough:
    found = sum(not reasons for reasons in against.values())
    ways = [f"-n {found} for what there is"] if found else []
    ways += [way for each in against.values() for reason in each for way in reason.ways]
    are = "is" if found <= 1 else "are"
    asked = "was" if request.count == 1 else "were"
    return NotEnough(
        f"{count_text(request.count, 'GPU')} {asked} asked for, {found or 'none'} "
        f"{are} free{out_of_reach(inventory)}",
        f"type {listed(list(dict.fromkeys(ways)), ' or ')}"
        if ways
        else "type %gpu_select without a word to see what there is",
        _whys(against, ()),
    )


def out_of_reach(inventory: Inventory) -> str:
    """Of GPUs that cannot be asked: they are no places, and still are to be named."""
    return "".join(
        f"; GPU {gpu.index} is out of reach: {gpu.problem}"
        for gpu in inventory.gpus
        if gpu.problem is not None
    )
