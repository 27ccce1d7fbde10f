"""What a batch consists of: each tensor and array, whether it is pinned, and why not.

With what stands out in it, and would make it cheaper to send.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import (
    StorageKey,
    stored_by,
    tensors_within,
    without_overrides,
)
from gpumagic.pin_loader.batch import DEEPEST, opened, too_deep
from gpumagic.pin_loader.report import Anatomy, Leaf, Pinned, Remark, WhyPageable
from gpumagic.report.introspection import is_array
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.report import LoaderFacts

_MOST_LEAVES = 200
_WITHOUT_PINNING = ("cpu", "mps")


class Treatment(enum.Enum):
    """What torch's pinner does with an object."""

    PINNED = "pinned"  # a tensor
    OWN_METHOD = "pins itself"
    REBUILT = "rebuilt of pinned parts"
    PASSED_THROUGH = "passed through, and all that is in it"


def treatment_of(thing: Any) -> Treatment:
    """What becomes of an object in the pinning stage of a loader."""
    if isinstance(thing, sys.modules["torch"].Tensor):
        return Treatment.PINNED
    # By the object, not by its class: so the pinner asks, and finds whatever a
    # `__getattr__` answers.
    if hasattr(thing, "pin_memory"):
        return Treatment.OWN_METHOD
    is_text = isinstance(thing, str | bytes)
    if isinstance(thing, Mapping | Sequence) and not is_text:
        return Treatment.REBUILT
    return Treatment.PASSED_THROUGH


def anatomy_of(
    batch: Any, runtime: Runtime, facts: LoaderFacts, *, unpinned: bool = False
) -> Anatomy:
    """What a batch consists of, without changing or keeping anything of it.

    A leaf that the pinner would not reach says so whether `pin_memory` is on or not:
    to switch it on would not help. `unpinned`: the loader was kept from pinning.
    """
    import torch

    look = _Look(torch, runtime, facts, unpinned=unpinned)
    look.into(batch, "batch", _Fate(), 0)
    leaves = tuple(found.leaf for found in look.found)
    rest = leaves[_MOST_LEAVES:]
    return Anatomy(
        class_name=type(batch).__name__,
        leaves=leaves[:_MOST_LEAVES],
        left_out=len(rest),
        left_out_bytes=sum(leaf.nbytes for leaf in rest if leaf.same_as is None),
        others=look.others,
        locked_bytes=look.locked_bytes,
        remarks=tuple(_remarks(look.found)),
    )


class _Found(NamedTuple):
    """A leaf, with what it is: live tensors, not to be kept."""

    leaf: Leaf
    value: Any


class _Fate(NamedTuple):
    """What the pinner does with all below a container, and the class of that."""

    treatment: Treatment = Treatment.REBUILT
    holder: str | None = None


class _Look:
    """One way through a batch."""

    def __init__(
        self, torch: Any, runtime: Runtime, facts: LoaderFacts, *, unpinned: bool
    ) -> None:
        self.found: list[_Found] = []
        self.others = self.locked_bytes = 0
        self._torch, self._runtime, self._facts = torch, runtime, facts
        self._unpinned = unpinned
        self._path_of_memory: dict[Any, str] = {}
        self._open: dict[int, Any] = {}

    def into(self, thing: Any, path: str, fate: _Fate, depth: int) -> None:
        """Note what is at a path, and everything below it."""
        if isinstance(thing, self._torch.Tensor):
            with without_overrides(self._torch):
                self._note(thing, self._tensor(thing, path, fate))
        elif is_array(thing):
            self._note(thing, _leaf_of_array(thing, path))
        else:
            self._into_container(thing, path, fate, depth)

    def _into_container(self, thing: Any, path: str, fate: _Fate, depth: int) -> None:
        if depth > DEEPEST:
            raise too_deep(thing)
        if fate.treatment is Treatment.REBUILT:
            treatment = treatment_of(thing)
            if treatment is not Treatment.REBUILT:
                fate = _Fate(treatment, type(thing).__name__)
        parts = opened(thing, objects=True)
        if parts is None or id(thing) in self._open:
            self.others += parts is None
            return
        if parts.begin is not None:  # such an object may be referred to by its parts
            self._open[id(thing)] = thing
        for key, value in zip(parts.keys, parts.values, strict=True):
            self.into(value, parts.path(path, key), fate, depth + 1)
        self._open.pop(id(thing), None)

    def _note(self, value: Any, leaf: Leaf) -> None:
        memory = _memory_of(self._torch, value)
        if memory is not None:
            first = self._path_of_memory.setdefault(memory, leaf.path)
            leaf = replace(leaf, same_as=None if first == leaf.path else first)
        self.found.append(_Found(leaf, value))

    def _tensor(self, tensor: Any, path: str, fate: _Fate) -> Leaf:
        torch = self._torch
        leaf = Leaf(
            path=path,
            what=type(tensor).__name__,
            shape=_shape_of(tensor),
            dtype=str(tensor.dtype).removeprefix("torch."),
            nbytes=_bytes_of(torch, tensor),
            contiguous=_lies_together(torch, tensor),
            pinned=self._where(tensor),
        )
        if leaf.pinned is not Pinned.ON_DEVICE:
            self.locked_bytes += _locked_bytes(torch, tensor)
        if leaf.pinned is not Pinned.PAGEABLE:
            return leaf
        why, holder = self._why(tensor, fate)
        # What would be pinned, had the loader been let, is unknown.
        if self._unpinned and why not in _CERTAIN:
            return replace(leaf, pinned=Pinned.UNKNOWN)
        return replace(leaf, why=why, holder=holder)

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

    def _why(self, tensor: Any, fate: _Fate) -> tuple[WhyPageable, str | None]:
        """The reason that would be left if all the others were taken away."""
        if self._runtime.kind in _WITHOUT_PINNING:
            return WhyPageable.NO_ACCELERATOR, None
        if tensor.is_nested or tensor.layout is not self._torch.strided:
            return WhyPageable.NOT_DENSE, None
        if fate.treatment is Treatment.PASSED_THROUGH:
            return WhyPageable.PASSED_THROUGH, fate.holder
        return self._why_unreached(fate)

    def _why_unreached(self, fate: _Fate) -> tuple[WhyPageable, str | None]:
        facts = self._facts
        if facts.pin_memory is False:
            return WhyPageable.FLAG_OFF, None
        if facts.pin_memory and facts.live_iterator:
            return WhyPageable.FLAG_TOO_LATE, None
        if facts.pin_memory and fate.treatment is Treatment.OWN_METHOD:
            return WhyPageable.OWN_METHOD, fate.holder
        return WhyPageable.UNKNOWN, None


_CERTAIN = (
    WhyPageable.NO_ACCELERATOR,
    WhyPageable.NOT_DENSE,
    WhyPageable.PASSED_THROUGH,
    WhyPageable.FLAG_OFF,
)


def _leaf_of_array(array: Any, path: str) -> Leaf:
    return Leaf(
        path=path,
        what=type(array).__name__,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        nbytes=int(array.nbytes),
        contiguous=bool(array.flags.forc),
        pinned=Pinned.PAGEABLE,
        why=WhyPageable.NOT_A_TENSOR,
    )


def _memory_of(torch: Any, leaf: Any) -> StorageKey | None:
    """What two leaves on one memory have in common; None where that cannot be told."""
    if isinstance(leaf, torch.Tensor):
        stored = stored_by(torch, leaf)
        return None if stored is None else stored.key
    whole = leaf
    while hasattr(whole.base, "ctypes"):
        whole = whole.base
    # The same words as for a tensor: `torch.from_numpy` makes one on that memory.
    return StorageKey("cpu", 0, int(whole.ctypes.data)) if leaf.nbytes else None


def _locked_bytes(torch: Any, tensor: Any) -> int:
    """What a pinned copy of a tensor locks: blocks of powers of two."""
    parts = list(tensors_within(torch, tensor))
    if parts:
        return sum(_locked_bytes(torch, part) for part in parts)
    nbytes = _bytes_of(torch, tensor)
    if not tensor.is_nested and tensor.layout is torch.strided and tensor.numel():
        # From the first element to the last: a pinned copy keeps the strides.
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        nbytes = int((last + 1) * tensor.element_size())
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def _bytes_of(torch: Any, tensor: Any) -> int:
    parts = list(tensors_within(torch, tensor))
    if parts:
        return sum(_bytes_of(torch, part) for part in parts)
    if tensor.is_nested:
        return sum(_bytes_of(torch, row) for row in tensor.unbind())
    return int(tensor.numel() * tensor.element_size())


def _shape_of(tensor: Any) -> tuple[int, ...]:
    """Rows of different length have none but their number."""
    if tensor.is_nested:
        return (int(tensor.size(0)),)
    return tuple(int(size) for size in tensor.shape)


def _lies_together(torch: Any, tensor: Any) -> bool | None:
    """Whether the elements fill one piece of memory, in whatever order.

    Then a copy is one piece as well: the device gets the same strides.
    """
    if tensor.is_nested or tensor.layout is not torch.strided:
        return None
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


# --------------------------------------------------------------- what stands out


def _remarks(found: Sequence[_Found]) -> Iterator[Remark]:
    """All that makes a batch dearer than it has to be, the most expensive first."""
    arrays = [leaf for leaf, _ in found if leaf.why is WhyPageable.NOT_A_TENSOR]
    if arrays:
        yield Remark(
            f"{_named(arrays)} {_is(arrays)} of numpy, which no loader pins or moves",
            "torch.from_numpy(array) in the collate_fn makes a tensor of its memory",
        )
    tensors = [each for each in found if _is_host_tensor(each.leaf)]
    leaves = [leaf for leaf, _ in tensors]
    apart = [leaf for leaf in leaves if leaf.contiguous is False and leaf.nbytes]
    if apart:
        yield Remark(
            f"{_named(apart)} {_is(apart)} not contiguous: the copy to the device goes "
            "through pageable memory, pinned or not",
            "call .contiguous() in the collate_fn",
        )


def _is_host_tensor(leaf: Leaf) -> bool:
    is_array = leaf.why is WhyPageable.NOT_A_TENSOR
    return leaf.pinned in {Pinned.PINNED, Pinned.PAGEABLE} and not is_array


def _named(leaves: Sequence[Leaf]) -> str:
    """The first paths, and how many more there are."""
    return listed([leaf.path for leaf in leaves], most=3)


def _is(leaves: Sequence[Leaf]) -> str:
    return "is" if len(leaves) == 1 else "are"
