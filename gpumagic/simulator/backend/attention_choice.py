"""`scaled_dot_product_attention`: which of CUDA's kernels runs, and why no other does.

torch asks each kernel in the order of their priority, and takes the first that accepts
the arguments and that the user has not switched off. What a kernel accepts is written
down in torch's own sources for CUDA, and in the words of its warnings here.
"""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.simulator.backend.simulation import Simulation

FUSED = "_scaled_dot_product_{}_attention"
_LARGEST_HEAD = 256
_LARGEST_HEAD_OF_CUDNN = 128
_HALF, _BFLOAT16, _SINGLE = "torch.float16", "torch.bfloat16", "torch.float32"


class Backend(enum.IntEnum):
    """The kernels by the numbers that torch gives them."""

    ERROR = -1
    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


def attention_entry(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """What stands in for the decision that torch has compiled for CUDA alone."""
    return {"scaled_dot_product_attention": Entry(simulation)}


class Entry:
    """`scaled_dot_product_attention`: chooses a kernel, and prepares its arguments."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        torch = self._torch = simulation.torch
        ops = torch.ops.aten
        self._composed = ops.scaled_dot_product_attention.default.decompose
        self._flash = getattr(ops, FUSED.format("flash")).default
        self._efficient = getattr(ops, FUSED.format("efficient")).default
        self._cudnn = getattr(ops, FUSED.format("cudnn")).default

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Run it; torch's own C++ composes the math kernel, and tells of errors."""
        __tracebackhide__ = True
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        backend = Backend.MATH
        if self._valid(*given):
            backend = self.choice(*given, scale=scale, enable_gqa=enable_gqa)
        if backend is Backend.MATH:
            return self._composed(*given, scale=scale, enable_gqa=enable_gqa)
        if backend is Backend.FLASH:
            return self._padded(query, key, value, dropout_p, is_causal, scale)
        bias = self._bias(attn_mask, query, key)
        needs_grad = self._needs_grad(query, key, value, bias)
        kernel = self._cudnn if backend is Backend.CUDNN else self._efficient
        return kernel(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )[0]

    def choice(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Backend:
        """The kernel that torch would take on CUDA."""
        del scale
        __tracebackhide__ = True
        gpu = self._simulation.gpu(query.device.index)
        asked = Asked(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            enable_gqa,
            self._needs_grad(query, key, value, attn_mask),
            gpu.costs.model.compute_capability,
        )
        return choose(self._torch._C, asked)

    def _valid(
        self, query: Any, key: Any, value: Any, mask: Any, _: float, is_causal: bool
    ) -> bool:
        """Whether there is nothing that torch would refuse."""
        given = [query, key, value, *([] if mask is None else [mask])]
        if any(each.device != query.device or each.dim() < 2 for each in given):
            return False
        if mask is None:
            return True
        boolean = mask.dtype is self._torch.bool
        wanted = (*query.shape[:-1], key.size(-2))
        return (
            not is_causal
            and (boolean or mask.dtype is query.dtype)
            and mask.dim() <= len(wanted)
            and all(
                size in {1, full}
                for size, full in zip(mask.shape[::-1], wanted[::-1], strict=False)
            )
        )

    def _needs_grad(self, *tensors: Any) -> bool:
        if not self._torch.is_grad_enabled():
            return False
        return any(each is not None and each.requires_grad for each in tensors)

    def _padded(
        self, query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: Any
    ) -> Any:
        """Flash attention, which wants heads that are multiples of eight."""
        size = query.size(-1)
        if scale is None:
            scale = size**-0.5
        if size % 8:
            pad = self._torch.nn.functional.pad
            query, key, value = (
                pad(each, (0, -size % 8)) for each in (query, key, value)
            )
        out = self._flash(query, key, value, dropout, causal, scale=scale)[0]
        return out[..., :size] if size % 8 else out

    def _bias(self, mask: Any, query: Any, key: Any) -> Any:
        """A mask as what is added to each score, aligned and as large as them all."""
        if mask is None:
            return None
        torch = self._torch
        if mask.dtype is torch.bool:
            nothing = torch.zeros((), dtype=query.dtype, device=query.device)
            mask = torch.where(mask, nothing, -torch.inf)
        size = mask.size(-1)
        if size % 8 and size > 1:
            mask = torch.nn.functional.pad(mask, (0, -size % 8))[..., :size]
        return mask.expand(*query.shape[:-1], key.size(-2))


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What attention is asked for."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    is_causal: bool
    shares_keys: bool  # whether several heads of queries may share one of keys
    needs_grad: bool  # whether a backward pass may follow
    capability: tuple[int, int]  # of the GPU that it lies on

    @property
    def inputs(self) -> tuple[Any, Any, Any]:
        """The three that are always there."""
        return self.query, self.key, self.value


def choose(core: Any, asked: Asked) -> Backend:
    """The kernel that torch would take on CUDA."""
    enabled = {
        Backend.FLASH: core._get_flash_sdp_enabled(),
        Backend.EFFICIENT: core._get_mem_efficient_sdp_enabled(),
        Backend.CUDNN: core._get_cudnn_sdp_enabled(),
        Backend.MATH: core._get_math_sdp_enabled(),
    }
    if not any(enabled.values()):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. This is "
            "likely due to turning off both the math kernel and the fused kernels."
        )
    for number in core._get_sdp_priority_order():
        if not enabled.get(number):
            continue
        if number == Backend.MATH or next(_REFUSALS[number](asked), None) is None:
            return Backend(number)
    for backend, (kernel, name) in _NAMES.items():
        warnings.warn(f"{kernel} kernel not used because:", stacklevel=2)
        why = next(_REFUSALS[backend](asked), None) if enabled[backend] else None
        warnings.warn(why or f"{name} has been runtime disabled.", stacklevel=2)
    raise RuntimeError("No available kernel. Aborting execution.")


def _of_flash(asked: Asked) -> Iterator[str]:
    yield from _of_any_fused(asked, shares_keys=asked.shares_keys)
    if asked.mask is not None:
        yield "Flash Attention does not support non-null attn_mask."
    sizes = {each.size(-1) for each in asked.inputs}
    if len(sizes) > 1 or max(sizes) > _LARGEST_HEAD:
        yield (
            "Flash attention requires q,k,v to have the same last dimension and to be "
            f"less than or equal to {_LARGEST_HEAD}. {_last_sizes(asked)}"
        )
    if asked.is_causal and asked.query.size(-2) != asked.key.size(-2):
        yield (
            "Flash attention does not support the is_causal flag when seqlen_q != "
            f"seqlen_k. Got seqlen_q: {asked.query.size(-2)} seqlen_k: "
            f"{asked.key.size(-2)}."
        )
    yield from _of_types(asked, _HALF, _BFLOAT16)
    major, minor = asked.capability
    if major < 8:
        yield (
            "Flash attention only supports gpu architectures in the range [sm80, "
            f"sm121]. Attempting to run on a sm {major}.{minor} gpu."
        )
    head = max(sizes)
    too_large = 192 < head <= 224 or (head > 224 and asked.dropout)
    if too_large and asked.needs_grad and (8, 6) <= asked.capability <= (8, 9):
        yield (
            "Flash attention currently doesn't support training with head_dim in "
            "(192, 224] or (head_dim in (224, 256] and dropout > 0.0) on gpu "
            "architectures in the range[sm86, sm89]."
        )


def _of_efficient(asked: Asked) -> Iterator[str]:
    yield from _of_any_fused(asked, shares_keys=False)
    major, _ = asked.capability
    half = (_HALF,) if major < 8 else (_HALF, _BFLOAT16)
    yield from _of_types(asked, *half, _SINGLE)
    on_tensor_cores = major >= 8 or (major == 7 and asked.query.element_size() == 2)
    alignment = 16 // asked.query.element_size() if on_tensor_cores else 1
    sizes = [each.size(-1) for each in asked.inputs]
    if sizes[0] != sizes[1] or any(not size or size % alignment for size in sizes):
        yield (
            "Mem efficient attention requires last dimension of inputs to be divisible "
            f"by {alignment}. {_last_sizes(asked)}"
        )


def _of_cudnn(asked: Asked) -> Iterator[str]:
    yield from _of_any_fused(asked, shares_keys=asked.shares_keys)
    yield from _of_types(asked, _HALF, _BFLOAT16)
    if asked.capability < (8, 0):
        yield "cuDNN SDPA requires a gpu of sm80 or newer."
    sizes = [each.size(-1) for each in asked.inputs]
    if max(sizes) > _LARGEST_HEAD_OF_CUDNN:
        yield f"head_dim should be no more than {_LARGEST_HEAD_OF_CUDNN}"
    if any(size % 8 for size in sizes):
        yield "head_dim should be a multiple of 8"
    if 1 in {asked.query.size(2), asked.key.size(2)}:
        yield "cudnn SDPA does not support sequence length 1."


_REFUSALS: Mapping[int, Callable[[Asked], Iterator[str]]] = {
    Backend.EFFICIENT: _of_efficient,
    Backend.FLASH: _of_flash,
    Backend.CUDNN: _of_cudnn,
}
_NAMES = {
    Backend.EFFICIENT: ("Memory efficient", "Memory Efficient attention"),
    Backend.FLASH: ("Flash attention", "Flash attention"),
    Backend.CUDNN: ("CuDNN attention", "CuDNN attention"),
}


def _of_any_fused(asked: Asked, *, shares_keys: bool) -> Iterator[str]:
    """What none of the fused kernels takes; nothing below looks at other shapes."""
    query, key, value = asked.inputs
    dims = [each.dim() for each in asked.inputs]
    if dims != [4, 4, 4]:
        yield (
            "All fused kernels requires query, key and value to be 4 dimensional, but "
            f"got Query dim: {dims[0]}, Key dim: {dims[1]}, Value dim: {dims[2]} "
            "instead."
        )
        return
    heads, fewer = query.size(1), key.size(1)
    fits = fewer == value.size(1) and (
        heads == fewer or (shares_keys and fewer and heads % fewer == 0)
    )
    if not (query.size(0) == key.size(0) == value.size(0) and fits):
        yield (
            "For dense inputs, both fused kernels require query, key and value to have "
            f"the same batch_size and num_heads. Query.sizes(): {[*query.shape]}, Key "
            f"sizes(): {[*key.shape]}, Value sizes(): {[*value.shape]} instead. To "
            "broadcast dense inputs, try using unsqueeze and expand_to before passing "
            "them into the kernel."
        )
    if 0 in {query.size(2), key.size(2)}:
        yield "All fused kernels do not support zero seq_len_q or seq_len_kv."
    given = [*asked.inputs, *([] if asked.mask is None else [asked.mask])]
    if any(each.stride(-1) != 1 for each in given):
        yield (
            "All fused kernels require the last dimension of the input to have stride "
            "1."
        )


def _of_types(asked: Asked, *allowed: str) -> Iterator[str]:
    found = [str(each.dtype) for each in asked.inputs]
    if len({*found}) > 1 or found[0] not in allowed:
        yield (
            "Expected query, key and value to all be of dtype: "
            f"{{{', '.join(map(_short, allowed))}}}. Got Query dtype: "
            f"{_short(found[0])}, Key dtype: {_short(found[1])}, and Value dtype: "
            f"{_short(found[2])} instead."
        )


def _last_sizes(asked: Asked) -> str:
    query, key, value = (each.size(-1) for each in asked.inputs)
    return (
        f"Got Query.size(-1): {query}, Key.size(-1): {key}, Value.size(-1): {value} "
        "instead."
    )


def _short(dtype: str) -> str:
    names = {_HALF: "Half", _BFLOAT16: "BFloat16", _SINGLE: "Float"}
    return names.get(dtype, dtype.removeprefix("torch.").capitalize())
