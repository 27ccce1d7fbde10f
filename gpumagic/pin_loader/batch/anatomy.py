"""What a batch consists of: every tensor and array, whether it is pinned, why not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import without_overrides
from gpumagic.pin_loader.batch import one_leaf
from gpumagic.pin_loader.batch.adapter import unwrapped
from gpumagic.pin_loader.batch.batch_remarks import remarks_on
from gpumagic.pin_loader.batch.containers import DEEPEST, opened, too_deep
from gpumagic.pin_loader.batch.pinner import Pinner, Treatment, pinner_of_this_torch
from gpumagic.pin_loader.batch.recognising import is_array
from gpumagic.pin_loader.records.batch import Anatomy, Leaf, Pinned, WhyPageable

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records.loader import LoaderFacts

_MOST_LEAVES = 200
_WITHOUT_PINNING = ("cpu", "mps")
_WOULD_BE_TRIED = (
    WhyPageable.FLAG_TOO_LATE,
    WhyPageable.OWN_METHOD,
    WhyPageable.UNKNOWN,
)


class Found(NamedTuple):
    """A leaf, with what it is. Live tensors: not to be kept."""

    leaf: Leaf
    value: Any


class Fate(NamedTuple):
    """What the pinner does with everything below some container.

    Attributes:
        holder: The class of that container.
    """

    treatment: Treatment = Treatment.REBUILT
    holder: str | None = None


def anatomy_of(
    batch: Any,
    runtime: Runtime,
    facts: LoaderFacts,
    *,
    pinner: Pinner | None = None,
    unpinned: bool = False,
) -> Anatomy:
    """What a batch consists of, without changing or keeping anything of it.

    A leaf that the pinner would not reach says so whether `pin_memory` is on or not:
    to switch it on would not help.

    Args:
        batch: As the loader gave it, with the wrapping of an adapter or without.

        runtime: Of the device that batches go to.

        facts: What the loader is set to do.

        pinner: What the pinner does with each class; that of this torch if not given.

        unpinned: Whether the loader was kept from pinning this batch.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself.
    """
    import torch

    pinner = pinner or pinner_of_this_torch()
    look = _Look(torch, runtime, facts, pinner, unpinned=unpinned)
    wrapped, batch = batch, unwrapped(batch)
    fate = Fate() if batch is wrapped else Fate(Treatment.OWN_METHOD)
    look.into(batch, "batch", fate, 0)
    leaves = tuple(found.leaf for found in look.found)
    return Anatomy(
        class_name=type(batch).__name__,
        leaves=leaves[:_MOST_LEAVES],
        left_out=max(len(leaves) - _MOST_LEAVES, 0),
        left_out_bytes=sum(
            leaf.nbytes for leaf in leaves[_MOST_LEAVES:] if leaf.same_as is None
        ),
        others=look.others,
        locked_bytes=look.locked_bytes,
        type_changes=tuple(look.type_changes),
        adaptable=look.adaptable,
        remarks=remarks_on(look.found, facts),
    )


class _Look:
    """One way through a batch."""

    def __init__(
        self,
        torch: Any,
        runtime: Runtime,
        facts: LoaderFacts,
        pinner: Pinner,
        *,
        unpinned: bool,
    ) -> None:
        self.found: list[Found] = []
        self.others = 0
        self.locked_bytes = 0
        self.adaptable = False
        self.type_changes: list[tuple[str, str, str]] = []
        self._torch = torch
        self._runtime = runtime
        self._facts = facts
        self._pinner = pinner
        self._unpinned = unpinned
        self._path_of_memory: dict[Any, str] = {}
        self._open: dict[int, Any] = {}

    def into(self, thing: Any, path: str, fate: Fate, depth: int) -> None:
        """Note what is at a path, and everything below it."""
        if isinstance(thing, self._torch.Tensor):
            with without_overrides(self._torch):
                self._note(thing, self._tensor(thing, path, fate))
        elif is_array(thing):
            self._note(thing, one_leaf.leaf_of_array(thing, path))
        else:
            self._into_container(thing, path, fate, depth)

    def _into_container(self, thing: Any, path: str, fate: Fate, depth: int) -> None:
        if depth > DEEPEST:
            raise too_deep(thing)
        below = self._fate_below(thing, path, fate)
        parts = opened(thing, objects=True)
        if parts is None or id(thing) in self._open:
            self.others += parts is None
            return
        if parts.begin is not None:  # such an object may be referred to by its parts
            self._open[id(thing)] = thing
        for key, value in zip(parts.keys, parts.values, strict=True):
            self.into(value, parts.path(path, key), below, depth + 1)
        self._open.pop(id(thing), None)

    def _fate_below(self, thing: Any, path: str, fate: Fate) -> Fate:
        if fate.treatment is not Treatment.REBUILT:
            return fate
        treatment, name = self._pinner.treatment_of(thing), type(thing).__name__
        if treatment is not Treatment.REBUILT:
            return Fate(treatment, name)
        after = self._pinner.class_after(thing)
        if after is not type(thing):
            self.type_changes.append((path, name, after.__name__))
        return fate

    def _note(self, value: Any, leaf: Leaf) -> None:
        memory = one_leaf.memory_of(self._torch, value)
        if memory is not None:
            first = self._path_of_memory.setdefault(memory, leaf.path)
            leaf = replace(leaf, same_as=None if first == leaf.path else first)
        self.found.append(Found(leaf, value))

    def _tensor(self, tensor: Any, path: str, fate: Fate) -> Leaf:
        leaf = one_leaf.leaf_of_tensor(self._torch, tensor, path)
        where = self._where(tensor)
        if where is not Pinned.ON_DEVICE and self._pinner.can_pin(tensor):
            self.locked_bytes += one_leaf.locked_bytes(self._torch, tensor)
        if where is not Pinned.PAGEABLE:
            return replace(leaf, pinned=where)
        why, holder = self._why(tensor, fate)
        if fate.treatment is Treatment.PASSED_THROUGH and self._pinner.can_pin(tensor):
            self.adaptable = True
        if self._unpinned and why in _WOULD_BE_TRIED:
            return leaf
        return replace(leaf, pinned=where, why=why, holder=holder)

    def _where(self, tensor: Any) -> Pinned:
        if tensor.device.type == "meta":  # fake tensors lie there as well
            return Pinned.UNKNOWN
        if tensor.device.type != "cpu":
            return Pinned.ON_DEVICE
        try:
            is_pinned = self._runtime.is_pinned(tensor)
        except (RuntimeError, NotImplementedError):  # a subclass without that word
            return Pinned.UNKNOWN
        return Pinned.PINNED if is_pinned else Pinned.PAGEABLE

    def _why(self, tensor: Any, fate: Fate) -> tuple[WhyPageable, str | None]:
        """The reason that would be left if all the others were taken away."""
        if self._runtime.kind in _WITHOUT_PINNING:
            return WhyPageable.NO_ACCELERATOR, None
        if not self._pinner.can_pin(tensor):
            return WhyPageable.NOT_DENSE, None
        if fate.treatment is Treatment.PASSED_THROUGH:
            return WhyPageable.PASSED_THROUGH, fate.holder
        return self._why_not_reached(fate)

    def _why_not_reached(self, fate: Fate) -> tuple[WhyPageable, str | None]:
        facts = self._facts
        if facts.pin_memory is False:
            return WhyPageable.FLAG_OFF, None
        if facts.pin_memory and facts.live_iterator:
            return WhyPageable.FLAG_TOO_LATE, None
        if facts.pin_memory and fate.treatment is Treatment.OWN_METHOD:
            return WhyPageable.OWN_METHOD, fate.holder
        return WhyPageable.UNKNOWN, None
