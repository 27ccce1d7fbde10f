"""What a batch consists of: each tensor and array, pinned or not, and why not."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.devices.storages import tensors_within, without_overrides
from gpumagic.pin_loader.batch import walk
from gpumagic.pin_loader.records import Anatomy, Leaf, Pinned, WhyPageable
from gpumagic.report.introspection import is_array

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records import LoaderFacts

_WITHOUT_PINNING = ("cpu", "mps")


def passed_through_by(above: Sequence[Any]) -> Any | None:
    """Which of the containers of a tensor torch's pinner does not look into."""
    for each in above:
        # By the object, not by its class: so the pinner asks, and finds whatever a
        # `__getattr__` answers.
        if hasattr(each, "pin_memory"):
            return None  # it pins itself
        if isinstance(each, str | bytes) or not isinstance(each, Mapping | Sequence):
            return each
    return None


def anatomy_of(
    batch: Any, runtime: Runtime, facts: LoaderFacts, *, unpinned: bool = False
) -> Anatomy:
    """What a batch consists of, without changing or keeping anything of it.

    A leaf that the pinner would not reach says so whether `pin_memory` is on or not:
    to switch it on would not help. `unpinned`: the loader was kept from pinning.
    """
    import torch

    leaves: list[Leaf] = []
    locked_bytes = 0
    for path, value, _, above in walk(batch):
        if isinstance(value, torch.Tensor):
            with without_overrides(torch):
                leaf = _leaf_of_tensor(value, path, runtime)
                if leaf.pinned is Pinned.PAGEABLE:
                    why, holder = _why(value, above, runtime, facts)
                    leaf = replace(leaf, why=why, holder=holder)
                    if unpinned and why is WhyPageable.UNKNOWN:
                        leaf = replace(leaf, pinned=Pinned.UNKNOWN, why=None)
            if leaf.pinned is not Pinned.ON_DEVICE and leaf.nbytes:
                locked_bytes += 1 << (leaf.nbytes - 1).bit_length()
            leaves.append(leaf)
        elif is_array(value):
            leaves.append(_leaf_of_array(value, path))
    return Anatomy(type(batch).__name__, tuple(leaves), locked_bytes)


def _leaf_of_tensor(tensor: Any, path: str, runtime: Runtime) -> Leaf:
    # Rows of different length have no shape but their number.
    shape = (tensor.size(0),) if tensor.is_nested else tensor.shape
    return Leaf(
        path=path,
        what=type(tensor).__name__,
        shape=tuple(map(int, shape)),
        dtype=str(tensor.dtype).removeprefix("torch."),
        nbytes=_bytes_of(tensor),
        pinned=_where(tensor, runtime),
    )


def _where(tensor: Any, runtime: Runtime) -> Pinned:
    if tensor.device.type == "meta":  # fake tensors lie there as well
        return Pinned.UNKNOWN
    if tensor.device.type != "cpu":
        return Pinned.ON_DEVICE
    try:
        is_pinned = runtime.is_pinned(tensor)
    except (RuntimeError, NotImplementedError):  # a subclass without that word
        return Pinned.UNKNOWN
    return Pinned.PINNED if is_pinned else Pinned.PAGEABLE


def _why(
    tensor: Any, above: Sequence[Any], runtime: Runtime, facts: LoaderFacts
) -> tuple[WhyPageable, str | None]:
    """The reason that would be left if all the others were taken away."""
    import torch

    if runtime.kind in _WITHOUT_PINNING:
        return WhyPageable.NO_ACCELERATOR, None
    if tensor.is_nested or tensor.layout is not torch.strided:
        return WhyPageable.NOT_DENSE, None
    holder = passed_through_by(above)
    if holder is not None:
        return WhyPageable.PASSED_THROUGH, type(holder).__name__
    return WhyPageable.UNKNOWN if facts.pin_memory else WhyPageable.FLAG_OFF, None


def _leaf_of_array(array: Any, path: str) -> Leaf:
    return Leaf(
        path=path,
        what=type(array).__name__,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        nbytes=int(array.nbytes),
        pinned=Pinned.PAGEABLE,
        why=WhyPageable.NOT_A_TENSOR,
    )


def _bytes_of(tensor: Any) -> int:
    parts = list(tensors_within(sys.modules["torch"], tensor))
    if not parts and tensor.is_nested:
        parts = list(tensor.unbind())
    if parts:
        return sum(map(_bytes_of, parts))
    return int(tensor.numel() * tensor.element_size())
