"""Fused attention: a kernel each way, and no matrix of pairs, as FlashAttention 2.

It is torch's own operator for the CPU, under the name of CUDA's. What that lacks
(dropout, values of another size, the gradient of a bias) is composed step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.costs import Blocks, blocks_of_attention

if TYPE_CHECKING:
    from collections.abc import Callable

FUSED = "_scaled_dot_product_flash_attention_for_cpu"
FLASH = "aten::_scaled_dot_product_flash_attention"  # the name that it is shown by
_DIMENSIONS = 4


def attention_entry() -> dict[str, Callable[..., Any]]:
    """What stands in for the decision that torch has compiled for CUDA alone."""
    composed = torch.ops.aten.scaled_dot_product_attention.default.decompose
    fused = getattr(torch.ops.aten, FUSED).default
    kinds = torch.float16, torch.bfloat16, torch.float32
    core = torch._C
    switches = core._get_flash_sdp_enabled, core._get_mem_efficient_sdp_enabled

    def fits(query: Any, key: Any, value: Any, mask: Any, is_causal: bool) -> bool:
        """Whether the fused kernel takes it; torch composes the rest, or refuses it."""
        given = query, key, value
        return (
            any(enabled() for enabled in switches)
            and all(each.dim() == _DIMENSIONS and each.numel() for each in given)
            and query.dtype in kinds
            and {each.dtype for each in given} == {query.dtype}
            and {each.device for each in given} == {query.device}
            and {each.size(0) for each in given} == {query.size(0)}
            and {each.size(3) for each in given} == {query.size(3)}
            and key.shape == value.shape
            and (mask is None or not (is_causal or mask.requires_grad))
            and (mask is None or mask.dtype in {torch.bool, query.dtype})
        )

    def attend(
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
        __tracebackhide__ = True
        given = query, key, value, attn_mask, dropout_p, is_causal
        shared = 1
        taken = not dropout_p and fits(query, key, value, attn_mask, is_causal)
        if taken and query.size(1) != key.size(1):
            shared, rest = divmod(query.size(1), key.size(1))
            taken = enable_gqa and not rest
        if not taken:
            return composed(*given, scale=scale, enable_gqa=enable_gqa)
        if shared > 1:  # several heads of queries have the same keys
            key, value = (each.repeat_interleave(shared, 1) for each in (key, value))
        bias = attn_mask
        if bias is not None:
            if bias.dtype is torch.bool:
                bias = torch.where(bias, query.new_zeros(()), -torch.inf)
            bias = bias.expand(*query.shape[:3], key.size(2))
        named = {"attn_mask": bias, "scale": scale}
        return fused(query, key, value, 0.0, is_causal, **named)[0]

    return {"scaled_dot_product_attention": attend}


def work(is_backward: bool) -> Callable[..., Blocks]:
    """What its products take, of those pairs that a causal mask leaves."""
    first, causal_at, products = (1, 7, 5) if is_backward else (0, 4, 2)

    def count(*given: Any, **_: Any) -> Blocks:
        (batch, heads, rows, size), key = given[first : first + 2]
        columns, seen = key[2], float(rows * key[2])
        if given[causal_at : causal_at + 1] == (True,):
            short = min(rows, columns)
            seen = short * (short + 1) / 2 + (rows - short) * columns
        flops = 2.0 * batch * heads * seen * products * size
        return Blocks(flops, batch * heads * blocks_of_attention(rows, columns))

    return count
