"""Fused attention: a kernel each way, and no matrix of pairs, as FlashAttention 2.

Numbers are float32 within, and rounded once at the end. What torch's own kernel for the
CPU lacks (dropout, values of another size, the gradient of a bias) is the formula.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.kernel_times import Blocks, blocks_of_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation

FUSED = "_scaled_dot_product_efficient_attention"  # torch's operator that takes all
FLASH = "aten::_scaled_dot_product_flash_attention"  # the name that it is shown by


def attention_entry(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """What stands in for the decision that torch has compiled for CUDA alone."""
    torch = simulation.torch
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
            and all(each.dim() == 4 and each.numel() for each in given)
            and query.dtype in kinds
            and {each.dtype for each in given} == {query.dtype}
            and {each.device for each in given} == {query.device}
            and {each.size(0) for each in given} == {query.size(0)}
            and key.shape[:3] == value.shape[:3]
            and query.size(3) == key.size(3)
            and (mask is None or not is_causal)
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
        taken = fits(query, key, value, attn_mask, is_causal)
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
        return fused(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[
            0
        ]

    return {"scaled_dot_product_attention": attend}


def forward(torch: Any) -> Callable[..., Any]:
    """The kernel on CPU tensors."""
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def run(
        query: Any,
        key: Any,
        value: Any,
        bias: Any,
        _: bool,
        dropout: float = 0.0,
        causal: bool = False,
        *,
        scale: float | None = None,
        generator: Any = None,
    ) -> tuple[Any, ...]:
        state = torch.randint(1 << 62, (2,), generator=generator)
        q, k, v = (each.float() for each in (query, key, value))
        wide = None if bias is None else bias.float()
        if dropout or query.size(3) != value.size(3):
            options = wide, causal, scale, dropout, state
            weights, kept = _weights(torch, q, k, *options)
            out, sums = weights * kept @ v, weights[..., 0]
        else:
            out, sums = on_cpu(q, k, v, 0.0, causal, attn_mask=wide, scale=scale)
        return _like(torch, query, out), sums, state[0], state[1]

    return run


def backward(torch: Any) -> Callable[..., Any]:
    """The kernel of the gradients on CPU tensors."""
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    on_cpu = getattr(torch.ops.aten, name).default

    def run(
        grad: Any,
        query: Any,
        key: Any,
        value: Any,
        bias: Any,
        out: Any,
        sums: Any,
        seed: Any,
        _: Any,
        dropout: float,
        wanted: Any,
        causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        q, k, v, grad, out = (each.float() for each in (query, key, value, grad, out))
        wide = None if bias is None else bias.float()
        of_bias = None
        if dropout or query.size(3) != value.size(3) or wanted[3]:
            options = wide, causal, scale, dropout, seed[None]
            weights, kept = _weights(torch, q, k, *options)
            through = (grad @ v.mT) * kept
            scores = weights * (through - (through * weights).sum(-1, keepdim=True))
            factor = q.size(3) ** -0.5 if scale is None else scale
            grads = (
                scores @ k * factor,
                scores.mT @ q * factor,
                (weights * kept).mT @ grad,
            )
            of_bias = scores.to(query.dtype) if wanted[3] else None
        else:
            both = {"attn_mask": wide, "scale": scale}
            grads = on_cpu(grad, q, k, v, out, sums, 0.0, causal, **both)
        given = query, key, value
        pairs = zip(given, grads, strict=True)
        return (*(_like(torch, *each) for each in pairs), of_bias)

    return run


def _weights(
    torch: Any, q: Any, k: Any, bias: Any, causal: bool, scale: Any, dropout: float,
    state: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """How much each query sees of each key, and what dropout leaves of that."""
    scores = q @ k.mT * (q.size(3) ** -0.5 if scale is None else scale)
    if bias is not None:
        scores += bias
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    kept: Any = 1.0
    if dropout:
        numbers = torch.Generator().manual_seed(int(state[0]))
        kept = torch.empty_like(weights).bernoulli_(1 - dropout, generator=numbers)
        kept /= 1 - dropout
    return weights, kept


def _like(torch: Any, tensor: Any, numbers: Any) -> Any:
    """Numbers in the type and the order of a tensor; its last size may be another."""
    if tensor.shape == numbers.shape:
        return torch.empty_like(tensor).copy_(numbers)
    return numbers.to(tensor.dtype).contiguous()


def work(
    over_keys: int, over_values: int, first: int, causal_at: int
) -> Callable[..., Blocks]:
    """What its products take, of those pairs that a causal mask leaves.

    The queries are the first argument, or the one behind the gradient.
    """

    def count(*given: Any, **_: Any) -> Blocks:
        (batch, heads, rows, size), key, value = given[first : first + 3]
        columns, seen = key[2], float(rows * key[2])
        if given[causal_at : causal_at + 1] == (True,):
            short = min(rows, columns)
            seen = short * (short + 1) / 2 + (rows - short) * columns
        flops = 2.0 * batch * heads * seen * (over_keys * size + over_values * value[3])
        return Blocks(flops, batch * heads * blocks_of_attention(rows, columns))

    return count
