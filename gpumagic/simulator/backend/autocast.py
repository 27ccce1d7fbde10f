"""Autocast on the simulated device: which operators run in which precision.

The operators are those that torch casts on CUDA, caught above their parts, so that
`linear` casts as a whole. What no list names runs in single precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.operations import names_in, overload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "AutocastPrivateUse1"


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
_LEFT_OUT = ("_cudnn_rnn",)  # is called by cuDNN's own name alone


def autocast_kernels(device_type: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator that casts, by name, with its kernel."""
    casts = _Casts(device_type)
    on_cuda = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    for full in on_cuda:
        name, operator = full.removeprefix("aten::"), overload_of(full)
        if name == "binary_cross_entropy":
            yield name, _unsafe
        elif name in _FLOAT32_OUT:
            yield name, casts.out(operator)
        elif name not in _LEFT_OUT:
            yield name, casts.inputs(operator, name)


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
            if lower or (widest and not self._any_single((args, *options.values()))):
                dtype = torch.get_autocast_dtype(self._device_type)
            named = {key: self._cast(each, dtype) for key, each in options.items()}
            with self._beneath():
                return operator(*self._cast(args, dtype), **named)

        return kernel

    def out(self, operator: Any) -> Callable[..., Any]:
        """Let it write single precision, unless the caller says what it writes."""
        names = [each.name for each in operator._schema.arguments]
        position = names.index("dtype")

        def kernel(*args: Any, **options: Any) -> Any:
            told = options.get("dtype") or (*args, *[None] * len(names))[position]
            if told is None and self._eligible(args[0]):
                options["dtype"] = torch.float32
                args = args[:position]
            with self._beneath():
                return operator(*args, **options)

        return kernel

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(each, dtype) for each in value)
        return value.to(dtype) if self._eligible(value) else value

    def _any_single(self, values: Any) -> bool:
        return any(
            self._any_single(each)
            if isinstance(each, (list, tuple))
            else self._eligible(each) and each.dtype is torch.float32
            for each in values
        )

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
