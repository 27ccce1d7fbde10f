"""Lets a loader pin batches of classes that torch's pinner passes through.

What the collate_fn returns travels from the worker to the pinning stage inside of an
object that has a `pin_memory()`: that is what the pinner asks for. No class of the
user's has to be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.batch.pinner import Pinner, pinner_of_this_torch
from gpumagic.pin_loader.batch.walker import mapped

if TYPE_CHECKING:
    from collections.abc import Callable


class Adapted:
    """A collate_fn whose batches are pinned whatever their class.

    A batch that torch pins as it is goes without a wrapping. It can be sent to workers
    however they are started, if the collate_fn can.

    Attributes:
        collate_fn: The user's.
    """

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self.collate_fn: Callable[[Any], Any] = (
            collate_fn.collate_fn if isinstance(collate_fn, Adapted) else collate_fn
        )
        self._pinner = pinner_of_this_torch()

    def __call__(self, samples: Any) -> Any:
        """The batch of some samples, in a wrapping if it needs one."""
        batch = self.collate_fn(samples)
        if not self._pinner.passes_tensors_through(batch):
            return batch
        return Pinnable(batch, self._pinner)

    def __repr__(self) -> str:
        name = getattr(self.collate_fn, "__name__", None)
        return f"Adapted({name or repr(self.collate_fn)})"


class Pinnable:
    """A batch on its way through the pinner.

    Args:
        batch: The user's.

        pinner: Which tensors can be pinned at all.
    """

    __slots__ = ("_pinner", "batch")

    def __init__(self, batch: Any, pinner: Pinner) -> None:
        self.batch = batch
        self._pinner = pinner

    def pin_memory(self, device: Any = None) -> Pinnable:  # noqa: ARG002 - torch's
        """The batch with all its tensors pinned; torch's pinner calls this."""
        pinned = mapped(self.batch, self._pinned, objects=True, whole=_pinned_by_itself)
        return Pinnable(pinned, self._pinner)

    def _pinned(self, tensor: Any) -> Any:
        return tensor.pin_memory() if self._pinner.can_pin(tensor) else tensor


def unwrapped(batch: Any) -> Any:
    """The user's batch, whether it was wrapped or not."""
    return batch.batch if type(batch) is Pinnable else batch


def is_wrapped(batch: Any) -> bool:
    """Whether the adapter has looked into it, objects of any class included."""
    return type(batch) is Pinnable


def _pinned_by_itself(thing: Any) -> Any | None:
    """Classes that can pin themselves know what has to stay pageable."""
    own = getattr(type(thing), "pin_memory", None)
    return own(thing) if callable(own) else None
