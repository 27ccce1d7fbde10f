"""What is computed otherwise than on the CPU: halves, attention, CUDA's own kernels.

Processors without arithmetic in half precision take minutes for a product that takes
a second in single precision. CUDA adds up in single precision and rounds the sum, so
that is what is done here, too, on every machine.

Attention is a kernel each way, and no matrix of pairs, as FlashAttention 2. It is
torch's own operator for the CPU, under the name of CUDA's. What that lacks (dropout,
values of another size, the gradient of a bias) is composed step by step.

Torch has for CUDA alone: products that add up in another type than they are given,
dropout in one kernel, and the cells of LSTM and GRU, which are composed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.costs import Blocks, blocks_of_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_HALVES = (torch.float16, torch.bfloat16)
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
FLASH = "aten::_scaled_dot_product_flash_attention"  # the name that it is shown by
DROPOUT = "native_dropout"  # which is given a generator


def names_in(words: str) -> frozenset[str]:
    """The words of a text, as names to look up."""
    return frozenset(words.split())


def overload_of(name: str) -> Any:
    """Torch's operator by the name that its dispatcher has, "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    return getattr(packet, overload or "default")


# ---------------------------------------------------------------------- halves


def in_single(
    call: Callable[..., Any], written: tuple[int | str, ...] = ()
) -> Callable[..., Any]:
    """An operator that computes halves in single precision."""

    def run(*args: Any, **named: Any) -> Any:
        if getattr(args[0], "dtype", None) not in _HALVES:
            return call(*args, **named)
        result = widened(call, written, args, named)
        # torch says what is wrong with a mixture
        return call(*args, **named) if result is NotImplemented else result

    return run


def widened(  # noqa: C901 -- with what it does to one value
    call: Callable[..., Any],
    written: tuple[int | str, ...],
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> Any:
    """Run it in a wider type; `NotImplemented` where there is none."""
    types = {*_number_types((*args, *named.values()))}
    if len(types) != 1 or not types <= {*_HALVES}:
        return NotImplemented
    (narrow,) = types
    originals: dict[int, tuple[Any, Any]] = {}

    def widen(where: int | str, value: Any) -> Any:
        if isinstance(value, list):
            return [widen(where, each) for each in value]
        if getattr(value, "dtype", None) is not narrow:
            return value
        wide = value.float()
        if where in written:
            originals[id(wide)] = value, wide
        return wide

    def round_(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(round_, value))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)][0]
        return value.to(narrow) if value.dtype is torch.float32 else value

    result = call(
        *(widen(where, each) for where, each in enumerate(args)),
        **{key: widen(key, each) for key, each in named.items()},
    )
    for original, wide in originals.values():  # an output may be of any size
        original.resize_(wide.shape).copy_(wide)
    return round_(result)


def _number_types(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _number_types(value)
        elif isinstance(value, torch.Tensor) and (
            value.is_floating_point() or value.is_complex()
        ):
            yield value.dtype


# -------------------------------------------------------------------- autocast

# In the type of the block.
_LOWER = names_in(
    "_convolution _convolution.deprecated conv_tbc conv1d conv2d conv3d"
    " conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution"
    " cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul"
    " einsum mm mv linear addbmm baddbmm bmm chain_matmul linalg_multi_dot"
    " linalg_vecdot scaled_dot_product_attention _scaled_dot_product_flash_attention"
    " lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell"
    " _thnn_fused_gru_cell"
)
# They read halves and write float32, unless they are told what to write.
_FLOAT32_OUT = names_in(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm"
    " linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
# They need one type for all arguments; the wider one wins.
_WIDEST = names_in(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot"
    " scatter_add"
)


def autocast_kernels(device_type: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator that autocast casts, by name, with its kernel.

    They are those that torch casts on CUDA, caught above their parts, so that `linear`
    casts as a whole. What no list names runs in single precision.
    """
    casts = _Casts(device_type)
    on_cuda = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    for full in on_cuda:
        name = full.removeprefix("aten::")
        if name == "binary_cross_entropy":
            yield name, _unsafe
        elif name != "_cudnn_rnn":  # which is called by cuDNN's own name alone
            make = casts.output if name in _FLOAT32_OUT else casts.inputs
            yield name, make(overload_of(full), name)


class _Casts:
    """What is done with the arguments of an operator before it runs."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        core = torch._C
        below = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)
        self._beneath = lambda: core._ExcludeDispatchKeyGuard(below)

    def inputs(self, operator: Any, name: str) -> Callable[..., Any]:
        """Cast what it is given."""
        lower, widest = name in _LOWER, name in _WIDEST

        def kernel(*args: Any, **options: Any) -> Any:
            dtype = torch.float32
            if lower or (widest and not self._is_single((args, *options.values()))):
                dtype = torch.get_autocast_dtype(self._device_type)
            named = {key: self._cast(each, dtype) for key, each in options.items()}
            with self._beneath():
                return operator(*self._cast(args, dtype), **named)

        return kernel

    def output(self, operator: Any, _: str) -> Callable[..., Any]:
        """Let it write single precision, unless the caller says what it writes."""
        names = [each.name for each in operator._schema.arguments]
        position = names.index("dtype")

        def kernel(*args: Any, **options: Any) -> Any:
            told = options.get("dtype") or (*args, *[None] * len(names))[position]
            if told is None and self._eligible(args[0]):
                args, options["dtype"] = args[:position], torch.float32
            with self._beneath():
                return operator(*args, **options)

        return kernel

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(each, dtype) for each in value)
        return value.to(dtype) if self._eligible(value) else value

    def _is_single(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(map(self._is_single, value))
        return self._eligible(value) and value.dtype is torch.float32

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.device.type == self._device_type
            and value.dtype is not torch.float64
        )


def _unsafe(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast.\nUse binary_cross_entropy_with_logits or BCEWithLogitsLoss, which "
        "are safe"
    )


# ------------------------------------------------------------------- attention


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
            and all(each.dim() == 4 and each.numel() for each in given)
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


def attention_work(is_backward: bool) -> Callable[..., Blocks]:
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


# ------------------------------------------------------- operators of CUDA alone


def _product(name: str) -> Callable[..., Any]:
    multiply = getattr(torch, name)

    def run(*tensors_and_type: Any, **factors: Any) -> Any:
        *tensors, out_dtype = tensors_and_type
        return multiply(*(each.to(out_dtype) for each in tensors), **factors)

    return run


def _dropout(given: Any, probability: float, train: Any, generator: Any = None) -> Any:
    if train is False:
        return given.clone(), torch.ones_like(given, dtype=torch.bool)
    kept = 1 - probability
    mask = torch.empty_like(given).bernoulli_(kept, generator=generator)
    return given * mask * (1 / kept if kept else 0.0), mask.bool()


def _lstm(
    from_input: Any, from_hidden: Any, cell: Any, bias: Any = None, other: Any = None
) -> tuple[Any, ...]:
    gates = from_input + from_hidden
    if bias is not None:
        gates = gates + bias + other
    enter, forget, new, leave = gates.chunk(4, 1)
    next_cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * next_cell.tanh(), next_cell, gates


def _gru(
    from_input: Any, from_hidden: Any, hidden: Any, bias: Any = None, other: Any = None
) -> tuple[Any, ...]:
    if bias is not None:
        from_input, from_hidden = from_input + bias, from_hidden + other
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    update = (input_update + hidden_update).sigmoid()
    reset = (input_reset + hidden_reset).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), update


# The cells of LSTM and GRU, which CUDA fuses: composed here, also where gradients are
# wanted.
CELLS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_gru_cell": _gru,
}
# What computes an operator that a CPU has no kernel for, by its name.
MADE: dict[str, Callable[..., Any]] = {
    **{
        f"{name}.{overload}": _product(name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    },
    DROPOUT: _dropout,
}
