"""What one torch operator costs: the rules, and which operators go by each.

A rule says in which proportion an operator moves bytes and computes; the rates are
the device's. The bytes given to a rule count every operand that is read and every
result that is written once each. `NAMES` says which operators go by which rule; what it
does not hold is costed by its bytes and marked as unmodelled.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from gpumagic.simulator.costs import HostCosts

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
    CAST = "cast"
    FILL = "fill"
    INDEXED_WRITE = "indexed write"
    REARRANGEMENT = "rearrangement"  # sort, scan, scatter: by bytes, four times
    METADATA = "metadata"  # no kernel at all
    UNMODELLED = "unmodelled"


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How an operator uses the device and the host; compared by identity."""

    kind: Kind  # what it does
    # however little there is to do: so many times the shortest elementwise kernel of
    # its device, and so many microseconds besides
    least: float = 1.0
    more_us: float = 0.0
    # how often each byte of operands and results crosses the memory bus
    passes: float = 1.0
    # the share of the data sheet's bandwidth it reaches; None is the share that a
    # plain copy reaches on the device
    memory_efficiency: float | None = None
    # whether computing may take longer than moving the bytes; else the floating-point
    # operations need not be counted
    uses_flops: bool = False
    tiled: bool = False  # whether it is a product of matrices that is cut into tiles
    # the share of the peak it reaches in half types; None is the share that a matmul
    # reaches
    half_efficiency: float | None = None
    compute_factor: float = 1.0  # what is left of the computing rate beside that
    gathers: bool = False  # of its source it reads only as many bytes as it writes
    # of its target it writes only as many bytes as it is given beside it
    scatters: bool = False
    fills: bool = False  # whether it writes only, also where it works in place
    # what the call costs the host from Python, without the allocator
    host_ns: int = HostCosts.eager_elementwise_ns
    library: str | None = None  # what its first use starts: "cublas", "cudnn" or None
    waits: bool = False  # whether CUDA's implementation waits for the device
    # whether timings stand behind the rule, or at least a plain reason; if not, the
    # time is to be shown as unknown beyond its order
    modelled: bool = True
    harder: Rule | None = None  # the rule for operands of an awkward shape

    @property
    def launches(self) -> bool:
        """Whether there is a kernel."""
        return self.kind is not Kind.METADATA

    def moved_bytes(self, read_bytes: int, written_bytes: int) -> int:
        """The bytes to cost, from those of all operands and of all results."""
        if self.gathers:
            return 2 * written_bytes
        if self.fills:
            return written_bytes
        if self.scatters and read_bytes >= written_bytes:
            return 2 * (read_bytes - written_bytes)
        return read_bytes + written_bytes


@functools.lru_cache(maxsize=4096)  # more than torch has operators
def rule_for(op_name: str) -> Rule:
    """The rule of an operator named as torch names it."""
    namespace, separator, rest = op_name.rpartition("::")
    if separator and namespace != "aten":
        return UNKNOWN
    name, _, overload = rest.partition(".")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]  # it works in place
    name = name.removeprefix("_foreach_")
    found = _BY_NAME.get(f"{name}.{overload}") or _BY_NAME.get(name)
    patterns = (rule for word, rule in _BY_PATTERN if fnmatchcase(name, word))
    return found or next(patterns, UNKNOWN)


def convolution_rule(rule: Rule, channels: int, filters: int) -> Rule:
    """The rule for a convolution; few channels leave most of the tiles empty."""
    if channels < _FEW_CHANNELS or filters < _FEW_FILTERS:
        return rule.harder or rule
    return rule


def softmax_rule(rule: Rule, row: int, item_bytes: int) -> Rule:
    """The rule for a softmax over rows of so many items.

    The longest rows are read three times. `log_softmax` gives up keeping a row
    earlier, as timings of the cross entropy show.
    """
    kept = rule.kind is Kind.SOFTMAX and row * item_bytes <= _SHARED_MEMORY_BYTES
    if kept or row <= _SHORT_ROW:
        return rule
    return rule.harder or rule


def strided_rule(rule: Rule) -> Rule:
    """The rule where an operand does not lie in one piece."""
    return rule.harder or rule


def dtype_word(dtype: str) -> str:
    """The word by which a device's rates go, for a torch type."""
    return _WORDS.get(dtype.removeprefix("torch."), "fp32")


# Products fill a pipeline before they begin and wait for it at their end (recorded on
# an A100: 8 to 10 us where 2 to 5 are for computing); reductions meet in a second round
# (5 us for 4096 numbers, where an elementwise kernel takes 3; on an H200 2 to 3, where
# it takes 1); indices are read before what they point to (5 to 6 us, and 3 to 5).
_SECOND_ROUND_US = 2.0
_BY_ROWS_US = 1.0  # each block has a round of its own; an estimate
# An operand with gaps, or in another order: recorded, 285 us for 367 MB in another
# order, where a copy in order takes 212. Two operands of different order, as in
# m + m.t(), cost what two of the same order do.
_STRIDED = 1.35


def _with_gaps(kind: Kind, least: float = 1.0) -> Rule:
    return Rule(kind, least=least, harder=Rule(kind, least=least, passes=_STRIDED))


def _by_rows(kind: Kind) -> Rule:
    rule = Rule(kind, more_us=_BY_ROWS_US)
    return replace(rule, harder=replace(rule, passes=2.0))


COPY = _with_gaps(Kind.COPY)
CAST = _with_gaps(Kind.CAST, 2.0)  # looks up both types for each number (6 us)
UNKNOWN = Rule(Kind.UNMODELLED, modelled=False)
_REDUCTION = Rule(Kind.REDUCTION, more_us=_SECOND_ROUND_US)
_PRODUCT = Rule(
    Kind.MATMUL,
    more_us=_SECOND_ROUND_US,
    uses_flops=True,
    host_ns=HostCosts.eager_matmul_ns,
    library="cublas",
)
_CONVOLUTION = replace(
    _PRODUCT, kind=Kind.CONVOLUTION, half_efficiency=0.65, library="cudnn"
)
_NORM = Rule(Kind.NORM, more_us=_BY_ROWS_US, memory_efficiency=0.55)
# Several kernels; 9.5 us for a search.
_REARRANGEMENT = Rule(Kind.REARRANGEMENT, least=3.0, passes=4.0, modelled=False)

_RULES = {
    "number": replace(COPY, waits=True, harder=None),
    "answer": replace(_REDUCTION, waits=True),
    "counted": replace(_REARRANGEMENT, waits=True),
    "on the host": replace(UNKNOWN, waits=True),
    "metadata": Rule(Kind.METADATA, host_ns=HostCosts.view_ns),
    "matmul": replace(_PRODUCT, tiled=True),
    "product": replace(_PRODUCT, modelled=False),
    "convolution": replace(
        _CONVOLUTION,
        tiled=True,
        # Both ways of spending time grow 2.5 times, whatever the tiles.
        harder=replace(_CONVOLUTION, passes=2.5, compute_factor=0.4),
    ),
    "slow convolution": replace(_CONVOLUTION, modelled=False),
    "recurrent": replace(_PRODUCT, library="cudnn", modelled=False),
    "attention": replace(
        _PRODUCT, kind=Kind.ATTENTION, half_efficiency=0.55, library=None
    ),
    "softmax": _by_rows(Kind.SOFTMAX),
    "log softmax": _by_rows(Kind.LOG_SOFTMAX),
    "norm": _NORM,
    # Four passes over the activations, where operands and results are three of them.
    "norm backward": replace(
        _NORM, kind=Kind.NORM_BACKWARD, more_us=_SECOND_ROUND_US, passes=4 / 3
    ),
    "embedding": Rule(
        Kind.EMBEDDING, more_us=_SECOND_ROUND_US, memory_efficiency=0.31, gathers=True
    ),
    "indexed write": Rule(
        Kind.INDEXED_WRITE, more_us=_SECOND_ROUND_US, scatters=True, modelled=False
    ),
    "optimizer": Rule(Kind.OPTIMIZER),
    "rearrangement": _REARRANGEMENT,
    "copy": COPY,
    "fill": Rule(Kind.FILL, fills=True),
    "elementwise": _with_gaps(Kind.ELEMENTWISE),
    "reduction": _REDUCTION,
}

# A rule, and the operators that go by it, without namespace, without the underscore of
# in-place operators and without `_foreach_`. A word with a dot names one overload; a
# star stands for anything.
NAMES: Final = """
# one number is copied to the host
number: _local_scalar_dense
# the answer is a number of the host's
answer: equal _linalg_check_errors item is_nonzero allclose
# the size of the result is known to the device only; histc seeks its range
counted: nonzero masked_select _unique _unique2 unique_dim unique_dim_consecutive
  unique_consecutive bincount histc mode repeat_interleave.Tensor
  repeat_interleave.self_Tensor
# solved in part on the host, or its sizes are read there
on the host: linalg_eig linalg_eigvals linalg_lstsq geqrf _ctc_loss*
# views, and memory without contents: nothing runs on the device
metadata: alias as_strided detach diagonal expand permute select slice split
  split_with_sizes squeeze t transpose unbind unsqueeze view view_as_complex
  view_as_real unfold unsafe_split* unsafe_split_with_sizes _unsafe_view
  _reshape_alias _conj _neg_view lift lift_fresh _lazy_clone _fw_primal _make_dual
  empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize
  resize_as _resize_output set record_stream is_pinned is_same_size is_set_to
  _has_same_storage_numel _assert_tensor_metadata sym_constrain_range*
  _functional_sym_constrain_range* _fused_sdp_choice _use_cudnn_ctc_loss _pin_memory
  _make_dep_token sparse_dim dense_dim _dimI _dimV _nnz is_coalesced _coalesced
  indices values crow_indices col_indices ccol_indices row_indices _indices _values
  q_* qscheme _nested_get_*
# timed in over a hundred sizes; vectors move bytes only
matmul: mm addmm bmm baddbmm _scaled_mm mv addmv dot vdot
# torch has no formula for their floating-point operations
product: addbmm _addmm_activation linear linear_backward matmul_backward _int_mm
  _grouped_mm _scaled_mm_v2 _scaled_grouped_mm _scaled_grouped_mm_v2
# timed with cuDNN 7 and on three cards from torch
convolution: convolution convolution_backward convolution_overrideable
  convolution_backward_overrideable _convolution cudnn_convolution*
# kernels of their own, never timed
slow convolution: _slow_conv2d_* slow_conv* conv_depthwise3d _conv_depthwise2d
  conv_tbc
# many steps in one call
recurrent: _cudnn_rnn _cudnn_rnn_backward
# from the charts of flash attention on an A100; an H100 gives .27 to .63
attention: _scaled_dot_product_flash_attention*
  _scaled_dot_product_efficient_attention* _scaled_dot_product_cudnn_attention*
  _flash_attention_* _scaled_dot_product_fused_attention* _efficient_attention_*
  _cudnn_attention_*
# timed on three cards with short and with very long rows
softmax: softmax _softmax _softmax_backward_data _masked_softmax _safe_softmax
  _masked_softmax_backward
# timed as a part of the cross entropy
log softmax: log_softmax _log_softmax logsumexp _log_softmax_backward_data
# layer norm is timed on two cards; the others are taken to be like it
norm: native_layer_norm _fused_rms_norm native_batch_norm cudnn_batch_norm
  native_group_norm _native_batch_norm_legit* _batch_norm_with_update*
  _batch_norm_no_update batch_norm_stats batch_norm_elemt batch_norm_gather_stats*
  batch_norm_update_stats _weight_norm_interface
# likewise
norm backward: native_layer_norm_backward _fused_rms_norm_backward batch_norm_backward
  native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward_*
  native_group_norm_backward _weight_norm_interface_backward
# rows in any order, timed for the embedding on an A100
embedding: embedding index_select gather take index _unsafe_index _unsafe_masked_index
# every moment and parameter once: 28 bytes a parameter for Adam in fp32
optimizer: _fused_adam _fused_adamw _fused_sgd _fused_adagrad
  _amp_foreach_non_finite_check_and_unscale _amp_update_scale
# several dependent rounds over the data: four times the bytes at a guess
rearrangement: sort argsort topk kthvalue median nanmedian cumsum cumprod cummax
  cummin _cummax_helper _cummin_helper logcumsumexp _logcumsumexp masked_scatter*
  embedding_dense_backward embedding_renorm searchsorted* bucketize* isin
  unfold_backward multinomial randperm _embedding_bag* segment_reduce
  _segment_reduce_backward max_unpool* nonzero_static* *max_pool2d_backward
  *max_pool2d_with_indices_backward *max_pool3d_with_indices_backward
  adaptive_max_pool2d_backward adaptive_max_pool3d_backward histogram*
# as many places as there are indices: three are timed, none as it grows
indexed write: index_put _index_put_impl _unsafe_index_put put scatter scatter_add
  _unsafe_masked_index_put_accumulate scatter_reduce* index_add index_copy
  index_reduce index_fill
# each byte read once and written once, or as good as
copy: copy clone _to_copy _copy_from _copy_from_and_resize contiguous cat _chunk_cat
  stack _stack repeat constant_pad_nd roll flip rot90 *_copy block_diag
  select_backward slice_backward diagonal_backward *_scatter diag_embed tril triu
  pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im reflection_pad*
  replication_pad* repeat_interleave
# written only: constants, ranges and random numbers
fill: fill zero zeros zeros_like ones ones_like full full_like new_full new_ones
  new_zeros scalar_tensor _efficientzerotensor eye arange range linspace logspace
  tril_indices triu_indices *_window fft_fftfreq fft_rfftfreq rand rand_like randn
  randn_like randint randint_like normal normal_functional uniform random bernoulli
  exponential geometric cauchy log_normal _philox_normal _philox_uniform
# of two tensors, where the same name also reduces one
elementwise: max.other max.out min.other min.out
# read once, written little
reduction: sum nansum mean prod std std_mean var var_mean max min amax amin aminmax
  _aminmax argmax argmin all any norm linalg_vector_norm linalg__powsum powsum
  count_nonzero trace dist _is_all_true _is_any_true _assert_async avg_pool*
  adaptive_avg_pool* _adaptive_avg_pool* max_pool2d_with_indices
  max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d nll_loss_forward
  nll_loss2d_forward nll_loss_backward nll_loss2d_backward mse_loss smooth_l1_loss
  huber_loss binary_cross_entropy soft_margin_loss hash_tensor
# every element once: what torch tags as pointwise, its gradients and its like
elementwise: abs acos acosh add addcdiv addcmul addr angle asin asinh atan atan2 atanh
  bitwise_* ceil celu clamp clamp_max clamp_min clip complex polar conj_physical
  _conj_physical copysign cos cosh deg2rad digamma div elu eq erf erfc erfinv exp exp2
  expm1 float_power floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu gt
  hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isfinite
  isinf isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma log log10 log1p
  log2 log_sigmoid_forward logaddexp logaddexp2 logical_* logit lt masked_fill maximum
  minimum mish mul mvlgamma nan_to_num ne neg nextafter polygamma positive pow
  _prelu_kernel rad2deg reciprocal relu relu6 remainder round rrelu rrelu_with_noise
  rrelu_with_noise_functional rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc
  sinh softplus softshrink special_* sqrt square sub tan tanh threshold true_divide
  trunc where xlogy __ilshift__ __irshift__ __lshift__ __rshift__ __and__ __iand__
  __or__ __ior__ __xor__ __ixor__ native_dropout _fused_dropout _masked_scale
  _add_relu binary_cross_entropy_with_logits linalg_cross _compute_linear_combination
  glu_jvp glu_backward_jvp _thnn_fused_* upsample_* _upsample_* grid_sampler_*
  affine_grid_generator fake_quantize_* _fake_quantize_* gelu_backward glu_backward
  elu_backward hardshrink_backward hardsigmoid_backward hardswish_backward
  hardtanh_backward leaky_relu_backward log_sigmoid_backward logit_backward
  mish_backward native_dropout_backward _prelu_kernel_backward
  rrelu_with_noise_backward sigmoid_backward silu_backward softplus_backward
  softshrink_backward tanh_backward threshold_backward mse_loss_backward
  smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
  soft_margin_loss_backward
"""


def _read() -> tuple[dict[str, Rule], list[tuple[str, Rule]]]:
    """The rules by name, and by pattern, of which the first that fits counts."""
    by_name: dict[str, Rule] = {}
    patterns: list[tuple[str, Rule]] = []
    rule = UNKNOWN
    for line in NAMES.splitlines():
        if line.startswith("#"):
            continue
        key, _, words = line.rpartition(": ")
        rule = _RULES.get(key, rule)
        for word in words.split():
            if "*" in word:
                patterns.append((word, rule))
            by_name.setdefault(word, rule)
    return by_name, patterns


_BY_NAME, _BY_PATTERN = _read()
