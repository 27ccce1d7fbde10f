"""Autocast on the simulated device: which operators run in which precision.

The lists are those of CUDA. Composite operators are caught above their parts, so
that `linear` casts as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "AutocastPrivateUse1"

LOWER = (
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
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
    "scaled_dot_product_attention",
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
    "group_norm",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
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
    "prod",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "sum",
    "sum.dim_IntList",
    "cross_entropy_loss",
)
# They need one type for all arguments; the widest wins.
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


def autocast_kernels(
    torch: Any, device_type: str
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator that casts, by name, with its kernel."""
    half = lambda: torch.get_autocast_dtype(device_type)  # noqa: E731
    single = lambda: torch.float32  # noqa: E731
    for names, wanted in ((LOWER, half), (FLOAT32, single)):
        for name in names:
            yield name, _casting(torch, name, device_type, wanted)
    for name in WIDEST:
        yield name, _casting(torch, name, device_type, None)
    yield "binary_cross_entropy", _unsafe


def _casting(
    torch: Any,
    name: str,
    device_type: str,
    wanted: Callable[[], Any] | None,
) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    core = torch._C
    below = core.DispatchKeySet(core.DispatchKey.AutocastPrivateUse1)

    def cast(value: Any, dtype: Any) -> Any:
        if isinstance(value, torch.Tensor):
            eligible = (
                value.is_floating_point()
                and value.device.type == device_type
                and value.dtype is not torch.float64
            )
            return value.to(dtype) if eligible and value.dtype != dtype else value
        if isinstance(value, (list, tuple)):
            return type(value)(cast(each, dtype) for each in value)
        return value

    def kernel(*args: Any, **options: Any) -> Any:
        with core._ExcludeDispatchKeyGuard(below):
            dtype = wanted() if wanted else _widest(torch, (args, *options.values()))
            if dtype is not None:
                args = cast(args, dtype)
                options = {key: cast(each, dtype) for key, each in options.items()}
            return operator(*args, **options)

    return kernel


def _widest(torch: Any, values: Any) -> Any:
    """The widest floating point type among tensors, however deep they are."""
    widest = None
    for value in values:
        found = None
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found = value.dtype
        elif isinstance(value, (list, tuple)):
            found = _widest(torch, value)
        if found is not None:
            widest = found if widest is None else torch.promote_types(widest, found)
    return widest


def _unsafe(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast.\nUse binary_cross_entropy_with_logits or BCEWithLogitsLoss, which "
        "are safe"
    )
