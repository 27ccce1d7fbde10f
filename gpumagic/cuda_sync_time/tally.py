"""What is counted, and with which formulas: torch's own, and what they leave out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time import tf32

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_WITH_TF32 = ("cuda", "sim")
# A whole recurrent network in one call.
_IN_ONE_PIECE = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_lstm_mps")
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class Tally:
    """Torch's own counter, beside which the types of the operands are noted.

    Attributes:
        flops: By operator, as torch calls it.

        types: The same operations by the type that they are computed in.

        in_one_piece: Calls of which nothing says how many operations they are.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.flops: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.devices: set[str] = set()
        self.in_one_piece: set[str] = set()

    def counting(self) -> AbstractContextManager[Any]:
        """The block in which everything is counted."""
        from torch.utils.flop_counter import FlopCounterMode

        mode: AbstractContextManager[Any] = FlopCounterMode(
            display=False, custom_mapping=self._formulas()
        )
        return mode

    def _formulas(self) -> dict[Any, Callable[..., int]]:
        from torch.utils import flop_counter

        aten = self._torch.ops.aten
        known = dict(flop_counter.flop_registry)
        known |= _attention_on_the_cpu(aten, flop_counter)
        formulas = {
            operator: self._noting(_name(operator), formula)
            for operator, formula in known.items()
        }
        for name in _IN_ONE_PIECE:
            operator = getattr(aten, name, None)
            if operator is not None:
                formulas[operator] = self._noting_one_piece(name)
        return formulas

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
        tensors = (each for each in operands if isinstance(each, self._torch.Tensor))
        tensor = next(tensors, None)
        if tensor is None:
            return "float32"
        self.devices.add(str(tensor.device))
        word = str(tensor.dtype).removeprefix("torch.")
        if word == "float32" and tensor.device.type in _WITH_TF32:
            convolves = "convolution" in name
            asked = tf32.convolutions_round if convolves else tf32.products_round
            return "tf32" if asked(self._torch) else word
        return word


def _given_tensors(formula: Callable[..., int]) -> Callable[..., int]:
    """The mark by which torch hands a formula the tensors, and not their shapes."""
    vars(formula)["_get_raw"] = True
    return formula


def _attention_on_the_cpu(aten: Any, flop_counter: Any) -> dict[Any, Any]:
    """The same formulas as for a GPU; torch leaves the operator of the CPU out."""

    def forward(*operands: Any, **_: Any) -> Any:
        query, key, value = (each.shape for each in operands[:3])
        return flop_counter.sdpa_flop_count(query, key, value)

    def backward(*operands: Any, **_: Any) -> Any:
        shapes = (each.shape for each in operands[:4])
        return flop_counter.sdpa_backward_flop_count(*shapes)

    formulas = ((_CPU_ATTENTION, forward), (f"{_CPU_ATTENTION}_backward", backward))
    found = ((getattr(aten, name, None), formula) for name, formula in formulas)
    return {operator: formula for operator, formula in found if operator is not None}


def _name(operator: Any) -> str:
    """As torch calls it: "mm", "convolution_backward".

    >>> _name("aten.mm")
    'mm'
    """
    return str(operator).removeprefix("aten.")
