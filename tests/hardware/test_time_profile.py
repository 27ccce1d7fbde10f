"""What a profile and `--lines` say of torch's own CUDA, held against what was asked."""

from __future__ import annotations

import json
import threading
import time

import pytest

from gpumagic import gpu_open
from gpumagic.cuda_sync_time import measure, watch
from gpumagic.cuda_sync_time.observers import profile_of
from gpumagic.report.events import DEVICE_KINDS, SpanKind
from tests.devices.traces import of_kind, traced
from tests.hardware.cells import cell

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def training(torch):
    """A step of training that has run twice."""
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    ).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    inputs = torch.randn(64, 256).pin_memory()
    labels = torch.randint(0, 10, (64,)).pin_memory()

    def step():
        optimizer.zero_grad()
        x = inputs.to("cuda", non_blocking=True)
        y = labels.to("cuda", non_blocking=True)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    return step


def test_the_profile_is_what_the_saved_trace_says(training, tmp_path):
    """Kernels, copies and their time: as a plain reader of the file adds them up."""
    file = tmp_path / "run.json"

    report = measure(training, trace_file=str(file))

    (rank,) = gpu_open.read(file).ranks
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    warm_up = sum("spin_kernel" in each.get("name", "") for each in events)
    work = [
        each
        for each in events
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    assert report.profile.launches == len(work) - warm_up
    assert sum(each.count for each in rank.kernels) == sum(
        each["cat"] == "kernel" for each in work
    )
    assert report.profile.saved_as == str(file)
    names = {each.name for each in report.profile.kernels}
    assert names <= {each["name"] for each in work}


def test_each_piece_of_work_is_launched_before_it_begins(training):
    """By one call each, of the thread that ran the code or of autograd's."""
    report = measure(training, profile=True)

    work = of_kind(report.profile, *DEVICE_KINDS)
    launches = of_kind(report.profile, SpanKind.LAUNCH)
    assert len(work) == len(launches)
    assert all(each.launched_s <= each.start_s <= each.end_s for each in work)
    assert {each.thread for each in launches} == {0, 1}
    assert all(0 <= each.start_s <= report.profile.length_s for each in work)


def test_copies_have_their_bytes_and_their_kind(torch):
    """Pinned, pageable, up, down and within."""
    pageable, pinned = torch.ones(1 << 18), torch.ones(1 << 18).pin_memory()
    there = torch.empty(1 << 18, device="cuda")

    def code():
        there.copy_(pageable)
        there.copy_(pinned, non_blocking=True)
        pinned.copy_(there, non_blocking=True)
        there.clone()
        there.zero_()
        pageable.copy_(there)

    report = measure(code, profile=True)

    copies = of_kind(report.profile, SpanKind.COPY)
    assert {each.nbytes for each in copies} == {1 << 20}
    names = [each.name for each in copies]
    assert ["HtoD" in each for each in names[:3]] == [True, True, False]
    assert ["Pageable" in each for each in names[:2]] == [True, False]
    assert "Memcpy DtoD (Device -> Device)" in names
    assert "Memcpy DtoH (Device -> Pageable)" in names
    waits = {each.name for each in of_kind(report.profile, SpanKind.WAIT)}
    assert "cudaStreamSynchronize" in waits or "cudaMemcpyAsync" in waits


def test_threads_that_launch_have_lanes_of_their_own(torch, spin):
    """Each on its stream, at once."""
    sides = [torch.cuda.Stream() for _ in range(3)]

    together = threading.Barrier(3)  # one that has ended gives its number to the next

    def launches_one(side):
        together.wait()
        spin(30, side)
        together.wait()

    def code():
        threads = [threading.Thread(target=launches_one, args=(s,)) for s in sides]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    report = measure(code, profile=True)

    launches = of_kind(report.profile, SpanKind.LAUNCH)
    assert len({each.thread for each in launches}) == 3
    assert len(report.profile.streams) == 3
    assert report.profile.overlapped_s > 0.02


# ------------------------------------------------------------------- the profiler


def test_an_empty_trace_does_not_blind_the_next(runtime, spin):
    """The first one holds no work of the code; those after it see every kernel."""
    empty = traced(runtime, lambda: None).trace()
    traces = [traced(runtime, lambda: spin(5)).trace() for _ in range(3)]

    assert empty.problem is None
    assert of_kind(empty, *DEVICE_KINDS) == []
    assert [len(of_kind(each, SpanKind.KERNEL)) for each in traces] == [1, 1, 1]
    assert {each.problem for each in traces} == {None}


def test_a_long_trace_is_cut_in_the_middle_of_the_code(runtime, spin, tmp_path):
    """By an alarm in the main thread: the code goes on, and what it did is told."""
    kernels = 0

    with watch(trace_file=str(tmp_path / "run.json"), trace_s=0.5) as watched:
        until_s = time.perf_counter() + 1.5
        while time.perf_counter() < until_s:
            spin(5)
            runtime.synchronize()
            kernels += 1

    profile = watched.report.profile
    seen = of_kind(profile, SpanKind.KERNEL)
    assert profile.is_cut
    assert profile.problem == ""
    assert 0.4 < profile.length_s < 1.0
    assert 0 < len(seen) < kernels
    assert watched.report.run.elapsed_s > 1.5


def test_no_kernel_is_lost_however_often_is_traced(runtime, spin):
    """CUPTI of CUDA 12.6 to 13.0 loses one more at the start of each session."""
    traces = [traced(runtime, lambda: spin(1)).trace() for _ in range(20)]

    assert [len(of_kind(each, SpanKind.KERNEL)) for each in traces] == [1] * 20
    assert {each.problem for each in traces} == {None}


def test_kernels_are_as_long_as_events_say(runtime, spin):
    """The profiler's clock and the events agree about one kernel."""
    events = []

    def code():
        events.append(runtime.record(None))
        spin(50)
        events.append(runtime.record(None))

    profile = profile_of(traced(runtime, code).trace())

    assert profile.busy_s == pytest.approx(runtime.elapsed_s(*events), rel=0.02)


def test_tracing_takes_no_memory_of_torch(runtime, torch):
    """The kernel that warms up allocates nothing, so that no counter moves."""
    before = torch.cuda.memory_stats()
    traced(runtime, lambda: None).trace()

    assert torch.cuda.memory_stats() == before


# ---------------------------------------------------------------------- by line


@pytest.fixture
def by_line(torch):
    """The lines of a cell, by what is typed there, and the trace that they are from."""

    def measured(text, **names):
        report = measure(cell(text, torch=torch, **names), lines=True)
        assert report.profile.problem == ""
        return {each.line.source: each for each in report.lines}, report

    return measured


def work_of(report):
    """What devices did in a run."""
    return [each for each in report.profile.spans if each.kind in DEVICE_KINDS]


CELL = """\
y = x + 1
torch.cuda._sleep(8 * unit)
a = 1
w = y * 2
torch.cuda._sleep(4 * unit)
b = 1
torch.cuda.synchronize()
"""


def test_a_kernel_is_the_line_s_that_launched_it(torch, by_line, cycles_per_ms):
    """However short the next line is, ten times of ten: nothing is nobody's."""
    x = torch.ones(256, 256, device="cuda")

    for _ in range(10):
        lines, _ = by_line(CELL, x=x, unit=int(0.5 * cycles_per_ms))

        launches = {source: each.launches for source, each in lines.items()}
        assert launches == {
            "y = x + 1": 1,
            "torch.cuda._sleep(8 * unit)": 1,
            "a = 1": 0,
            "w = y * 2": 1,
            "torch.cuda._sleep(4 * unit)": 1,
            "b = 1": 0,
            "torch.cuda.synchronize()": 0,
        }
        long = lines["torch.cuda._sleep(8 * unit)"].device_s
        short = lines["torch.cuda._sleep(4 * unit)"].device_s
        assert long == pytest.approx(2 * short, rel=0.02)


def test_lines_within_one_statement_are_told_apart(torch, by_line, cycles_per_ms):
    """In a loop and in a function, of which the call has all that is within."""
    text = """\
def step(x):
    x.add_(1)
    c = 1
    torch.cuda._sleep(unit)
    return x.mul_(2)

for _ in range(5):
    step(x)
    d = 1
"""
    lines, _ = by_line(
        text, x=torch.ones(64, device="cuda"), unit=int(0.2 * cycles_per_ms)
    )

    launches = {source: each.launches for source, each in lines.items()}
    assert launches["x.add_(1)"] == launches["return x.mul_(2)"] == 5
    assert launches["torch.cuda._sleep(unit)"] == 5
    assert launches["step(x)"] == 15
    assert launches["c = 1"] == launches["d = 1"] == 0


def test_the_work_of_a_graph_is_the_line_s_that_replays_it(
    torch, by_line, cycles_per_ms
):
    """All its kernels, as often as it is replayed."""
    static, unit = torch.ones(1 << 10, device="cuda"), int(0.5 * cycles_per_ms)
    static.exp()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(unit)
        static.exp().cos()

    lines, report = by_line(
        "a = 1\ngraph.replay()\nb = 1\ngraph.replay()\ntorch.cuda.synchronize()\n",
        graph=graph,
    )

    per_replay = len(work_of(report)) // 2
    assert per_replay >= 3
    # One line by what is typed, though there are two.
    assert lines["graph.replay()"].launches == per_replay
    assert lines["a = 1"].launches == lines["b = 1"].launches == 0


def test_a_backward_pass_is_the_line_s_that_called_it(torch, by_line):
    """Though autograd's own thread launches it."""
    weights = torch.randn(256, 256, device="cuda", requires_grad=True)
    inputs = torch.randn(64, 256, device="cuda")
    text = """\
hidden = inputs @ weights
loss = hidden.square().mean()
loss.backward()
"""
    cell(text, weights=weights, inputs=inputs)()  # cuBLAS starts
    torch.cuda.synchronize()

    lines, report = by_line(text, weights=weights, inputs=inputs)

    assert lines["loss.backward()"].launches > 3
    assert sum(each.launches for each in lines.values()) == len(work_of(report))
