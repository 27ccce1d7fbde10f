"""Holds the floating point operations of a run against what its devices compute.

torch counts what it is told to do, operator by operator, in a further run. So the
figure is exact for matrix products, convolutions and attention, and everything else
counts as nothing: element-wise operations, sums, normalisations, kernels that torch
does not know, and what is replayed from a captured graph. A causal mask is not counted
as half of the work. The run has all its effects once more.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.report import Roofline
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gpumagic.cuda_sync_time.report import Setting

_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"
# A whole recurrent network in one call.
_IN_ONE_PIECE = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_lstm_mps")
# The table of peaks names types in its own way.
_WORDS = {
    "float64": "fp64",
    "float32": "fp32",
    "tf32": "tf32",
    "float16": "fp16",
    "bfloat16": "bf16",
}


def roofline(
    run: Callable[[], object], torch: Any, setting: Setting, seconds: float
) -> Roofline:
    """Run the code once more, count, and hold that against the devices' peak.

    Code of torch.compile runs as if it was not compiled: it then has the same
    operations, can be counted, and keeps what has been compiled for later. An error of
    the code costs the count alone.
    """
    tally = Tally(torch)
    try:
        with _uncompiled(torch), tally.counting():
            run()
    except KeyboardInterrupt:
        return Roofline(seconds, problem="the run that counts was interrupted")
    except Exception as error:  # noqa: BLE001 -- the user's own, and the time stands
        said = error_line(error)
        return Roofline(
            seconds,
            problem=f"counting runs the code once more, and there it raised {said}",
            hint="make the code repeatable: what it changes must not be in its own way",
        )
    if tally.in_one_piece:
        names = ", ".join(sorted(tally.in_one_piece))
        return Roofline(
            seconds,
            problem=f"a recurrent network ran as one call ({names}), which torch does "
            "not count",
            hint="count a cell without it, or work its operations out by hand",
        )
    if not tally.flops.total():
        return Roofline(
            seconds,
            problem="no matrix product, convolution or attention ran, and nothing else "
            "is counted",
        )
    devices = max(len(tally.devices), 1)
    dtype = tally.types.most_common(1)[0][0]
    peak = _peak_of_one(setting, dtype)
    return Roofline(
        seconds,
        tally.flops.total(),
        tuple(tally.flops.most_common()),
        dtype,
        None if peak is None else peak * devices,
        devices,
    )


def _peak_of_one(setting: Setting, dtype: str) -> float | None:
    """The rate of a large product on the devices in use; None of mixed or unknown."""
    from gpumagic.simulator.models import find_model

    names = {name for _, name in setting.devices}
    if len(names) != 1 or setting.kind == "cpu" or dtype not in _WORDS:
        return None
    box = simulated_box() if setting.label else None
    try:
        model = box.machine.gpus[0].model if box else find_model(str(names.pop()))
    except GpuMagicError:
        return None
    return model.matmul_flops_per_s(_WORDS[dtype])


@contextlib.contextmanager
def _uncompiled(torch: Any) -> Iterator[None]:
    set_stance = getattr(torch.compiler, "set_stance", None)
    with contextlib.ExitStack() as stack:
        if set_stance is not None:
            stack.enter_context(set_stance("force_eager"))
        stack.enter_context(warnings.catch_warnings())
        # The hooks are those of the counter.
        warnings.filterwarnings("ignore", _HOOKS_WARNING)
        yield


class Tally:
    """Torch's own counter, beside which the types of the operands are noted."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.flops: Counter[str] = Counter()  # by operator, as torch calls it
        self.types: Counter[str] = Counter()  # by the type that they are computed in
        self.devices: set[str] = set()
        self.in_one_piece: set[str] = set()  # calls of which nothing says how many

    def counting(self) -> AbstractContextManager[Any]:
        """The block in which everything is counted."""
        from torch.utils import flop_counter

        aten = self._torch.ops.aten
        known = dict(flop_counter.flop_registry) | _attention_on_the_cpu(aten)
        formulas = {
            operator: self._noting(str(operator).removeprefix("aten."), formula)
            for operator, formula in known.items()
        }
        for name in _IN_ONE_PIECE:
            operator = getattr(aten, name, None)
            if operator is not None:
                formulas[operator] = self._noting_one_piece(name)
        mode: AbstractContextManager[Any] = flop_counter.FlopCounterMode(
            display=False, custom_mapping=formulas
        )
        return mode

    def _noting(self, name: str, formula: Callable[..., int]) -> Callable[..., int]:
        def count(*operands: Any, **options: Any) -> int:
            flops = int(formula(*operands, **options))
            self.flops[name] += flops
            self.types[self._type_word(name, operands)] += flops
            return flops

        return _given_tensors(count)

    def _noting_one_piece(self, name: str) -> Callable[..., int]:
        def count(*_: Any, **__: Any) -> int:
            self.in_one_piece.add(name)
            return 0

        return _given_tensors(count)

    def _type_word(self, name: str, operands: tuple[Any, ...]) -> str:
        torch = self._torch
        tensors = (each for each in operands if isinstance(each, torch.Tensor))
        tensor = next(tensors, None)
        if tensor is None:
            return "float32"
        self.devices.add(str(tensor.device))
        word = str(tensor.dtype).removeprefix("torch.")
        if word == "float32" and tensor.device.type in ("cuda", "sim"):
            rounds = convolutions_round if "convolution" in name else products_round
            return "tf32" if rounds(torch) else word
        return word


def _given_tensors(formula: Callable[..., int]) -> Callable[..., int]:
    """The mark by which torch hands a formula the tensors, and not their shapes."""
    vars(formula)["_get_raw"] = True
    return formula


def _attention_on_the_cpu(aten: Any) -> dict[Any, Any]:
    """The same formulas as for a GPU; torch leaves the operator of the CPU out."""
    from torch.utils import flop_counter

    def forward(*operands: Any, **_: Any) -> Any:
        shapes = (each.shape for each in operands[:3])
        return flop_counter.sdpa_flop_count(*shapes)

    def backward(*operands: Any, **_: Any) -> Any:
        shapes = (each.shape for each in operands[:4])
        return flop_counter.sdpa_backward_flop_count(*shapes)

    name = "_scaled_dot_product_flash_attention_for_cpu"
    formulas = {name: forward, f"{name}_backward": backward}
    found = {getattr(aten, each, None): formulas[each] for each in formulas}
    return {operator: found[operator] for operator in found if operator is not None}


# TF32 makes a product several times faster. There are two switches, one for matrix
# products and one for convolutions, and two ways to turn each. The newer way (torch
# 2.9) is asked first: once somebody has used it, the older one may raise.


def products_round(torch: Any) -> bool:
    """Whether a matrix product of float32 may be rounded to TF32."""
    return _rounds(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def convolutions_round(torch: Any) -> bool:
    """Whether a convolution of float32 may be rounded; by default it may."""
    cudnn = torch.backends.cudnn
    return _rounds(getattr(cudnn, "conv", None), cudnn)


def _rounds(newer: Any, older: Any) -> bool:
    precision = getattr(newer, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    try:
        return bool(older.allow_tf32)
    except RuntimeError:  # both ways have been used, and contradict each other
        return False
