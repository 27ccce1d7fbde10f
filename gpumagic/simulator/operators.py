"""What one torch operator costs: the rule by its name, and its variants by shape.

A rule says in which proportion an operator moves bytes and computes; the rates are
the device's. The bytes given to a rule count every operand that is read and every
result that is written once each. `operator_table` holds the rules with the names
they belong to; here is how a name finds its rule. Resolve a name once and keep the
rule: the search takes some microseconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from gpumagic.simulator.costs import HostCosts

HALF_TYPES: Final = frozenset({"fp16", "bf16"})

_WORDS: Final = {
    "float64": "fp64",
    "complex128": "fp64",
    "float32": "fp32",
    "complex64": "fp32",
    "float16": "fp16",
    "complex32": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float8_e8m0fnu": "fp8",
    "int8": "int8",
    "uint8": "int8",
    "bool": "int8",
}
# Shared memory that a softmax can keep a row in; longer rows are read again.
_SHARED_MEMORY_BYTES: Final = 48 * 1024
_SHORT_ROW: Final = 1024
_FEW_CHANNELS: Final = 16
_FEW_FILTERS: Final = 32


class Kind(enum.Enum):
    """What an operator does, as far as its cost is concerned."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log softmax"
    NORM = "norm"
    NORM_BACKWARD = "norm backward"
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    FILL = "fill"
    REARRANGEMENT = "rearrangement"  # sort, scan, scatter: by bytes, four times
    METADATA = "metadata"  # no kernel at all
    UNMODELLED = "unmodelled"


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How an operator uses the device and the host; compared by identity.

    Attributes:
        kind: What it does.
        passes: How often each byte of operands and results crosses the memory bus.
        memory_efficiency: The share of the data sheet's bandwidth it reaches; None is
            the share that a plain copy reaches on the device.
        uses_flops: Whether computing may take longer than moving the bytes; else the
            floating-point operations need not be counted.
        half_efficiency: The share of the peak it reaches in half types; None is the
            share that a matmul reaches.
        compute_factor: What is left of the computing rate beside that.
        gathers: Of its source it reads only as many bytes as it writes.
        host_ns: What the call costs the host from Python, without the allocator.
        library: What its first use starts: "cublas", "cudnn" or None.
        waits: Whether CUDA's implementation waits for the device.
        modelled: Whether timings stand behind the rule, or at least a plain reason;
            if not, the time is to be shown as unknown beyond its order.
        harder: The rule for operands of an awkward shape.
    """

    kind: Kind
    passes: float = 1.0
    memory_efficiency: float | None = None
    uses_flops: bool = False
    half_efficiency: float | None = None
    compute_factor: float = 1.0
    gathers: bool = False
    host_ns: int = HostCosts.eager_elementwise_ns
    library: str | None = None
    waits: bool = False
    modelled: bool = True
    harder: Rule | None = None

    @property
    def launches(self) -> bool:
        """Whether there is a kernel."""
        return self.kind is not Kind.METADATA

    def moved_bytes(self, read_bytes: int, written_bytes: int) -> int:
        """The bytes to cost, from those of all operands and of all results."""
        return 2 * written_bytes if self.gathers else read_bytes + written_bytes


def rule_for(op_name: str) -> Rule:
    """The rule of an operator named as torch names it.

    Args:
        op_name: Such as "aten::addmm.out" or "aten::_foreach_add_.List".
    """
    from gpumagic.simulator.operator_table import TABLE, UNKNOWN

    namespace, separator, rest = op_name.rpartition("::")
    if separator and namespace != "aten":
        return UNKNOWN
    name, _, overload = rest.partition(".")
    name = _functional(name).removeprefix("_foreach_")
    full = f"{name}.{overload}" if overload else name
    for entry in TABLE:
        if entry.holds(full) or entry.holds(name):
            return entry.rule
    return UNKNOWN


def matmul_rule(rule: Rule, dtype: str, columns: int, depth: int) -> Rule:
    """The rule for a matmul of these sizes; tensor cores want multiples of eight."""
    if rule.harder is not None and (columns | depth) & 7 and dtype in HALF_TYPES:
        return rule.harder
    return rule


def convolution_rule(rule: Rule, channels: int, filters: int) -> Rule:
    """The rule for a convolution; few channels leave most of the tiles empty."""
    few = channels < _FEW_CHANNELS or filters < _FEW_FILTERS
    return rule.harder if rule.harder is not None and few else rule


def softmax_rule(rule: Rule, row: int, item_bytes: int) -> Rule:
    """The rule for a softmax over rows of so many items.

    The longest rows are read three times. `log_softmax` gives up keeping a row
    earlier, as timings of the cross entropy show.
    """
    if rule.harder is None or row <= _SHORT_ROW:
        return rule
    kept = rule.kind is Kind.SOFTMAX and row * item_bytes <= _SHARED_MEMORY_BYTES
    return rule if kept else rule.harder


def strided_rule(rule: Rule) -> Rule:
    """The rule where an operand does not lie in one piece."""
    return rule.harder or rule


def dtype_word(dtype: str, *, tf32: bool) -> str:
    """The word by which a device's rates go, for a torch type.

    Args:
        dtype: As torch writes it, with or without "torch.".
        tf32: Whether fp32 may be rounded to TF32 here: by default for cuDNN's
            convolutions, and not for matmuls.
    """
    word = _WORDS.get(dtype.removeprefix("torch."), "fp32")
    return "tf32" if tf32 and word == "fp32" else word


def _functional(name: str) -> str:
    """The name without the underscore of an operator that works in place."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
