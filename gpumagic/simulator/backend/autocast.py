"""Autocast on the simulated device: which operators run in which precision.

The lists are those of CUDA. Composite operators are caught above their parts, so
that `linear` casts as a whole.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.as_cuda import Names
    from gpumagic.simulator.backend.as_cuda_tensors import Replacement

KEY = "AutocastPrivateUse1"
LOWER = (
    "_convolution",
    "_convolution.deprecated",
    "conv_tbc",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "linalg_vecdot",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
)
FLOAT32 = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "linalg_matrix_sqrth",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    *(
        f"{name}{dimensions}d"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for dimensions in (1, 2, 3)
    ),
)
# They read halves and write float32, unless they are told what to write.
FLOAT32_OUT = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
)
# Likewise, by another overload, which takes the type as well.
FLOAT32_OUT_BY = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
# They need one type for all arguments; the wider one wins.
WIDEST = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
)
_SWITCHES = (
    "get_autocast_dtype",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "is_autocast_enabled",
)


class CastWeights:
    """The weights that were cast in the autocast block that is open, as torch has it.

    They are cast at their first use, with gradients whatever the mode, and kept until
    the outermost block ends; torch's own store cannot be reached from Python.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._casts: dict[tuple[int, Any], tuple[weakref.ref[Any], Any]] = {}

    def cast(self, weight: Any, dtype: Any) -> Any:
        """A weight in a narrower type: cast now, or before."""
        key = id(weight), dtype
        known, cast = self._casts.get(key, (None, None))
        if known is None or known() is not weight:
            with self._torch.enable_grad():
                cast = weight.to(dtype)
            self._casts[key] = weakref.ref(weight), cast
        return cast

    def keeps(self, value: Any) -> bool:
        """Whether this is a weight, and what it is cast to may be kept."""
        torch = self._torch
        return (
            value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        )

    def clear(self) -> None:
        """The block is over."""
        self._casts.clear()

    def clearing(self) -> Callable[[], None]:
        """What clears torch's own store, and this one."""
        of_torch, clear = self._torch.clear_autocast_cache, self.clear

        def clear_autocast_cache() -> None:
            clear()
            of_torch()

        return clear_autocast_cache


def autocast_kernels(
    torch: Any, device_type: str, weights: CastWeights
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator that casts, by name, with its kernel."""
    policies = _Policies(torch, device_type, weights)
    for names, policy in (
        (LOWER, policies.lower),
        (FLOAT32, policies.float32),
        (FLOAT32_OUT, policies.float32_out),
        (WIDEST, policies.widest),
    ):
        for name in names:
            operator = _operator(torch, name)
            if operator is not None:  # older versions of torch lack some
                yield name, policies.outside(policy(operator))
    for name, other in FLOAT32_OUT_BY.items():
        by = policies.float32_out_by(_operator(torch, name), _operator(torch, other))
        yield name, policies.outside(by)
    yield "binary_cross_entropy", _unsafe


class _Policies:
    """What is done with the arguments of an operator before it runs."""

    def __init__(self, torch: Any, device_type: str, weights: CastWeights) -> None:
        self._torch = torch
        self._device_type = device_type
        self._weights = weights

    def outside(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel beneath which nothing casts any more."""
        core = self._torch._C
        below = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)

        def run(*args: Any, **options: Any) -> Any:
            with core._ExcludeDispatchKeyGuard(below):
                return kernel(*args, **options)

        return run

    def lower(self, operator: Any) -> Callable[..., Any]:
        """Run it in the type of the autocast block."""

        def kernel(*args: Any, **options: Any) -> Any:
            return self._in(self._half, operator, args, options)

        return kernel

    def float32(self, operator: Any) -> Callable[..., Any]:
        """Run it in single precision."""

        def kernel(*args: Any, **options: Any) -> Any:
            return self._in(self._torch.float32, operator, args, options)

        return kernel

    def widest(self, operator: Any) -> Callable[..., Any]:
        """Run it in single precision if one of its arguments is."""
        single = self._torch.float32

        def kernel(*args: Any, **options: Any) -> Any:
            flat = self._eligible_in((args, *options.values()))
            wide = any(each.dtype is single for each in flat)
            return self._in(single if wide else self._half, operator, args, options)

        return kernel

    def float32_out(self, operator: Any) -> Callable[..., Any]:
        """Let it write single precision, unless the caller says what it writes."""
        names = [each.name for each in operator._schema.arguments]
        position = names.index("dtype")

        def kernel(*args: Any, **options: Any) -> Any:
            told = options.get("dtype") or (*args, *[None] * len(names))[position]
            if told is None and self._eligible(args[0]):
                options["dtype"] = self._torch.float32
                args = args[:position]
            return operator(*args, **options)

        return kernel

    def float32_out_by(self, operator: Any, other: Any) -> Callable[..., Any]:
        """Likewise, where the type is an argument of another overload."""
        defaults = [each.default_value for each in operator._schema.arguments]

        def kernel(*args: Any, **options: Any) -> Any:
            if not self._eligible(args[0]):
                return operator(*args, **options)
            full = (*args, *defaults[len(args) :])
            return other(*full, **options, dtype=self._torch.float32)

        return kernel

    @property
    def _half(self) -> Any:
        return self._torch.get_autocast_dtype(self._device_type)

    def _in(self, dtype: Any, operator: Any, args: Any, options: Any) -> Any:
        named = {key: self._cast(each, dtype) for key, each in options.items()}
        return operator(*self._cast(args, dtype), **named)

    def _cast(self, value: Any, dtype: Any) -> Any:
        if self._eligible(value):
            if dtype is self._half and self._weights.keeps(value):
                return self._weights.cast(value, dtype)
            return value.to(dtype)
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(each, dtype) for each in value)
        return value

    def _eligible(self, value: Any) -> bool:
        torch = self._torch
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.device.type == self._device_type
            and value.dtype is not torch.float64
        )

    def _eligible_in(self, values: Any) -> Iterator[Any]:
        """All eligible tensors, however deep they are."""
        for value in values:
            if isinstance(value, (list, tuple)):
                yield from self._eligible_in(value)
            elif self._eligible(value):
                yield value


def _operator(torch: Any, name: str) -> Any:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def _unsafe(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast.\nUse binary_cross_entropy_with_logits or BCEWithLogitsLoss, which "
        "are safe"
    )


def autocast_for_cuda(torch: Any, names: Names) -> Iterator[Replacement]:
    """What to put in the place of torch's own: object, name, replacement."""
    for name in _SWITCHES:
        yield torch, name, _switch(getattr(torch, name), names)
    get, set_ = torch.get_autocast_dtype, torch.set_autocast_dtype
    ours = names.type_of("cuda")
    yield torch, "get_autocast_gpu_dtype", lambda: get(ours)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: set_(ours, dtype)
    autocast = torch.amp.autocast_mode.autocast
    yield autocast, "__init__", _block(autocast.__init__, names)


def _switch(switch: Callable[..., Any], names: Names) -> Callable[..., Any]:
    """One of torch's switches, which without a device is that of CUDA."""

    @functools.wraps(switch)
    def ask(*args: Any, **options: Any) -> Any:
        if "device_type" in options:
            options["device_type"] = names.type_of(options["device_type"])
        elif not args or isinstance(args[0], bool):
            args = (names.type_of("cuda"), *args)
        else:
            args = (names.type_of(args[0]), *args[1:])
        return switch(*args, **options)

    return ask


def _block(init: Callable[..., None], names: Names) -> Callable[..., None]:
    @functools.wraps(init)
    def begin(self: Any, device_type: Any, *args: Any, **options: Any) -> None:
        init(self, names.type_of(device_type), *args, **options)

    return begin
