"""Says what a kernel works out, by the names that libraries give their kernels."""

from __future__ import annotations

import re

from gpumagic.simulator.operators import Kind, rule_for

COMMUNICATION = "communication"
OTHER = "other"

# The first that fits counts: what is special stands before what is general, as the name
# of a general kernel holds that of the function it applies.
_PATTERNS = (
    # What Inductor writes; it names what it has fused.
    ("compiled", r"^triton_"),
    # Also its backward, which some libraries fuse with the optimizer.
    ("indexing and copies", r"split_embedding|embedding_bag|EmbeddingBag"),
    (
        "optimizer",
        r"""multi_tensor_apply | foreach | [Aa]dam(?!ard) | Adagrad | adagrad
        | Lamb(?!da) | LAMB | (?i:fused_?(sgd|lion|adafactor)) """,
    ),
    (
        "attention",
        r"""(?i:flash|fmha|mem_?eff|sdpa|attention|attn) | paged_att | _mha_ """,
    ),
    (
        "normalisation",
        r"""(?i:(batch|layer|group|instance|rms|weight)_?norm | batchnorm)
        | cudnn::bn_ | \bbn_[fb]w | (?i:gammabeta) | RowwiseMoments | [Ww]elford
        | \bln_(fwd|bwd) | BatchNorm | (?i:moments(Cuda)?Kernel)
        | ComputeInternalGradients | ComputeGradientFusedParams
        | ComputeFusedParams | layer_norm """,
    ),
    # Before convolution: data is turned for products, too.
    (
        "convolution",
        r"""(?i:convol|\bconv[\d_]|conv\dd|_conv_|depthwise|winograd|im2col|col2im)
        | scudnn | (?i:[wd]grad|fprop) | implicit_?gemm | (?i:miopen|igemm_)
        | nchw(ToNhwc|2nhwc) | nhwc(ToNchw|2nchw) | nchwAddPadding | fft2d_[rc]2[rc]
        | cudnn.*(compute|[Oo]ffsets) | flip_filter | pointwise_mult_and_sum_complex
        | \bgcn\w*conv | naive_conv | SubTensorOpWithScalar """,
    ),
    (
        "matrix product",
        r"""(?i:(?<!fb)gemm|gemv|cutlass|cublas|xmma|nvjet|wgmma|splitk|rocblas|hipblas)
        | Cijk_ | \bdot_kernel | dot_product | reduce_1Block_kernel
        | (?i:magma|marlin|_mm_|matmul) """,
    ),
    ("softmax", r"(?i:softmax)"),
    ("pooling", r"(?i:(max|avg|average|adaptive)_?\w*_?pool|pooling)"),
    ("sort", r"(?i:sort|topk|radix|bitonic|kth_?value|gatherTopK|mergesort)"),
    (
        "random numbers",
        r"""(?i:distribution_|dropout|philox|curand|rocrand|bernoulli|multinomial)
        | random | randperm """,
    ),
    (
        "indexing and copies",
        r"""(?i:copy|scatter|gather|embedding|transpose|permute|nonzero|unique|bucketize)
        | [Cc]at(Array|Kernel|_) | \b[Cc]at\b | (?<!with_)(?i:index(?!_t|Type|To|ed_op))
        | indices
        | (?i:jagged|segment_|_offsets|offsets_range|masked_(fill|select)|take_)
        | triu_tril | (?i:\broll_|flip_|\bpad|_pad_|im2win|slice|repeat|lengths)
        | keyed_|recat | (?i:flatten|unpack|pack_) """,
    ),
    (
        "reduction",
        r"""(?i:reduc|scan|cumsum|cumprod|argmax|argmin|histogram|norm_?two|sum_kernel)
        | (?i:nll_?loss|cross_?entropy|_loss) | DeviceSelect | DeviceRunLength """,
    ),
    (
        "elementwise",
        r"""(?i:element_?wise|pointwise|functor|fill|clamp|lerp|addcmul|convert|cast)
        | (?i:quantize|to_float|float_to|arange|eye|linspace|set_value|add_bias)
        | (?i:activation|gelu|silu|relu|sigmoid|scale|unrolled) | op_tensor | OpTensor
        | (?i:amp_|nonfinite|check_values) """,
    ),
)
_KINDS = tuple((kind, re.compile(words, re.VERBOSE)) for kind, words in _PATTERNS)


# A simulated kernel is called as its operator.
_OPERATOR = "aten::"
_OF_OPERATORS = {
    Kind.MATMUL: "matrix product",
    Kind.CONVOLUTION: "convolution",
    Kind.ATTENTION: "attention",
    Kind.ELEMENTWISE: "elementwise",
    Kind.CAST: "elementwise",
    Kind.FILL: "elementwise",
    Kind.REDUCTION: "reduction",
    Kind.SOFTMAX: "softmax",
    Kind.LOG_SOFTMAX: "softmax",
    Kind.NORM: "normalisation",
    Kind.NORM_BACKWARD: "normalisation",
    Kind.EMBEDDING: "indexing and copies",
    Kind.COPY: "indexing and copies",
    Kind.INDEXED_WRITE: "indexing and copies",
    Kind.OPTIMIZER: "optimizer",
}


def kind_of_kernel(name: str) -> str:
    """What a kernel that does not communicate works out, in a reader's words."""
    if name.startswith(_OPERATOR):
        kind = _OF_OPERATORS.get(rule_for(name).kind)
        if kind is not None:
            return kind
    return next((kind for kind, words in _KINDS if words.search(name)), OTHER)
