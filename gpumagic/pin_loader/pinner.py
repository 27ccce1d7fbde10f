"""What torch's own pinner of loaders does with each class, and an adapter for the rest.

| torch | plain tuples | a `pin_memory()` of the class's own |
| --- | --- | --- |
| up to 2.9 | become lists | is called if the class is no mapping, tuple or sequence |
| 2.10 | stay | likewise |
| from 2.11 | stay | is called first |

Up to 2.4 it raises at sparse tensors, later it pins them.

The adapter is a collate_fn. What it returns travels from the worker to the pinning
stage inside of an object that has a `pin_memory()`: that is what the pinner asks for.
No class of the user's has to be changed.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.batch import DEEPEST, mapped, opened, tensors_in, too_deep

if TYPE_CHECKING:
    from collections.abc import Callable


class Treatment(enum.Enum):
    """What the pinner does with an object."""

    PINNED = "pinned"  # a tensor
    OWN_METHOD = "pins itself"
    REBUILT = "rebuilt of pinned parts"
    PASSED_THROUGH = "passed through"


@dataclass(frozen=True)
class Pinner:
    """The pinner of one version of torch.

    Attributes:
        keeps_tuples: Whether a tuple stays one.

        asks_first: Whether a `pin_memory()` of the class's own comes before all else.

        pins_sparse: Whether tensors that are not dense can be pinned.
    """

    keeps_tuples: bool = True
    asks_first: bool = True
    pins_sparse: bool = True

    def treatment_of(self, thing: Any) -> Treatment:
        """What becomes of an object."""
        import torch

        if isinstance(thing, torch.Tensor):
            return Treatment.PINNED
        # By the object, not by its class: so the pinner asks, and finds whatever a
        # `__getattr__` answers.
        has_own = hasattr(thing, "pin_memory")
        if has_own and self.asks_first:
            return Treatment.OWN_METHOD
        if isinstance(thing, str | bytes):
            return Treatment.PASSED_THROUGH
        if isinstance(thing, Mapping | Sequence):
            return Treatment.REBUILT
        return Treatment.OWN_METHOD if has_own else Treatment.PASSED_THROUGH

    def class_after(self, thing: Any) -> type:
        """The class of what takes the place of something that is rebuilt.

        A class that is not known to be harmless is tried with the parts it has now,
        as the pinner would try it for every batch.
        """
        kind = type(thing)
        if kind in {dict, list, bytearray}:
            return kind
        if isinstance(thing, tuple):
            stays = self.keeps_tuples or hasattr(thing, "_fields")
            return kind if stays else list
        try:
            return type(_rebuilt(thing))
        except TypeError:
            return dict if isinstance(thing, Mapping) else list
        except Exception:  # noqa: BLE001 - then the pinner fails as well, in its words
            return kind

    def can_pin(self, tensor: Any) -> bool:
        """Whether a tensor is of a sort that can be pinned, and lies on the host."""
        import torch

        if tensor.device.type != "cpu":
            return False
        return self.pins_sparse or tensor.layout is torch.strided or tensor.is_nested

    def passes_tensors_through(self, batch: Any) -> bool:
        """Whether tensors that could be pinned are passed through unpinned."""
        return self._passes_through(batch, 0)

    def _passes_through(self, thing: Any, depth: int) -> bool:
        if depth > DEEPEST:
            raise too_deep(thing)
        treatment = self.treatment_of(thing)
        if treatment is Treatment.PASSED_THROUGH:
            return any(map(self.can_pin, tensors_in(thing, objects=True)))
        parts = opened(thing) if treatment is Treatment.REBUILT else None
        return parts is not None and any(
            self._passes_through(part, depth + 1) for part in parts.values
        )


def _rebuilt(thing: Any) -> Any:
    """As the pinner does it, with the parts that it has."""
    make: Any = type(thing)
    if isinstance(thing, Mapping):
        items = dict(thing.items())
        if not isinstance(thing, MutableMapping):
            return make(items)
        clone: Any = copy.copy(thing)
        clone.update(items)
        return clone
    if not isinstance(thing, MutableSequence):
        return make(list(thing))
    clone = copy.copy(thing)
    if len(thing):
        clone[0] = thing[0]
    return clone


def pinner_of_this_torch() -> Pinner:
    """The pinner that loaders use here, told by what it does with stand-ins.

    Where it is not to be found, or has other habits, the version decides.
    """
    import torch

    version = _version_of(torch)
    try:
        from torch.utils.data._utils.pin_memory import pin_memory

        keeps_tuples = type(pin_memory((0,))) is tuple
        asks_first = pin_memory(_Asked()) is Treatment.OWN_METHOD
    except Exception:  # noqa: BLE001 - a private name may be anything one day
        keeps_tuples, asks_first = version >= (2, 10), version >= (2, 11)
    return Pinner(keeps_tuples, asks_first, pins_sparse=version >= (2, 5))


class _Asked(dict[Any, Any]):
    """A mapping that pins itself, to see whether it is asked to."""

    def pin_memory(self) -> Treatment:
        return Treatment.OWN_METHOD


def _version_of(torch: Any) -> tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


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
