"""Resolves a request to places in order, with a word on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import Place, places, require_gpus, resolve, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Inventory

_LEFT_OUT = "one process sees one slice, or whole GPUs: to have this one, name it"


@dataclass(frozen=True)
class Opinion:
    """Why a place was taken or refused."""

    place: Place
    taken: bool
    why: str


@dataclass(frozen=True)
class Choice:
    """The places that are to become cuda:0, cuda:1 and so on, in this order."""

    places: tuple[Place, ...]
    opinions: tuple[Opinion, ...]


class NotEnough(GpuMagicError):
    """Fewer places fit than were asked for.

    Its opinions say why each place of the machine was refused, or fits.
    """

    def __init__(self, problem: str, hint: str, opinions: tuple[Opinion, ...]) -> None:
        super().__init__(problem, hint)
        self.opinions = opinions


# ---------------------------------------------------------------- which place is which


def may_have(place: Place, allowed: Sequence[Place] | None) -> bool:
    """Whether a place is within the limit, if there is one."""
    return allowed is None or any(is_within(place, each) for each in allowed)


def within(there: Sequence[Place], allowed: Sequence[Place] | None) -> list[Place]:
    """Those that may be had, in the order of the limit."""
    if allowed is None:
        return list(there)
    return [place for each in allowed for place in there if is_within(place, each)]


def is_within(place: Place, other: Place) -> bool:
    """Whether they are the same, or one is a slice of the other.

    Figures of a GPU differ from one look to the next: its number does not.
    """
    same_gpu = place.gpu.index == other.gpu.index
    return same_gpu and other.part in (None, place.part)


def out_of_reach(inventory: Inventory) -> str:
    """Of GPUs that cannot be asked: they are no places, and still are to be named."""
    return "".join(
        f"; GPU {gpu.index} is out of reach: {gpu.problem}"
        for gpu in inventory.gpus
        if gpu.problem is not None
    )


# ---------------------------------------------------------------- what a request means


def named(
    names: Sequence[str], inventory: Inventory, allowed: Sequence[Place] | None
) -> Choice:
    """The places that names mean.

    `allowed` is what this process may choose from; None without a limit.
    """
    chosen = [resolve(name, inventory) for name in names]
    for number, place in enumerate(chosen):
        _require_once(names[number], place, chosen[:number], chosen)
        _require_allowed(names[number], place, allowed)
    _require_one_slice(chosen)
    opinions = [
        Opinion(place, taken=True, why=_why_named(name, place))
        for name, place in zip(names, chosen, strict=True)
    ]
    return Choice(tuple(chosen), tuple(opinions))


def everything(inventory: Inventory, allowed: Sequence[Place] | None) -> Choice:
    """All that one process can see: the whole GPUs, or else the first slice.

    What is `allowed` keeps its order; it is None without a limit.
    """
    require_gpus(inventory)
    there = within(places(inventory), allowed)
    if not there:
        raise _nothing_at_all(inventory, allowed)
    whole = [place for place in there if place.part is None]
    chosen = whole or there[:1]
    opinions = [
        Opinion(place, taken=True, why="")
        if place in chosen
        else Opinion(place, taken=False, why=_LEFT_OUT)
        for place in there
    ]
    return Choice(tuple(chosen), tuple(opinions))


def _why_named(name: str, place: Place) -> str:
    if place.part is not None and name.isdecimal():
        return "the only slice of it"
    return ""


def _require_once(
    name: str, place: Place, before: Sequence[Place], chosen: Sequence[Place]
) -> None:
    if place in before:
        kinds = [each.uuid or str(each.gpu.index) for each in chosen]
        if all(each.part is None for each in chosen):
            kinds = [str(each.gpu.index) for each in chosen]
        raise GpuMagicError(
            f"{place.label} is named twice, at last as {name}: CUDA would then hide "
            "every GPU",
            f"name it once: type %gpu_select {','.join(dict.fromkeys(kinds))}",
        )


def _require_allowed(name: str, place: Place, allowed: Sequence[Place] | None) -> None:
    if not may_have(place, allowed):
        raise GpuMagicError(
            f"{place.label} is outside of what this kernel was given "
            f"({together(allowed or ())})",
            f"type %gpu_select {name} --force to leave that limit",
        )


def _require_one_slice(chosen: Sequence[Place]) -> None:
    if len(chosen) > 1 and any(place.part is not None for place in chosen):
        raise GpuMagicError(
            f"{together(chosen)} cannot be had together: a process sees whole GPUs, "
            "or one MIG slice",
            "name one slice alone, or whole GPUs",
        )


def _nothing_at_all(
    inventory: Inventory, allowed: Sequence[Place] | None
) -> GpuMagicError:
    if places(inventory):
        return GpuMagicError(
            f"this kernel was given no GPU of this machine ({together(allowed or ())})",
            "type %gpu_select all --force to leave that limit",
        )
    hints = [gpu.hint for gpu in inventory.gpus if gpu.hint]
    return GpuMagicError(
        f"no GPU of this machine can be used{out_of_reach(inventory)}",
        hints[0] if hints else "type %gpu_doctor to see more",
    )
