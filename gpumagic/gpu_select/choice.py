"""What comes of a request: places in order, and a word on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.machine import Place


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

    Args:
        problem: How many were asked for, and how many fit.

        hint: What to type instead.

        opinions: Why each place of the machine was refused, or fits.
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
