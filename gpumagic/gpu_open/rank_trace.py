"""Adds up what the events of one trace tell of its rank.

All sums are of whole nanoseconds; `RankTrace` says what each of them is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.devices.kineto import gives_work
from gpumagic.gpu_open import host
from gpumagic.gpu_open.host import at, by_thread, idle_of, lanes_of, outermost
from gpumagic.gpu_open.records import Collective, KernelSum, RankTrace, Step
from gpumagic.report.collectives import MOST_GAPS
from gpumagic.report.events import (
    SpanKind,
    bridged,
    length,
    length_within,
    merged,
    within,
    without,
)
from gpumagic.report.units import listed
from gpumagic.simulator.operators import Kind, rule_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_open.host import Phases
    from gpumagic.gpu_open.trace_file import HostEvent, TraceEvents, Work

_Intervals: TypeAlias = "list[tuple[int, int]]"


def rank_of(events: TraceEvents) -> RankTrace:
    """What a trace tells of its rank."""
    work = events.work
    compute, communication, copy = _by_use(work)
    busy = merged([*compute, *communication, *copy])
    lists = [*filter(None, (events.operators, events.calls, events.marks))]
    host_ns = min((rows[0][0] for rows in lists), default=0)
    host_end_ns = max((each[1] for rows in lists for each in rows), default=0)
    zero_ns, end_ns = (busy[0][0], busy[-1][1]) if busy else (host_ns, host_end_ns)
    threads = host.Threads(events, end_ns - zero_ns)
    phases = host.Phases(events)
    trace = RankTrace(
        events.file,
        events.rank,
        events.world_size,
        simulated=events.simulated,
        device_name=_device_name(events),
        launches=_launches(threads),
        lanes=lanes_of(events, threads, zero_ns),
        steps=tuple(_steps(events.marks, busy)),
        phases=tuple(_phases(events, phases)),
        host_length_s=(host_end_ns - host_ns) / 1e9,
        zero_ns=zero_ns * events.since_1970,
    )
    if not busy:
        return replace(trace, collectives=on_the_host(events, phases, zero_ns))
    either_ns = length(merged([*compute, *communication]))
    hidden_ns = length(compute) + length(communication) - either_ns
    length_ns = end_ns - zero_ns
    return replace(
        trace,
        length_s=length_ns / 1e9,
        busy_s=length(busy) / 1e9,
        compute_s=length(compute) / 1e9,
        communication_s=length(communication) / 1e9,
        hidden_communication_s=hidden_ns / 1e9,
        copy_s=length(copy) / 1e9,
        idle_s=(length_ns - length(busy)) / 1e9,
        kernels=_kernels(work),
        idle=idle_of(work, threads),
        collectives=collectives_of(events, phases, compute, zero_ns),
    )


def _by_use(work: Iterable[Work]) -> Iterator[_Intervals]:
    """When a kernel computed, one communicated, and a copy or fill ran: apart each."""
    times: tuple[_Intervals, ...] = ([], [], [])
    for _, kind, communicates, start, end, *_ in work:
        use = int(communicates) if kind is SpanKind.KERNEL else 2
        times[use].append((start, end))
    return map(merged, times)


def _kernels(work: Iterable[Work]) -> tuple[KernelSum, ...]:
    took_ns: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for name, kind, communicates, start, end, *_ in work:
        if kind is SpanKind.KERNEL:
            took_ns[name, communicates].append(end - start)
    sums = (
        KernelSum(
            name,
            "communication" if communicates else kind_of_kernel(name),
            len(each),
            sum(each) / 1e9,
        )
        for (name, communicates), each in took_ns.items()
    )
    return tuple(sorted(sums, key=lambda each: (-each.total_s, each.name)))


def _device_name(events: TraceEvents) -> str:
    """What the devices are called that worked; "" where none is told."""
    told = events.device_names
    names = {told[work.device] for work in events.work if work.device in told}
    # A process may number its devices otherwise than the file lists them.
    return listed(sorted(names or set(told.values())))


def _launches(threads: host.Threads) -> int | None:
    """How often the device was given something; None where no call was recorded.

    The driver's call within the runtime's is the same once more.
    """
    outer = Counter(name for its in threads.calls.values() for _, _, name in its)
    return sum(n * gives_work(name) for name, n in outer.items()) if outer else None


def _steps(marks: Iterable[HostEvent], busy: _Intervals) -> Iterator[Step]:
    for start_ns, end_ns, name, _ in marks:
        number = name.removeprefix(host.STEP)
        if number != name and number.isdecimal() and end_ns > start_ns:
            busy_ns = length_within(busy, start_ns, end_ns)
            yield Step(int(number), (end_ns - start_ns) / 1e9, busy_ns / 1e9)


def _phases(events: TraceEvents, phases: host.Phases) -> Iterator[tuple[str, float]]:
    """What was launched in each phase, but not what waits for other ranks there."""
    worked: dict[str, _Intervals] = defaultdict(list)
    during = cache(phases.during)
    for work in events.work:
        if work.call and not work.communicates:
            worked[during(work.call)].append((work.start_ns, work.end_ns))
    for phase in (host.FORWARD, host.BACKWARD, host.UPDATE):
        if phase in worked:
            yield phase, length(merged(worked[phase])) / 1e9
    if phases.input:
        yield "input", length(phases.input) / 1e9


# ------------------------------------------------------------------ kinds of kernels

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
_OF_OPERATORS: dict[Kind | None, str] = {
    Kind.MATMUL: "matrix product",
    Kind.CONVOLUTION: "convolution",
    Kind.ATTENTION: "attention",
    Kind.REDUCTION: "reduction",
    Kind.OPTIMIZER: "optimizer",
    **dict.fromkeys((Kind.ELEMENTWISE, Kind.CAST, Kind.FILL), "elementwise"),
    **dict.fromkeys((Kind.SOFTMAX, Kind.LOG_SOFTMAX), "softmax"),
    **dict.fromkeys((Kind.NORM, Kind.NORM_BACKWARD), "normalisation"),
    **dict.fromkeys(
        (Kind.EMBEDDING, Kind.COPY, Kind.INDEXED_WRITE), "indexing and copies"
    ),
}


def kind_of_kernel(name: str) -> str:
    """What a kernel that does not communicate works out, in a reader's words."""
    operator = rule_for(name).kind if name.startswith("aten::") else None
    kind = _OF_OPERATORS.get(operator)
    return kind or next((kind for kind, words in _KINDS if words.search(name)), "other")


# ----------------------------------------------------------- what it did with others


# As libraries spell them without signs and capitals; what holds another stands first.
_NAMES = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"),
    *("send_recv", "barrier", "gather", "scatter", "reduce", "send", "recv"),
)
_MARK = re.compile(r"(nccl|rccl|xccl|hccl|ccl|ucc|gloo|mpi):\w")
# Of these libraries the mark lasts from the call to the end: they work on the host.
_ON_HOST = ("gloo:", "mpi:")
_GROUP_NAMES = ("Name", "Description")
# What the profiler calls the types of what is sent, and their bytes.
_BYTES = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("short", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long", "double", "complexfloat"), 8),
    "complexdouble": 16,
}


def collectives_of(
    events: TraceEvents,
    phases: Phases,
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> tuple[Collective, ...]:
    """What a rank did together with others, in order of beginning."""
    works = [work for work in events.work if work.communicates]
    marks = by_thread(each for each in events.marks if _MARK.match(each.name))
    marked = {thread: outermost(its) for thread, its in marks.items()}
    numbers = _numbers(works)
    beside = _beside(works, computing, zero_ns)
    found = []
    for work, number, its in zip(works, numbers, beside, strict=True):
        told, call = work.args, work.call
        mark = call and at(marked.get(call.thread, []), call.start_ns)
        # As the file tells, or torch's mark round the call, or the kernel's own name.
        names = [str(e) for e in (told.get("Collective name"), mark, work.name) if e]
        found.append(
            Collective(
                next(filter(None, map(_known_name, names)), names[0]),
                _group(work),
                *number,
                **its,
                nbytes=_sent_bytes(told),
                during=phases.during(call),
                members=str(told.get("Process Group Ranks", "")),
            )
        )
    return tuple(found)


def on_the_host(
    events: TraceEvents, phases: Phases, zero_ns: int
) -> tuple[Collective, ...]:
    """The same of gloo and MPI, which move data without a device."""
    marks = [each for each in events.marks if each.name.startswith(_ON_HOST)]
    calls = [each for each in events.operators if each.name.startswith("c10d::")]
    computing = without(
        merged(each[:2] for each in events.operators),
        merged(each[:2] for each in calls),
    )
    found = []
    beside = _beside(marks, computing, zero_ns)
    for number, (mark, its) in enumerate(zip(marks, beside, strict=True)):
        place = bisect_right(calls, mark[0], key=lambda call: call[0])
        name = _known_name(mark.name) or mark.name
        during = phases.during(*calls[:place][-1:])
        found.append(Collective(name, "", number, False, **its, during=during))
    return tuple(found)


def _beside(
    communicating: Sequence[Work | HostEvent],
    computing: Sequence[tuple[int, int]],
    zero_ns: int,
) -> Iterator[dict[str, Any]]:
    """When each ran, for how long something was computed meanwhile, and when."""
    exact = [within(computing, each.start_ns, each.end_ns) for each in communicating]
    bridges = bridged(exact, MOST_GAPS)
    for each, spans, its in zip(communicating, exact, bridges, strict=True):
        yield {
            "start_s": (each.start_ns - zero_ns) / 1e9,
            "end_s": (each.end_ns - zero_ns) / 1e9,
            "hidden_s": length(spans) / 1e9,
            "hidden": tuple(((a - zero_ns) / 1e9, (b - zero_ns) / 1e9) for a, b in its),
        }


def _numbers(works: Sequence[Work]) -> list[tuple[int, bool]]:
    """The number of each, and whether it is its group's own."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, work in enumerate(works):
        groups[_group(work)].append(place)
    numbers: dict[int, tuple[int, bool]] = {}
    for places in groups.values():
        told = {place: works[place].args.get("Seq") for place in places}
        own = {place: each for place, each in told.items() if isinstance(each, int)}
        if len(own) == len(places):
            numbers |= {place: (number, True) for place, number in own.items()}
            continue
        # Ranks call in the same order; streams of several communicators need not come
        # to it in that order.
        called = {place: call[0] for place in places if (call := works[place].call)}
        if len(called) == len(places):
            places.sort(key=lambda place: called[place])
        numbers |= {place: (count, False) for count, place in enumerate(places)}
    return [numbers[place] for place in range(len(works))]


def _group(work: Work) -> str:
    names = (work.args.get(f"Process Group {what}", "") for what in _GROUP_NAMES)
    return next(filter(None, map(str, names)), "")


def _sent_bytes(told: Mapping[str, Any]) -> int | None:
    """How much this rank put into it."""
    count = told.get("In msg nelems")
    size = _BYTES.get(str(told.get("dtype")).lower())
    return count * size if size and type(count) is int else None


def _known_name(name: str) -> str | None:
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((known for known in _NAMES if known.replace("_", "") in letters), None)
