"""What else stands out in a batch, and what would make it cheaper to send."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.records.batch import Leaf, Pinned, WhyPageable
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report import robust
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.pin_loader.batch.anatomy import Found
    from gpumagic.pin_loader.records.loader import LoaderFacts

_MANY = 16  # tensors, each of which is a copy of its own
_SMALL_BYTES = 64 << 10  # such a copy takes longer to start than to run
_WORTH_BYTES = 64 << 10  # a leaf that is smaller is not worth a remark on its dtype
_NAMED = 3
_TRIED = 4096  # elements, from the beginning
_NEAR = 1e-3  # of a whole number: float32 is this exact after a division by 255
_FEWEST_VALUES = 8  # with fewer it is a mask or a class, and no image


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
        "copies, each of which takes longer to start than to run",
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
