"""Reading traces into rows: of each version and device, and what cannot be read."""

from __future__ import annotations

import gc
import gzip
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.devices.kineto import kind_of_call
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import trace_file
from gpumagic.report.events import SpanKind, Trace, TraceSpan
from gpumagic.simulator.observing import as_chrome_trace

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


@pytest.mark.parametrize(
    "call", ["cuda_runtime", "cuda_driver", "hip", "xpu_runtime", "privateuse1_runtime"]
)
def test_every_version_and_device_gives_the_same_rows(read, call):
    """However calls are spelled; kinds that nobody knows are counted."""
    launch = "aLaunch"
    odd = ["hpu_op", "hpu_op", "Zebra", "gpu_user_annotation", "Trace", ""]
    events = read(
        [
            span("user_annotation", "ProfilerStep#4", 5, 90, tid=100),
            span("cpu_op", "aten::mm", 10, 9),
            span(call, launch, 12, 4, correlation=3),
            {"ph": "s", "id": 3, "pid": 50, "tid": 100, "ts": 12, "cat": "ac2g"},
            kernel("gemm", 20, 30, correlation=3),
            kernel("Memcpy HtoD", 55, 2, cat="gpu_memcpy", correlation=4),
            kernel("Memset (Device)", 60, 1, cat="gpu_memset", stream=9),
            *(span(kind, "a", 1, 2) for kind in odd),
        ]
    )
    assert [(row.name, row.kind.value, row.stream) for row in events.work] == [
        ("gemm", "kernel", 7),
        ("Memcpy HtoD", "copy", 7),
        ("Memset (Device)", "fill", 9),
    ]
    assert (events.work[0].start_ns, events.work[0].end_ns) == (20_000, 50_000)
    assert [row.call for row in events.work] == [events.calls[0], None, None]
    rows = events.marks, events.operators, events.calls
    assert [each[0].name for each in rows] == ["ProfilerStep#4", "aten::mm", launch]
    unknown = (("hpu_op", 2), ("Zebra", 1), ("without a kind", 1))
    assert (events.file.events, events.file.unknown) == (13, unknown)


@pytest.mark.parametrize("base_first", [True, False])
def test_times_are_read_to_the_nanosecond(read, base_first):
    """Counted from a moment that stands before or after the entries, or from 1970."""
    times = ["4450903115365.957", "4450903115365.958", "4503599627370.497"]
    entry = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": %s, "dur": 0.001}'
    parts = [f'"baseTimeNanoseconds": {BASE_NS}']
    parts.append(f'"traceEvents": [{", ".join(entry % time for time in times)}]')
    events = read(f"{{{', '.join(parts if base_first else parts[::-1])}}}")
    expected = [BASE_NS + int(time.replace(".", "")) for time in times]
    assert [row.start_ns for row in events.operators] == expected
    assert {row.end_ns - row.start_ns for row in events.operators} == {1}
    assert events.since_1970


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
    assert (work.device, work.stream, work.start_ns) == (1, 3, 7000)
    assert work.call is events.calls[0]
    kinds = [kind_of_call(call.name) for call in events.calls]
    assert kinds == [SpanKind.LAUNCH, SpanKind.WAIT]
    assert (events.simulated, events.device_names) == (True, {1: "simulated H100"})
    assert (events.main_thread, events.since_1970) == (0, False)


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
    callers = [row.call and row.call.name for row in events.work]
    assert callers == ["cuLaunchKernelEx", *["cudaGraphLaunch"] * 2, *[None] * 3]


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
        ("void c10d::symmetric_memory::barrier_kernel", True),
        ("void c10d::checkForNaN<float>", False),
        ("two_shot_all_reduce_kernel", True),
    ],
)
def test_kernels_that_communicate_are_known_by_their_names(read, name, communicates):
    """Only these keep all that the file tells of them."""
    (row,) = read([kernel(name, 1, 2, dtype="BFloat16", **{"In msg nelems": 8})]).work
    assert row.communicates is communicates
    assert bool(row.args) is communicates


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
    assert (first.args["Seq"], first.args["In msg nelems"]) == (17, 4)
    assert "External id" not in first.args
    assert "Seq" not in second.args


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("sampled_rank-12.json.gz", 12),
        ("fit-pytorch_profiler-2.1700000000000000.pt.trace.json", 2),
        ("profile_1.json", 1),
        ("frank2.json", None),
    ],
)
def test_the_name_tells_the_rank_where_the_file_does_not(read, name, rank):
    """But not by any number that is in it."""
    events = read([kernel("a", 1, 2)], name)
    assert (events.rank, events.world_size) == (rank, None)
    job = {"rank": 3, "world_size": 8}
    devices = [{"id": 0, "name": "A100"}, {"id": 1}, 7]
    told = {"distributedInfo": job, "deviceProperties": devices}
    events = read([kernel("a", 1, 2)], name, **told)
    assert (events.rank, events.world_size) == (3, 8)
    assert events.device_names == {0: "A100"}


def test_the_main_thread_is_that_of_the_steps_else_the_one_that_launched(read):
    """However many operators others have run."""
    launches = [span("cuda_runtime", "cudaLaunchKernel", 1, 1, tid=8)]
    operators = [span("cpu_op", "a", n, 1, tid=9) for n in range(5)]
    step = [span("user_annotation", "ProfilerStep#1", 1, 1, tid=7)]
    assert read(launches + operators + step).main_thread == 7
    assert read(launches + operators).main_thread == 8
    assert read(operators).main_thread == 9
    assert read([kernel("a", 1, 1)]).main_thread is None


GOOD = span("cpu_op", "good", 1, 2)


@pytest.mark.parametrize("odd", ["inf", "-nan"])
def test_figures_that_are_no_json_cost_nothing(read, odd):
    """Kineto writes some; what stands in a name stays as it is."""
    text = json.dumps([GOOD | {"name": f"to: {odd}, or"}, GOOD])
    text = text.replace('"args": {}', f'"args": {{"bandwidth": {odd}, "a": 1}}')
    rows = read(text).operators
    assert len(rows) == 2
    assert rows[0].name == f"to: {odd}, or"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"traceEvents": []}', "no event in trace.json"),
        ('{"traceEvents": [{"ph": "B", "cat": "kernel"}]}', "has a duration"),
        ('{"traceEvents": [', "trace.json ends in the middle"),
        ('{"traceEvents": [!!!', "trace.json is not as torch writes a trace"),
        (json.dumps([GOOD | {"name": 5}]), "not as torch writes a trace"),
        ('{"segments": [], "device_traces": []}', "memory snapshot, no trace"),
    ],
)
def test_what_cannot_be_read_is_two_lines(read, content, problem):
    """They say which file, and what to do."""
    with pytest.raises(GpuMagicError, match=problem) as error:
        read(content)
    assert len(error.value.lines()) == 2


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_give_rows_or_two_lines(read, seed):
    """Nothing else, whatever is done to a file."""
    chance = random.Random(seed)  # noqa: S311 -- noise, no secrets
    listed = [kernel(f"ncclKernel{at}", at, 2, correlation=at) for at in range(40)]
    listed += [span("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=3), GOOD]
    data = bytearray(
        json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": listed}).encode()
    )
    words = [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\xff", b"-", b"NaN", b"1e9"]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 4)] = chance.choice(words)
    content = gzip.compress(bytes(data)) if seed % 2 else bytes(data)
    error = None
    try:
        events = read(content)
    except GpuMagicError as raised:
        error = raised
    assert len(error.lines()) == 2 if error else len(events.work) > 20


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "user_annotation"]),
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
    kinds = ("operators", "work", "calls", "marks")
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


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    """The collector is on again."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([GOOD]))

    def pressed(*_):
        assert not gc.isenabled()
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_file._Rows, "_take", pressed)
    with pytest.raises(KeyboardInterrupt):
        trace_file.read(path)
    assert gc.isenabled()


def test_a_trace_of_the_torch_that_is_installed_is_read(tmp_path):
    """Steps, operators, annotations and stacks, as many as torch itself has counted."""
    torch = pytest.importorskip("torch")
    path, layer = tmp_path / "trace.json.gz", torch.nn.Linear(4, 4)
    options = {
        "schedule": torch.profiler.schedule(wait=1, warmup=1, active=2),
        "on_trace_ready": lambda profile: profile.export_chrome_trace(str(path)),
    }
    with torch.profiler.profile(**options, with_stack=True) as profile:
        for _ in range(4):
            with torch.autograd.profiler.record_function("mine"):
                layer(torch.ones(2, 4)).sum().backward()
            profile.step()
    events = trace_file.read(path)
    names = [row.name for row in events.marks]
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= {*names}
    assert names.count("mine") == 2
    assert events.since_1970
    assert (events.work, events.file.unknown) == ([], ())
    assert any("test_trace_file.py" in row.name for row in events.python)
    assert not any(row.name.startswith("torch/") for row in events.python)
    with gzip.open(path) as file:
        listed = json.load(file)["traceEvents"]
    assert len(listed) == events.file.events
    assert len(events.operators) == sum(e.get("cat") == "cpu_op" for e in listed)
