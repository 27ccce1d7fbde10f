"""Counts the floating point operations of a run, in a further run of its own.

torch counts what it is told to do, operator by operator, before it is done. So the
figure is exact for matrix products, convolutions and attention, and everything else
counts as nothing: element-wise operations, sums, normalisations, kernels that torch
does not know, and what is replayed from a captured graph. A causal mask is not counted
as half of the work.

The run has all its effects once more.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time import tf32
from gpumagic.devices import torch_private
from gpumagic.errors import error_line
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"
_WITH_TF32 = ("cuda", "sim")
# A whole recurrent network in one call.
_IN_ONE_PIECE = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_lstm_mps")
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Counted(Record):
    """The floating point operations of one run."""

    flops: int | None  # all that could be counted; None if that would not be the truth
    # the share of each operator of torch, largest first
    by_operation: tuple[tuple[str, int], ...] = ()
    # in which type most of them are computed: "bfloat16", "float32", or "tf32" where
    # torch may round to it. None if none were counted.
    dtype: str | None = None
    devices: int = 1  # on how many devices they are computed
    problem: str | None = None  # why they could not be counted
    hint: str | None = None  # what to do about it


def count_flops(run: Callable[[], object], torch: Any) -> Counted:
    """Run the code once more, and count.

    Code of torch.compile runs as if it was not compiled: it then has the same
    operations, can be counted, and keeps what has been compiled for later.

    Where there is no count, it says why. An error of the code is a reason as well: it
    costs the count alone.
    """
    refused = _refusal(torch)
    if refused is not None:
        return refused
    tally = Tally(torch)
    try:
        with _uncompiled(torch), tally.counting():
            run()
    except KeyboardInterrupt:
        return Counted(None, problem="the run that counts was interrupted")
    except Exception as error:  # noqa: BLE001 -- the user's own, and the time stands
        return _failed(error)
    return _counted(tally)


def _counted(tally: Tally) -> Counted:
    if tally.in_one_piece:
        names = ", ".join(sorted(tally.in_one_piece))
        return Counted(
            None,
            problem=f"a recurrent network ran as one call ({names}), which torch does "
            "not count",
            hint="count a cell without it, or work its operations out by hand",
        )
    if not tally.flops.total():
        return Counted(
            None,
            problem="no matrix product, convolution or attention ran, and nothing else "
            "is counted",
            hint="code that mostly moves bytes is judged by them: --bytes 512MiB",
        )
    return Counted(
        tally.flops.total(),
        tuple(tally.flops.most_common()),
        tally.types.most_common(1)[0][0],
        max(len(tally.devices), 1),
    )


def _refusal(torch: Any) -> Counted | None:
    """Up to torch 2.5 counting would keep compiled code from ever being used again."""
    if hasattr(torch.compiler, "set_stance"):
        return None
    if torch_private.compilations(torch) == 0:
        return None
    return Counted(
        None,
        problem="torch.compile has been used in this process, and in this version of "
        "torch counting would slow compiled code down for good",
        hint="count before anything is compiled, or update torch to 2.6 or newer",
    )


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


def _failed(error: Exception) -> Counted:
    return Counted(
        None,
        problem="counting runs the code once more, and there it raised "
        f"{error_line(error)}",
        hint="make the code repeatable: what it changes must not be in its own way",
    )


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
