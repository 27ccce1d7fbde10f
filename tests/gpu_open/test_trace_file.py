"""Reading traces into rows: of each version and device, cut, damaged, and empty."""

from __future__ import annotations

import gc
import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.devices.kineto import kind_of_call
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import entries, files, trace_file
from gpumagic.report.events import SpanKind, Trace, TraceSpan
from gpumagic.simulator.tracing import as_chrome_trace

BASE_NS = 1_735_632_360_000_000_000


def span(cat, name, ts, dur, tid=100, *, pid=50, **args):  # noqa: PLR0913
    """An entry with a duration, in microseconds."""
    entry = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return entry | {"ts": ts, "dur": dur, "args": args}


def kernel(  # noqa: PLR0913
    name, ts, dur, *, cat="kernel", device=0, stream=7, **args
):
    """Work of a device."""
    more = {"device": device, "stream": stream, **args}
    return span(cat, name, ts, dur, tid=stream, pid=device, **more)


@pytest.fixture
def read(tmp_path):
    """Reads entries, or text, or bytes, as a file."""

    def read(content, name="trace.json", **beside):
        if isinstance(content, list):
            content = json.dumps({**beside, "traceEvents": content})
        if isinstance(content, str):
            content = content.encode()
        path = tmp_path / name
        path.write_bytes(content)
        return trace_file.read(path)

    return read


# ------------------------------------------------------------- versions and devices

VERSIONS = {
    "torch 1.9": {
        "op": "Operator",
        "call": "Runtime",
        "kernel": "Kernel",
        "copy": "Memcpy",
        "fill": "Memset",
        "mark": "Operator",
        "arrow": "async_gpu",
    },
    "torch 1.12": {"arrow": "async_cpu_to_gpu"},
    "torch 2.13": {"call": "cuda_driver"},
    "ROCm": {"call": "hip", "launch": "hipLaunchKernel"},
    "XPU": {"call": "xpu_runtime", "launch": "urEnqueueKernelLaunch"},
    "privateuse1": {"call": "privateuse1_runtime", "launch": "aclnnLaunch"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_and_device_gives_the_same_rows(read, version):
    """However the categories are spelled."""
    cats = {
        "op": "cpu_op",
        "call": "cuda_runtime",
        "kernel": "kernel",
        "copy": "gpu_memcpy",
        "fill": "gpu_memset",
        "mark": "user_annotation",
        "arrow": "ac2g",
        "launch": "cudaLaunchKernel",
    } | VERSIONS[version]
    arrow = {"ph": "s", "id": 3, "pid": 50, "tid": 100, "ts": 12, "cat": cats["arrow"]}
    events = read(
        [
            span(cats["mark"], "ProfilerStep#4", 5, 90, tid=100),
            span(cats["op"], "aten::mm", 10, 9, **{"Sequence number": 6}),
            span(cats["call"], cats["launch"], 12, 4, correlation=3),
            arrow,
            kernel("gemm", 20, 30, cat=cats["kernel"], correlation=3),
            kernel("Memcpy HtoD", 55, 2, cat=cats["copy"], bytes=64, correlation=4),
            kernel("Memset (Device)", 60, 1, cat=cats["fill"], stream=9),
        ]
    )
    assert [(row.name, row.kind.value, row.stream) for row in events.work] == [
        ("gemm", "kernel", 7),
        ("Memcpy HtoD", "copy", 7),
        ("Memset (Device)", "fill", 9),
    ]
    assert (events.work[0].start_ns, events.work[0].end_ns) == (20_000, 50_000)
    assert [row.nbytes for row in events.work] == [None, 64, None]
    assert [row.call for row in events.work] == [0, None, None]
    assert [row.name for row in events.marks] == ["ProfilerStep#4"]
    assert [(row.name, row.sequence) for row in events.operators] == [("aten::mm", 6)]
    assert [row.name for row in events.calls] == [cats["launch"]]
    assert (events.file.events, events.file.missing, events.file.unknown) == (
        7,
        None,
        (),
    )
    assert events.main_thread == 100


def test_mtia_tells_copies_and_waits_by_their_names(read):
    """What was recorded or waited for is no work."""
    names = ("fc-dtype_Float", "dma_request", "event_wait")
    events = read(
        [kernel(name, 1, 2, cat="mtia_ccp_events", size=16) for name in names]
    )
    rows = [(row.name, row.kind, row.nbytes) for row in events.work]
    assert rows == [
        ("fc-dtype_Float", SpanKind.KERNEL, None),
        ("dma_request", SpanKind.COPY, 16),
    ]


def test_hip_tells_the_size_of_a_copy_with_its_call(read):
    """As text."""
    events = read(
        [
            span(
                "cuda_runtime", "hipMemcpyWithStream", 1, 2, correlation=9, size="2560"
            ),
            kernel("Memcpy HtoD", 2, 1, cat="gpu_memcpy", correlation=9),
        ]
    )
    assert events.work[0].nbytes == 2560


@pytest.mark.parametrize("base_first", [True, False])
def test_times_are_read_to_the_nanosecond(read, base_first):
    """Counted from a moment that stands before or after the entries, or from 1970."""
    times = ["4450903115365.957", "4450903115365.958", "4503599627370.497"]
    entry = (
        '{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": %s, "dur": 0.001}'
    )
    listed = f'"traceEvents": [{", ".join(entry % time for time in times)}]'
    base = f'"baseTimeNanoseconds": {BASE_NS}'
    text = f"{base}, {listed}" if base_first else f"{listed}, {base}"
    events = read(f"{{{text}}}")
    expected = [BASE_NS + int(time.replace(".", "")) for time in times]
    assert [row.start_ns for row in events.operators] == expected
    assert {row.end_ns - row.start_ns for row in events.operators} == {1}
    assert events.since_1970


def test_microseconds_with_decimals_since_1970_lose_nothing(read):
    """A float has no room for them; arguments stay floats."""
    time = "1712195495505543.185"
    text = (
        '{"traceEvents": [{"ph": "M", "name": "x", "ts": 0.0}, {"ph": "X", "cat": '
        f'"kernel", "name": "ncclKernel", "ts": {time}, "dur": 41.768, '
        '"args": {"blocks per SM": 0.07}}]}'
    )
    (row,) = read(text).work
    assert row.start_ns == 1_712_195_495_505_543_185
    assert row.end_ns - row.start_ns == 41_768
    assert row.args == {"blocks per SM": 0.07}


def test_whole_microseconds_since_1970_need_no_base(read):
    """As torch wrote them until 2.1; a clock that began at boot is another."""
    events = read([kernel("a", 1_682_725_898_236_567, 3)])
    assert (events.work[0].start_ns, events.since_1970) == (1682725898236567000, True)
    assert not read([kernel("a", 4_203_669_604_613, 3)]).since_1970


def test_begin_and_end_make_a_span(read):
    """Of each thread, the last that began ends first; what never ends is left out."""
    lane = {"pid": 1, "tid": 2}
    events = read(
        [
            {"ph": "B", "cat": "cpu_op", "name": "outer", "ts": 1, **lane},
            {"ph": "B", "cat": "cpu_op", "name": "inner", "ts": 2.5, **lane},
            {"ph": "E", "ts": 4, **lane},
            {"ph": "E", "ts": 9, **lane},
            {"ph": "E", "ts": 10, **lane},
            {"ph": "B", "cat": "cpu_op", "name": "open", "ts": 11, **lane},
        ]
    )
    rows = [(row.name, row.start_ns, row.end_ns) for row in events.operators]
    assert rows == [("outer", 1000, 9000), ("inner", 2500, 4000)]
    assert "2 entries left out" in events.file.missing


def test_the_bare_list_of_the_profiler_before_kineto_is_read(read):
    """It has no categories: its processes are named by what they are."""
    entry = {"ph": "X", "ts": 1, "dur": 2, "tid": 3, "args": {}}
    events = read(
        json.dumps(
            [
                {**entry, "name": "aten::mm", "pid": "CPU functions"},
                {**entry, "name": "ProfilerStep#0", "pid": "CPU functions"},
                {**entry, "name": "gemm", "pid": "CUDA functions"},
                {**entry, "name": "else", "pid": 9},
            ]
        )
    )
    assert [row.name for row in events.operators] == ["aten::mm"]
    assert [row.name for row in events.marks] == ["ProfilerStep#0"]
    assert [(row.name, row.device) for row in events.work] == [("gemm", None)]
    assert events.file.unknown == (("without a kind", 1),)


def test_kinds_that_nobody_knows_are_counted(read):
    """Known ones that make no rows are not."""
    kinds = ["hpu_op", "hpu_op", "Zebra", "gpu_user_annotation", "Trace", "overhead"]
    events = read([span(kind, "a", 1, 2) for kind in kinds] + [{"ph": "?"}])
    assert events.file.unknown == (("hpu_op", 2), ("Zebra", 1), ("phase ?", 1))
    assert (events.file.events, events.file.missing) == (7, None)


def test_traces_of_the_simulated_gpu_are_read_and_said_to_be_simulated(read):
    """Each piece of work finds its launch; launches and waits are known as such."""
    spans = (
        TraceSpan("aten::mm", SpanKind.LAUNCH, 0.0, 5e-6, thread=0),
        TraceSpan(
            "aten::mm", SpanKind.KERNEL, 7e-6, 9e-6, device=1, stream=3, launched_s=5e-6
        ),
        TraceSpan(".item()", SpanKind.WAIT, 6e-6, 9.001e-6, thread=0),
    )
    events = read(json.dumps(as_chrome_trace(Trace(spans, 1e-5), "simulated H100")))
    (work,) = events.work
    assert (work.device, work.stream, work.start_ns, work.call) == (1, 3, 7000, 0)
    kinds = [kind_of_call(call.name) for call in events.calls]
    assert kinds == [SpanKind.LAUNCH, SpanKind.WAIT]
    assert (events.simulated, events.device_names) == (True, {1: "simulated H100"})
    assert (events.main_thread, events.since_1970) == (0, False)


# ----------------------------------------------------------- what stands beside them


def test_a_call_finds_its_work_and_a_graph_all_that_it_holds(read):
    """Of a call of the runtime and of the driver within it, it is the driver's."""
    events = read(
        [
            span("cuda_runtime", "cudaLaunchKernelExC", 1, 9, correlation=1),
            span("cuda_driver", "cuLaunchKernelEx", 2, 3, correlation=1),
            kernel("a", 20, 1, correlation=1),
            span("cuda_runtime", "cudaGraphLaunch", 30, 2, correlation=2),
            kernel("b", 40, 1, correlation=2),
            kernel("c", 42, 1, correlation=2),
            kernel("d", 50, 1, correlation=0),
            span("cuda_runtime", "cudaLaunchKernel", 51, 1, correlation=3),
            kernel("e", 60, 1, correlation=3),
            kernel("f", 62, 1, correlation=3),
            span("cuda_runtime", "cudaStreamIsCapturing", 1, 9, correlation=0),
        ]
    )
    callers = [row.call and events.calls[row.call].name for row in events.work]
    assert callers == [
        "cuLaunchKernelEx",
        *["cudaGraphLaunch"] * 2,
        *[None] * 3,
    ]


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", True),
        ("void ncclDevKernel_Generic_4<0>", True),
        ("rccl_main_kernel", True),
        ("oneapi::ccl::allreduce", True),
        ("mscclpp::allreduce7", True),
        ("void c10d::symmetric_memory::barrier_kernel", True),
        ("void c10d::checkForNaN<float>", False),
        ("void vllm::cross_device_reduce_1stage<half>", True),
        ("two_shot_all_reduce_kernel", True),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>", False),
        ("cutlass_80_tensorop_s1688gemm", False),
    ],
)
def test_kernels_that_communicate_are_known_by_their_names(read, name, communicates):
    """Only these keep all that the file tells of them."""
    (row,) = read([kernel(name, 1, 2, dtype="BFloat16", **{"In msg nelems": 8})]).work
    assert row.communicates is communicates
    assert (row.args is not None) is communicates
    assert row.nbytes == (16 if communicates else None)


def test_a_collective_is_told_by_its_operator_too(read):
    """Its number in the group for one; what the kernel tells itself goes first."""
    told = {"Seq": 17, "dtype": "Float", "In msg nelems": 2, "External id": 5}
    events = read(
        [
            span("cpu_op", "record_param_comms", 1, 9, **told),
            span("cuda_runtime", "cudaLaunchKernel", 2, 3, correlation=1),
            kernel("ncclKernel", 20, 1, correlation=1, **{"In msg nelems": 4}),
            span("cuda_runtime", "cudaLaunchKernel", 12, 3, correlation=2),
            kernel("ncclKernel", 30, 1, correlation=2),
        ]
    )
    first, second = events.work
    assert (first.args["Seq"], first.args["In msg nelems"], first.nbytes) == (17, 4, 16)
    assert "External id" not in first.args
    assert "Seq" not in second.args


def test_the_file_tells_rank_world_and_devices(read):
    """Before the entries or after them; the last of a key that stands twice counts."""
    events = read(
        '{"distributedInfo": {"rank": 5}, "traceEvents": ['
        + json.dumps(kernel("a", 1, 2))
        + '], "x": [[{}]], "distributedInfo": {"rank": 3, "world_size": 8},'
        '"deviceProperties": [{"id": 0, "name": "A100"}, {"id": 1}, 7],'
        '"traceEvents": [' + json.dumps(kernel("b", 3, 1)) + "]}",
        "rank7.json",
    )
    assert (events.rank, events.world_size) == (3, 8)
    assert events.device_names == {0: "A100"}
    assert [row.name for row in events.work] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0_trace.json", 0),
        ("sampled_rank-12.json.gz", 12),
        ("worker.rank_3.1700000000000.pt.trace.json", 3),
        ("Rank 4.json", 4),
        ("fit-pytorch_profiler-2.1700000000000000.pt.trace.json", 2),
        ("profile_1.json", 1),
        ("host17_4711.1700000000000000.pt.trace.json", None),
        ("trace_3.json", None),
        ("frank2.json", None),
        ("rank.json", None),
    ],
)
def test_the_name_tells_the_rank_where_the_file_does_not(read, name, rank):
    """But not by any number that is in it."""
    assert read([kernel("a", 1, 2)], name).rank == rank


def test_the_main_thread_is_that_of_the_steps_else_the_one_that_launched(read):
    """However many operators others have run."""
    launches = [span("cuda_runtime", "cudaLaunchKernel", 1, 1, tid=8)]
    operators = [span("cpu_op", "a", n, 1, tid=9) for n in range(5)]
    step = [span("user_annotation", "ProfilerStep#1", 1, 1, tid=7)]
    assert read(launches + operators + step).main_thread == 7
    assert read(launches + operators).main_thread == 8
    assert read(operators).main_thread == 9
    assert read([kernel("a", 1, 1)]).main_thread is None


def test_rows_are_in_order_of_their_beginnings_the_outer_first(read):
    """Whatever the order in the file."""
    times = [(5, 1), (1, 2), (1, 9), (3, 0)]
    events = read([span("python_function", "f", *time) for time in times])
    rows = [(row.start_ns, row.end_ns) for row in events.python]
    assert rows == [(1000, 10000), (1000, 3000), (3000, 3000), (5000, 6000)]


# --------------------------------------------------------------- what cannot be true


GOOD = span("cpu_op", "good", 1, 2)
ODD = [
    "7",
    '"text"',
    "null",
    "[[]]",
    "{}",
    json.dumps(GOOD | {"ts": "1"}),
    json.dumps(GOOD | {"ts": True}),
    json.dumps(GOOD | {"ts": None}),
    json.dumps(GOOD | {"dur": -1}),
    json.dumps(GOOD | {"dur": [1]}),
    json.dumps(GOOD | {"ts": 10**400}),
    json.dumps(GOOD | {"ts": 1e300}),
    json.dumps(GOOD | {"ts": float("nan")}),
    json.dumps(GOOD | {"dur": float("inf")}),
    json.dumps(GOOD | {"name": 5}),
    json.dumps(GOOD | {"name": {}}),
    json.dumps(GOOD | {"cat": ["cpu_op"]}),
    json.dumps(GOOD | {"cat": 3}),
    json.dumps(GOOD | {"args": "none"}),
    json.dumps({"ph": ["X"]}),
    json.dumps({"ph": "E", "ts": 1, "pid": {}, "tid": 1}),
    json.dumps(kernel("a", 1, 2) | {"args": [1]}),
    # No JSON: as Kineto writes some figures, and as a disk may have made it.
    json.dumps(GOOD)[:-2] + '"bandwidth": inf}}',
    json.dumps(GOOD)[:-2] + '"bandwidth": -nan}}',
    json.dumps(GOOD).replace("cpu_op", r"C:\Users"),
    json.dumps(GOOD).replace("1", "9" * 5000),
    json.dumps(GOOD)[:-2] + '"deep": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    json.dumps(GOOD)[:-2] + '"deep": ' + '{"a":' * 50_000,
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("between", [", ", ",\n  ", ","])
def test_what_cannot_be_an_event_is_left_out_and_counted(read, odd, between):
    """And costs no other."""
    good = [json.dumps(GOOD | {"ts": time}) for time in range(1, 300)]
    listed = between.join([*good[:150], odd, *good[150:]])
    events = read(f'{{"traceEvents": [{listed}], "distributedInfo": {{"rank": 1}}}}')
    assert len(events.operators) == 299
    assert events.file.missing.startswith("1 entry left out")
    assert events.rank == 1


def test_numbers_that_are_too_large_for_what_they_count_are_unknown(read):
    """The work itself is there."""
    large = dict.fromkeys(("device", "stream", "bytes", "correlation"), 10**30)
    (row,) = read([span("gpu_memcpy", "copy", 1, 2, pid="x", **large)]).work
    assert (row.device, row.stream, row.nbytes, row.call) == (None,) * 4


def test_names_can_always_be_written(read):
    """Halves of characters, which JSON can have, cannot."""
    text = json.dumps([kernel("a\ud83d", 1, 2), kernel("b\u00b5\U0001f600", 3, 2)])
    names = [row.name for row in read(text).work]
    assert names == ["a?", "b\u00b5\U0001f600"]
    raw = json.dumps([kernel("b\u00b5\U0001f600", 3, 2)], ensure_ascii=False)
    assert read(raw).work[0].name == "b\u00b5\U0001f600"


@pytest.mark.parametrize(
    "beside", ['"a": 1', "[", '{"x": 2', '"distributedInfo": [[[', "}"]
)
def test_damage_after_the_events_costs_no_event(read, beside):
    """Whatever stands there instead of the keys."""
    events = read('{"traceEvents": [' + json.dumps(GOOD) + "], " + beside)
    assert len(events.operators) == 1
    whole = beside == "}"
    expected = None if whole else "the file has no end, but all of its entries: 1"
    assert events.file.missing == expected


@pytest.mark.parametrize("beside", ['"a": [', "!", '"a": inf', '"a": "b'])
def test_damage_before_the_events_costs_no_event(read, beside):
    """But it is said."""
    listed = json.dumps([GOOD, GOOD])
    events = read(f'{{{beside}, "traceEvents": {listed}, "distributedInfo": {{}}}}')
    assert len(events.operators) == 2
    assert events.file.missing.startswith("1 entry left out")


def test_damage_that_has_no_end_says_how_much_is_missing(read):
    """As a share of the file."""
    good = ",".join([json.dumps(GOOD)] * 100)
    events = read(f'{{"traceEvents": [{good}, {"!" * len(good)}')
    assert len(events.operators) == 100
    assert "damaged after 100 entries" in events.file.missing
    assert "(50.0 %)" in events.file.missing
    assert "left out" not in events.file.missing


# ----------------------------------------------------------------- cut and in pieces


def _written(names, *, indent, beside):
    """A whole file, and for each event where it ends."""
    text = '{"schemaVersion": 1, "traceEvents": [' if beside else "["
    ends = []
    for at, name in enumerate(names):
        text += ",\n " if at else " "
        text += json.dumps(span("cpu_op", name, at, 1), indent=indent)
        ends.append(len(text.encode()))
    return (text + (' ], "traceName": "x"}' if beside else "]")).encode(), ends


@given(
    names=st.lists(st.text(max_size=5), min_size=1, max_size=12),
    indent=st.sampled_from([None, 2]),
    beside=st.booleans(),
    share=st.floats(0, 1),
    piece=st.sampled_from([1, 7, 2**18]),
    at_once=st.sampled_from([1, 200, 2**16]),
)
def test_a_file_that_was_cut_gives_all_that_was_whole(  # noqa: PLR0913, PLR0917
    tmp_path_factory, names, indent, beside, share, piece, at_once
):
    """Exactly the events that end before the cut; if there are none, two lines."""
    data, ends = _written(names, indent=indent, beside=beside)
    cut = int(len(data) * share)
    whole = sum(end <= cut for end in ends)
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    path.write_bytes(data[:cut])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_FIRST_READ", piece)
        patch.setattr(files, "_READ", piece)
        patch.setattr(entries, "_AT_ONCE", at_once)
        if not whole:
            with pytest.raises(GpuMagicError) as error:
                trace_file.read(path)
            assert len(error.value.lines()) == 2
            return
        events = trace_file.read(path)
    found = [(row.name, row.start_ns) for row in events.operators]
    assert found == [(names[at], at * 1000) for at in range(whole)]
    assert (events.file.missing is None) == (cut == len(data))
    assert (events.file.events, events.file.nbytes) == (whole, cut)


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "python_function"]),
            st.integers(0, 10**7) | st.integers(0, 10**10).map(lambda n: n / 1000),
            st.integers(0, 10**4) | st.integers(0, 10**7).map(lambda n: n / 1000),
            st.integers(1, 5),
        ),
        min_size=1,
    )
)
def test_counts_and_sums_are_those_of_the_entries(tmp_path_factory, rows):
    """Against going through the decoded file by brute force."""
    listed = [span(cat, cat, ts, dur, correlation=key) for cat, ts, dur, key in rows]
    path = tmp_path_factory.mktemp("sums") / "trace.json"
    path.write_text(json.dumps(listed))
    events = trace_file.read(path)
    kinds = ("operators", "work", "calls", "python")
    found = [row for kind in kinds for row in getattr(events, kind)]
    count, total = Counter(), Counter()
    for row in found:
        count[row.name] += 1
        total[row.name] += row.end_ns - row.start_ns
    assert count == Counter(cat for cat, *_ in rows)
    sums = Counter()
    for cat, _, dur, _ in rows:
        sums[cat] += round(dur * 1000)
    assert total == sums
    launched = Counter(key for cat, _, _, key in rows if cat == "kernel")
    called = {key for cat, _, _, key in rows if cat == "cuda_runtime"}
    alone = sum(launched[key] == 1 for key in called)
    assert sum(row.call is not None for row in events.work) == alone


def test_a_truncated_gzip_file_is_read_as_far_as_it_goes(read):
    """And the sentence says why there is no more."""
    listed = [kernel(f"k{at * 7919 % 1000}", at, 0.5) for at in range(5000)]
    packed = gzip.compress(json.dumps({"traceEvents": listed}).encode())
    events = read(packed[: len(packed) // 2])
    assert 1000 < len(events.work) < 4000
    assert [row.start_ns for row in events.work] == [
        at * 1000 for at in range(len(events.work))
    ]
    assert "ends too early" in events.file.missing
    assert f"{events.file.events:,} entries could be read" in events.file.missing


@pytest.mark.parametrize("seed", range(80))
def test_damaged_bytes_give_rows_or_two_lines(read, seed):
    """Nothing else, whatever is done to a file."""
    chance = random.Random(seed)  # noqa: S311 -- noise, no secrets
    listed = [kernel(f"ncclKernel{at}", at, 2, correlation=at) for at in range(40)]
    listed += [span("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=3), GOOD]
    data = bytearray(
        json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": listed}).encode()
    )
    words = [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\xff", b"-", b"NaN", b"1e9"]
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 4)] = chance.choice(words)
    content = gzip.compress(bytes(data)) if seed % 2 else bytes(data)
    error = None
    try:
        events = read(content)
    except GpuMagicError as raised:
        error = raised
    assert len(error.lines()) == 2 if error else len(events.work) > 20


def test_a_file_in_which_all_is_in_vain_is_given_up(read, monkeypatch):
    """Each beginning would have to be followed to the end of the file."""
    monkeypatch.setattr(entries, "_MOST_IN_VAIN", 100_000)
    listed = ",".join([json.dumps(GOOD)] * 5 + ['{"ph":1,"a":[' + "1," * 500] * 200)
    events = read(f'{{"traceEvents": [{listed}')
    assert len(events.operators) == 5
    assert "damaged after 5 entries" in events.file.missing


@pytest.mark.parametrize(
    "content",
    [
        '{"traceEvents": []}',
        '{"traceEvents": [',
        '{"traceEvents": 5}',
        '{"traceEvents": [{"ph": "X", "na',
        '{"traceEvents": [!!!',
        '{"schemaVersion": 1, "device',
        '[{"ph": "X", "ts": 1, "dur',
    ],
)
def test_a_trace_without_one_event_is_two_lines(read, content):
    """They say which file, and what to do."""
    with pytest.raises(
        GpuMagicError, match=r"no event in trace.json.*\n.*another rank"
    ):
        read(content)


def test_a_snapshot_is_no_trace(read):
    """Its own reader is named."""
    with pytest.raises(GpuMagicError, match="memory snapshot"):
        read('{"segments": [], "device_traces": []}')


# --------------------------------------------------------------------- while it reads


def test_progress_is_told_and_ctrl_c_leaves_nothing(tmp_path):
    """The collector is on again, and the file closed."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([kernel("k", at, 1) for at in range(20_000)]))
    told = []
    trace_file.read(path, told.append)
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 1.0

    def pressed(share):
        assert not gc.isenabled()
        if share > 0.5:
            raise KeyboardInterrupt

    before = open_files()
    with pytest.raises(KeyboardInterrupt):
        trace_file.read(path, pressed)
    assert gc.isenabled()
    assert open_files() == before


def open_files():
    """How many there are, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else None


def test_a_collector_that_was_off_stays_off(read):
    """It was somebody's wish."""
    gc.disable()
    try:
        read([kernel("a", 1, 2)])
        assert not gc.isenabled()
    finally:
        gc.enable()


# ------------------------------------------------------------------ made by torch here


def test_a_trace_of_the_torch_that_is_installed_is_read(tmp_path):
    """Steps, operators, annotations and stacks, as many as torch itself has counted."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "trace.json.gz"
    profiler = torch.profiler
    layer = torch.nn.Linear(4, 4)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
        with_stack=True,
    ) as profile:
        for _ in range(4):
            with torch.autograd.profiler.record_function("mine"):
                layer(torch.ones(2, 4)).sum().backward()
            profile.step()
    events = trace_file.read(path)
    steps = [row.name for row in events.marks if row.name.startswith("ProfilerStep#")]
    assert steps == ["ProfilerStep#2", "ProfilerStep#3"]
    assert [row.name for row in events.marks].count("mine") == 2
    assert [row.name for row in events.operators].count("aten::addmm") == 2
    sequences = {
        row.sequence for row in events.operators if "addmm" in row.name.lower()
    }
    assert None not in sequences
    assert events.since_1970
    assert (events.work, events.file.missing, events.file.unknown) == ([], None, ())
    assert (events.main_thread is None) is False
    assert any("test_trace_file.py" in row.name for row in events.python)
    with gzip.open(path) as file:
        listed = json.load(file)["traceEvents"]
    assert len(listed) == events.file.events
    assert len(events.operators) == sum(e.get("cat") == "cpu_op" for e in listed)
