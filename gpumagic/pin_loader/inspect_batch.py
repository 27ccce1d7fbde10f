"""What a batch consists of: each tensor and array, whether it is pinned, and why not.

With what stands out in it, and would make it cheaper to send.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import (
    StorageKey,
    stored_by,
    tensors_within,
    without_overrides,
)
from gpumagic.pin_loader.batch import DEEPEST, opened, too_deep
from gpumagic.pin_loader.pinner import (
    Pinner,
    Treatment,
    pinner_of_this_torch,
    unwrapped,
)
from gpumagic.pin_loader.report import Anatomy, Leaf, Pinned, Remark, WhyPageable
from gpumagic.report import robust
from gpumagic.report.introspection import is_array
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.report import LoaderFacts

_MOST_LEAVES = 200
_WITHOUT_PINNING = ("cpu", "mps")
_WOULD_BE_TRIED = (
    WhyPageable.FLAG_TOO_LATE,
    WhyPageable.OWN_METHOD,
    WhyPageable.UNKNOWN,
)
_MANY = 16  # tensors, each of which is a copy of its own
_SMALL_BYTES = 64 << 10  # such a copy takes longer to start than to run
_WORTH_BYTES = 64 << 10  # a leaf that is smaller is not worth a remark on its dtype
_NAMED = 3
_TRIED = 4096  # elements, from the beginning
_NEAR = 1e-3  # of a whole number: float32 is this exact after a division by 255
_FEWEST_VALUES = 8  # with fewer it is a mask or a class, and no image


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
            self._note(thing, leaf_of_array(thing, path))
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
        memory = memory_of(self._torch, value)
        if memory is not None:
            first = self._path_of_memory.setdefault(memory, leaf.path)
            leaf = replace(leaf, same_as=None if first == leaf.path else first)
        self.found.append(Found(leaf, value))

    def _tensor(self, tensor: Any, path: str, fate: Fate) -> Leaf:
        leaf = leaf_of_tensor(self._torch, tensor, path)
        where = self._where(tensor)
        if where is not Pinned.ON_DEVICE and self._pinner.can_pin(tensor):
            self.locked_bytes += locked_bytes(self._torch, tensor)
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


def leaf_of_tensor(torch: Any, tensor: Any, path: str) -> Leaf:
    """A tensor; whether it is pinned is not asked here."""
    return Leaf(
        path=path,
        what=type(tensor).__name__,
        shape=_shape_of(tensor),
        dtype=str(tensor.dtype).removeprefix("torch."),
        nbytes=_bytes_of(torch, tensor),
        contiguous=_lies_together(torch, tensor),
    )


def leaf_of_array(array: Any, path: str) -> Leaf:
    """An array of numpy."""
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


def memory_of(torch: Any, leaf: Any) -> StorageKey | None:
    """What two leaves on one memory have in common; None where that cannot be told."""
    if isinstance(leaf, torch.Tensor):
        stored = stored_by(torch, leaf)
        return None if stored is None else stored.key
    whole = leaf
    while hasattr(whole.base, "ctypes"):
        whole = whole.base
    # The same words as for a tensor: `torch.from_numpy` makes one on that memory.
    return StorageKey("cpu", 0, int(whole.ctypes.data)) if leaf.nbytes else None


def locked_bytes(torch: Any, tensor: Any) -> int:
    """What a pinned copy of a tensor locks: blocks of powers of two."""
    parts = list(tensors_within(torch, tensor))
    if parts:
        return sum(locked_bytes(torch, part) for part in parts)
    nbytes = _span_bytes(torch, tensor)
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def _span_bytes(torch: Any, tensor: Any) -> int:
    """From the first of its elements to the last: a pinned copy keeps the strides."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return _bytes_of(torch, tensor)
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return int((last + 1) * tensor.element_size())


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


def remarks_on(found: Sequence[Found], facts: LoaderFacts) -> tuple[Remark, ...]:
    """All that stands out, the most expensive first."""
    about: tuple[Callable[[Sequence[Found], LoaderFacts], Remark | None], ...] = (
        _on_device,
        _gathered_too_late,
        _arrays,
        _not_contiguous,
        _many_small,
        _twice,
        _float64,
        _bytes_as_floats,
    )
    remarks = (each(found, facts) for each in about)
    return tuple(remark for remark in remarks if remark is not None)


def _on_device(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    leaves = [leaf for leaf, _ in found if leaf.pinned is Pinned.ON_DEVICE]
    if not leaves:
        return None
    return Remark(
        f"{_named(leaves)} {_is(leaves)} on a device already: pinning is pointless, "
        "and torch refuses to pin it",
        "let the dataset and the collate_fn return tensors on the CPU, or leave "
        "pin_memory off",
    )


def _gathered_too_late(found: Sequence[Found], facts: LoaderFacts) -> Remark | None:
    name = facts.class_name
    late = {WhyPageable.OWN_METHOD, WhyPageable.UNKNOWN}
    if "torch_geometric" not in name or not facts.pin_memory:
        return None
    if not any(leaf.why in late for leaf, _ in found):
        return None
    return Remark(
        f"{name.rpartition('.')[2]} gathers features in the main process, after the "
        "stage that pins",
        "give it filter_per_worker=True",
    )


def _arrays(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    leaves = [leaf for leaf, _ in found if leaf.why is WhyPageable.NOT_A_TENSOR]
    if not leaves:
        return None
    kinds = "an array" if len(leaves) == 1 else "arrays"
    return Remark(
        f"{_named(leaves)} {_is(leaves)} {kinds} of numpy, which no loader pins or "
        "moves",
        "torch.from_numpy(array) in the collate_fn makes a tensor of the same memory",
    )


def _not_contiguous(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    leaves = [
        leaf
        for leaf, _ in _host_tensors(found)
        if leaf.contiguous is False and leaf.nbytes
    ]
    if not leaves:
        return None
    return Remark(
        f"{_named(leaves)} {_is(leaves)} not contiguous: the copy to the device goes "
        "through pageable memory, pinned or not",
        "call .contiguous() in the collate_fn",
    )


def _many_small(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    sizes = [leaf.nbytes for leaf, _ in _host_tensors(found) if leaf.same_as is None]
    if len(sizes) < _MANY:
        return None
    median = robust.median(sizes)
    if median >= _SMALL_BYTES:
        return None
    return Remark(
        f"{len(sizes)} tensors with a median of {bytes_text(median)} are as many "
        "copies: each takes longer to start than to run",
        "put them into one tensor in the collate_fn, and split it on the device",
    )


def _twice(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    leaf = next((leaf for leaf, _ in _host_tensors(found) if leaf.same_as), None)
    if leaf is None:
        return None
    return Remark(
        f"{leaf.path} shares its memory with {leaf.same_as}: the pinner makes a copy "
        "of each, and both are sent",
        "put it into the batch once",
    )


def _float64(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    leaves = [
        leaf
        for leaf, _ in _host_tensors(found)
        if leaf.dtype == "float64" and leaf.nbytes >= _WORTH_BYTES
    ]
    if not leaves:
        return None
    return Remark(
        f"{_named(leaves)} {_is(leaves)} float64, twice the bytes of float32",
        "convert in the dataset with .float(), unless the model needs float64",
    )


def _bytes_as_floats(found: Sequence[Found], _: LoaderFacts) -> Remark | None:
    for leaf, tensor in _host_tensors(found):
        if leaf.nbytes < _WORTH_BYTES or len(leaf.shape) < 3 or not leaf.contiguous:
            continue
        scale = _scale_of_bytes(tensor)
        if scale is None:
            continue
        divided = "" if scale == 1 else f" divided by {scale}"
        then = ".float()" if scale == 1 else f".float() / {scale}"
        return Remark(
            f"{leaf.path} holds bytes{divided} as {leaf.dtype}: as uint8 it would be "
            f"{tensor.element_size()} times smaller to load, to pin and to send",
            f"return uint8 from the dataset, and use {then} after the copy to the "
            "device",
        )
    return None


def _scale_of_bytes(tensor: Any) -> int | None:
    """By what bytes were divided to give these values; None if by nothing known."""
    torch: Any = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:  # others may do anything when they are read
        return None
    if tensor.dtype not in {torch.float32, torch.float64}:
        return None
    count = min(tensor.numel(), _TRIED)
    first = torch.as_strided(tensor.detach(), (count,), (1,)).tolist()
    if len(set(first)) < _FEWEST_VALUES:
        return None
    for scale in (255, 1):
        values = [each * scale for each in first]
        if all(_is_byte(value) for value in values):
            return scale
    return None


def _is_byte(value: float) -> bool:
    return 0 <= value <= 255 and abs(value - round(value)) < _NEAR


def _host_tensors(found: Iterable[Found]) -> Iterator[Found]:
    for each in found:
        is_array = each.leaf.why is WhyPageable.NOT_A_TENSOR
        if each.leaf.pinned in {Pinned.PINNED, Pinned.PAGEABLE} and not is_array:
            yield each


def _named(leaves: Sequence[Leaf]) -> str:
    """The first paths, and how many more there are."""
    paths = [leaf.path for leaf in leaves[:_NAMED]]
    rest = len(leaves) - len(paths)
    if rest:
        return f"{', '.join(paths)} and {rest} more"
    return " and ".join(filter(None, [", ".join(paths[:-1]), paths[-1]]))


def _is(leaves: Sequence[Leaf]) -> str:
    return "is" if len(leaves) == 1 else "are"
