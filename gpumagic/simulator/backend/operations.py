"""What has to be known of an operator of torch to run it on the simulated GPU."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend import special
from gpumagic.simulator.backend.special import names_in, overload_of
from gpumagic.simulator.operators import (
    Kind,
    Rule,
    convolution_rule,
    rule_for,
    softmax_rule,
    strided_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.simulator.costs import Amount, Product

_NAMESPACE = "aten::"


# Factories that decompose as on CUDA, into an empty tensor and a fill.
_DECOMPOSED = names_in(
    "zeros ones full rand randn randint empty_like zeros_like ones_like full_like"
    " rand_like randn_like new_empty new_zeros new_full new_ones new_empty_strided"
    " scalar_tensor"
)
# What torch's C++ does for every device: registering these would only get in the way.
# `_pack_padded_sequence` takes its lengths from the CPU.
_LEFT_TO_TORCH = names_in(
    "_pin_memory is_pinned lift lift_fresh _pack_padded_sequence"
    " _pack_padded_sequence_backward"
)
# Tagged `inplace_view`: they change the geometry of a tensor, not its memory.
_IN_PLACE_VIEWS = names_in(
    "as_strided_ detach_ resize_ resize_as_ rename_ set_ set_data squeeze_"
    " swapaxes_ swapdims_ t_ transpose_ unsqueeze_"
)
# A CPU tensor may index a simulated one; CUDA copies it over, and waits for that.
_TAKES_HOST_INDICES = names_in(
    "index index_put index_put_ _index_put_impl_ _unsafe_index"
)

# Each output is as large as an input at most.
OF_THEIR_INPUTS_SIZE = frozenset(
    (Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.NORM, Kind.NORM_BACKWARD, Kind.OPTIMIZER)
)
# Matrix products whose last argument is the right-hand matrix.
_PRODUCTS = names_in("mm addmm bmm baddbmm")
_SLOW_IN_HALF = (Kind.MATMUL, Kind.CONVOLUTION)
_SOFTMAXES = (Kind.SOFTMAX, Kind.LOG_SOFTMAX)
_SHAPED = (Kind.CONVOLUTION, *_SOFTMAXES)
_CONVOLUTIONS = names_in("convolution _convolution convolution_overrideable")
_BY_ROWS = names_in(
    "native_layer_norm native_layer_norm_backward _fused_rms_norm"
    " _fused_rms_norm_backward"
)
_BY_CHANNELS = names_in(
    "native_batch_norm native_batch_norm_backward batch_norm_backward"
)
MASKS = ("torch.bool", "torch.uint8")
INDICES = 1  # where they stand among the arguments of what indexes


class Operation:
    """One overload of one operator: how it is run, and what it costs."""

    __slots__ = (
        "blocks", "by_shape", "call", "copies", "generator_at",
        "in_place", "is_product", "launches", "makes", "missing", "mixes", "name",
        "outs", "over_lists", "pointwise", "rounds", "rule", "several", "silent",
        "single", "takes_device", "takes_generator", "work", "written",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        overload = overload_of(name)
        schema = overload._schema
        arguments, returns = schema.arguments, schema.returns
        base, _, kind = name.removeprefix(_NAMESPACE).partition(".")
        self.name = name  # as torch's dispatcher spells it, "aten::add.Tensor"
        made = special.MADE.get(name.removeprefix(_NAMESPACE))
        self.call: Callable[..., Any] = made or overload._op
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        # nothing computes it here
        self.missing = not (made or has_kernel(name, "CPU"))
        self.rule: Rule = rule_for(name)
        functional = base.removesuffix("_")
        self.is_product = functional in _PRODUCTS and not kind.startswith("dtype")
        # counts what it computes, by the shapes of its arguments; None: bytes decide
        self.work: Callable[..., Amount] | None = None
        if functional in _PRODUCTS:
            self.work = _product
        elif self.rule.uses_flops:
            self.work = _flop_formula(getattr(torch.ops.aten, functional))
        if functional in _CONVOLUTIONS:
            self.work = _convolution
        if base.startswith(special.FUSED):
            self.work = special.attention_work(base.endswith("_backward"))
            self.name = special.FLASH + base.removeprefix(special.FUSED)
        self.copies = base == "clone"
        self.blocks = _counting_blocks(base, self.rule)
        self.single = len(returns) == 1 and str(returns[0].type) == "Tensor"
        # returns new tensors, and nothing else
        self.several = len(returns) > 1 and all(
            str(each.type) == "Tensor" and not each.alias_info for each in returns
        )
        self.in_place = self.single and bool(returns[0].alias_info)
        self.mixes = base in _TAKES_HOST_INDICES
        self.silent = not returns
        # names of the arguments that are outputs alone
        self.outs = tuple(each.name for each in arguments if each.is_out)
        # positions and names of the arguments that it writes
        self.written: tuple[int | str, ...] = tuple(
            each.name if each.kwarg_only else position
            for position, each in enumerate(arguments)
            if each.alias_info and each.alias_info.is_write
        )
        # how many tensors or lists of tensors it makes that were not there before
        self.makes = len(self.outs) or sum(not each.alias_info for each in returns)
        if self.rule.kind is Kind.METADATA:
            self.makes = 0
        self.pointwise = torch.Tag.pointwise in overload.tags and self.single
        self.over_lists = base.startswith("_foreach_")
        if self.rule.kind in _SLOW_IN_HALF and not made:
            self.call = special.in_single(self.call, self.written)
        names = {each.name for each in arguments}
        self.takes_generator = "generator" in names or base == special.DROPOUT
        self.generator_at = next(
            (i for i, each in enumerate(arguments) if each.name == "generator"),
            len(arguments),
        )
        self.takes_device = "device" in names
        self.launches = self.rule.launches
        self.rounds = self.rule.kind in (Kind.MATMUL, Kind.CONVOLUTION)
        self.by_shape = self.rule.kind in _SHAPED and bool(self.rule.harder)

    def run(self, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call it; in wider types if it is not there in these and on CUDA is."""
        try:
            return self.call(*args, **named)
        except NotImplementedError:
            result = self.widened(args, named)
            if result is NotImplemented:
                raise
            return result

    def widened(self, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """In a wider type, as the CPU has just said that it does not have this one.

        `NotImplemented` where there is none. No frame may hold the error: in a circle
        with it, the tensors of a call that has failed would live on.
        """
        return special.widened(self.call, self.written, args, named)

    def rule_by_shape(self, twins: Sequence[Any], *, dense: bool) -> Rule:
        """What it costs on operands of these shapes."""
        rule, tensor = self.rule, torch.Tensor
        if rule.kind in _SOFTMAXES and twins[0].dim():
            first = twins[0]
            dimension = next((each for each in twins if type(each) is int), -1)
            return softmax_rule(rule, first.size(dimension), first.element_size())
        tensors = [each for each in twins if isinstance(each, tensor)]
        if not tensors:
            return rule
        if rule.kind is Kind.CONVOLUTION:
            weight = next(each for each in reversed(tensors) if each.dim() > 2)
            return convolution_rule(rule, weight.size(1), weight.size(0))
        if not dense:
            return strided_rule(rule)
        return rule

    def rule_with_mask(self, indices: Iterable[Any]) -> Rule:
        """What it costs to index with these; a mask has to be counted first."""
        masked = any(str(getattr(each, "dtype", "")) in MASKS for each in indices)
        if masked:
            return _waiting(self.rule)
        return self.rule


@functools.cache
def _waiting(rule: Rule) -> Rule:
    return dataclasses.replace(rule, waits=True)


def names_to_register() -> Iterator[str]:
    """Every operator that needs a kernel of the device's own."""
    core = torch._C
    registered = core._dispatch_get_registrations_for_dispatch_key
    kept = {*registered("CompositeImplicitAutograd"), *registered("PrivateUse1")}
    for name in core._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix(_NAMESPACE).partition(".")
        if (
            not name.startswith(_NAMESPACE)
            or name in kept
            or base in _IN_PLACE_VIEWS
            or base in _LEFT_TO_TORCH
            or (base in _DECOMPOSED and "out" not in overload)
        ):
            continue
        schema = core._get_schema(_NAMESPACE + base, overload)
        if not any(_is_view(each) for each in schema.returns):
            yield name


def _is_view(returned: Any) -> bool:
    return bool(returned.alias_info) and not returned.alias_info.is_write


def _product(*shapes: Any, out_shape: Any, **_: Any) -> Product:
    """The sizes of a matrix product; torch's own formula takes long to load."""
    # The last may be the type that it is told to give.
    right = next(each for each in reversed(shapes) if isinstance(each, torch.Size))
    return (*map(int, out_shape), int(right[-2]))


def _convolution(
    given: Any, weight: Any, *options: Any, out_shape: Any, **named: Any
) -> Product:
    """A convolution as the matrix product that it is computed by.

    Of each window of the input it makes a row; transposed, of each of its pixels.
    """
    _bias, _stride, _padding, _dilation, transposed, *more = options
    outer, inner, *window = map(int, weight)
    spread = math.prod(window)
    batch, channels, *pixels = map(int, given if transposed else out_shape)
    rows = batch * math.prod(pixels)
    if transposed:
        groups = int(named["groups"] if "groups" in named else more[1])
        return groups, rows, inner * spread, channels // groups
    groups = int(given[1]) // (inner or 1) or 1
    return groups, rows, outer // groups, inner * spread


def _counting_blocks(base: str, rule: Rule) -> Callable[[Sequence[Any]], int] | None:
    """What counts the blocks of an operator that has one for each row or channel."""

    def first(given: Sequence[Any], kind: type) -> Any:
        return next((each for each in given if type(each) is kind), None)

    def rows(given: Sequence[Any]) -> int:
        sizes = math.prod(first(given, list)) or 1
        return int(first(given, torch.Tensor).numel()) // sizes

    def channels(given: Sequence[Any]) -> int:
        tensor = first(given, torch.Tensor)
        return int(tensor.size(1)) if tensor.dim() > 1 else 1

    def rows_of_a_softmax(given: Sequence[Any]) -> int:
        tensor, along = given[0], first(given, int)
        if along is None or not tensor.dim():
            return 1
        return int(tensor.numel()) // (tensor.size(along) or 1)

    if rule.kind in _SOFTMAXES and base != "logsumexp":
        return rows_of_a_softmax
    counting = dict.fromkeys(_BY_ROWS, rows) | dict.fromkeys(_BY_CHANNELS, channels)
    return counting.get(base)


def _flop_formula(packet: Any) -> Callable[..., int] | None:
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(packet)
    # The registered one maps over trees of arguments, at ten times the cost.
    plain: Callable[..., int] | None = getattr(formula, "__wrapped__", formula)
    return plain


def operator_mode(look: Callable[[Any, Any, dict[str, Any]], Any]) -> type:
    """A mode that shows each operator to `look`, and whose first call imports nothing.

    torch keeps torch.compile out of every other mode's code. For that it imports
    torch._dynamo and sympy at the first call, which takes seconds; nothing is compiled
    for a simulated GPU.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorMode(TorchDispatchMode):
        """Not guarded from torch.compile."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            return look(func, args, kwargs or {})

    return OperatorMode
