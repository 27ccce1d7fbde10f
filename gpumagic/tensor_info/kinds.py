"""Recognises what looks like a plain tensor and is none.

Their sizes and strides may be notional, or have no memory behind them: torch
answers all the same. So the kind comes first, and every figure after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.tensor_info import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Kind:
    """What sort of tensor something is."""

    name: str  # in the words of a title
    has_geometry: bool = True  # whether size and stride say where its elements lie
    has_memory: bool = True  # whether there are bytes of its own behind it
    has_size: bool = True  # whether it has one size for all of it
    has_strides: bool = True  # whether torch tells strides that stand for something
    # whether a storage can be asked for, if only to be told its size
    has_storage: bool = True
    remark: str = ""  # what its owner should know, in one sentence
    # what it is made of. Live tensors: a kind is not to be kept.
    inner: tuple[tuple[str, Any], ...] = ()


def kind_of(torch: Any, tensor: Any) -> Kind:
    """The kind of a tensor, from the oddest to the plainest."""
    found = (_attempt(recognise, torch, tensor) for recognise in _RECOGNISERS)
    kind = next((each for each in found if each is not None), None)
    return kind or Kind(_plain_name(torch, tensor))


def _uninitialised(torch: Any, tensor: Any) -> Kind | None:
    if not torch_private.is_uninitialised(torch, tensor):
        return None
    return _without_strides(
        "uninitialised parameter",
        has_size=False,
        remark="a lazy module has not made it yet: run the module once",
    )


def _transformed(torch: Any, tensor: Any) -> Kind | None:
    transform, within = torch_private.transform_inside(torch, tensor)
    if not transform:
        return None
    remarks = {
        "vmap": "what one sample sees inside of vmap; the memory is that of the "
        "whole batch within",
        "grad": "wrapped by a transform of torch.func; the memory is that of the "
        "tensor within",
    }
    inner = () if within is None else ((f"inside {transform}", within),)
    return Kind(
        f"tensor inside {transform}",
        has_memory=False,
        has_storage=False,
        remark=remarks[transform],
        inner=inner,
    )


def _functional(torch: Any, tensor: Any) -> Kind | None:
    functional, within = torch_private.functional_inside(torch, tensor)
    if not functional:
        return None
    return Kind(
        "functional tensor",
        has_memory=False,
        has_storage=False,
        remark="stands for a tensor while a program is traced; the memory is that of "
        "the tensor within",
        inner=() if within is None else (("inside", within),),
    )


def _nested(torch: Any, tensor: Any) -> Kind | None:
    if not tensor.is_nested:
        return None
    if _layout(tensor) == "jagged":
        shape = ", ".join(map(str, tensor.size()))
        remark = f"rows of different length: its size ({shape}) and strides are symbols"
        return _without_strides(
            "nested tensor (jagged)",
            has_size=False,
            remark=f"{remark}; the memory is that of its values",
            inner=tuple(_attempted(torch_private.wrapped_parts(torch, tensor))),
        )
    sizes = torch_private.nested_sizes(tensor)
    listed = "sizes unknown" if sizes is None else _sizes_text(sizes)
    remark = f"tensors side by side in one storage, without strides in common: {listed}"
    return Kind(
        "nested tensor (strided)",
        has_geometry=False,
        has_size=False,
        has_strides=False,
        remark=remark,
    )


def _sparse(_torch: Any, tensor: Any) -> Kind | None:
    layout = _layout(tensor)
    if not layout.startswith("sparse_"):
        return None
    form = layout.removeprefix("sparse_").upper()
    return _without_strides(
        f"sparse tensor ({form})",
        remark=f"{form} has no strides and no storage of its own; it is made of the "
        "tensors within",
        inner=tuple(_attempted(torch_private.sparse_parts(tensor, layout))),
    )


def _opaque(_torch: Any, tensor: Any) -> Kind | None:
    layout = _layout(tensor)
    if layout == "strided":
        return None
    word = layout.removeprefix("_")
    return _without_strides(
        f"{word} tensor",
        remark=f"{word} keeps the memory in a form of its own, and the strides that "
        "torch tells mean nothing: x.to_dense() copies it into a plain tensor",
    )


def _memoryless(torch: Any, tensor: Any) -> Kind | None:
    if torch_private.is_fake(tensor):
        name, why = "fake tensor", "it only pretends to lie on its device"
    elif tensor.device.type == "meta":
        name, why = "meta tensor", "the device meta has none"
    elif torch_private.is_zero(torch, tensor):
        name, why = "zero tensor", "autograd's zeros are not stored"
    else:
        return None
    remark = f"no memory: {why}; sizes, strides and bytes are those of a real one"
    return Kind(name, has_memory=False, remark=remark)


def _wrapper(torch: Any, tensor: Any) -> Kind | None:
    if not _dispatches_in_python(torch, type(tensor)):
        return None
    if torch_private.storage_address(torch, tensor) != 0 or not tensor.numel():
        return None
    inner = tuple(_attempted(torch_private.wrapped_parts(torch, tensor)))
    placements = getattr(tensor, "placements", None)
    placed = f", placed {tuple(placements)}," if placements is not None else ""
    return Kind(
        f"wrapper ({type(tensor).__name__})",
        has_geometry=False,
        has_memory=False,
        has_storage=False,
        remark=f"its size and strides{placed} are those that it stands for; the memory "
        "is that of what it wraps"
        + ("" if inner else ", and it does not say what that is"),
        inner=inner,
    )


def _emptied(_torch: Any, tensor: Any) -> Kind | None:
    if not tensor.numel() or tensor.untyped_storage().nbytes():
        return None
    return Kind(
        "tensor without storage",
        has_memory=False,
        remark="its storage was resized to 0 bytes, as sharded training does between "
        "uses; reading it would fail",
    )


_RECOGNISERS: tuple[Callable[[Any, Any], Kind | None], ...] = (
    _uninitialised,
    _transformed,
    _functional,
    _nested,
    _sparse,
    _opaque,
    _memoryless,
    _wrapper,
    _emptied,
)


def _without_strides(name: str, **others: Any) -> Kind:
    """A kind whose elements no strides lead to, in no storage of its own."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("has_geometry", "has_memory", "has_strides", "has_storage"), False
    )
    return Kind(name, **nothing, **others)


def _plain_name(torch: Any, tensor: Any) -> str:
    if isinstance(tensor, torch.nn.Parameter):
        return "parameter"
    is_plain = type(tensor) is torch.Tensor
    return "tensor" if is_plain else f"tensor ({type(tensor).__name__})"


def _layout(tensor: Any) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _dispatches_in_python(torch: Any, kind: type) -> bool:
    ours = getattr(torch.Tensor, "__torch_dispatch__", None)
    return getattr(kind, "__torch_dispatch__", ours) is not ours


def _sizes_text(sizes: list[tuple[int, ...]]) -> str:
    shown = [" x ".join(map(str, size)) for size in sizes[:5]]
    more = [f"and {len(sizes) - 5} more"] if len(sizes) > 5 else []
    return ", ".join(shown + more)


def _attempt(recognise: Callable[..., Kind | None], *about: Any) -> Kind | None:
    """A verdict; none where torch refuses to say what it takes to come to one."""
    try:
        return recognise(*about)
    except Exception:  # noqa: BLE001 - backends raise what they please
        return None


def _attempted(parts: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """As many parts as the tensor gives out before one of them fails."""
    try:
        yield from parts
    except Exception:  # noqa: BLE001 - a part that cannot be had costs only itself
        return
