"""What a profile says of torch's own CUDA, held against what was asked for."""

from __future__ import annotations

import gc
import json
import threading
from itertools import pairwise

import pytest

from gpumagic import gpu_open
from gpumagic.cuda_sync_time import measure, repeat
from gpumagic.report.events import DEVICE_KINDS, SpanKind


@pytest.fixture(autouse=True)
def started(torch):
    """CUDA is in use, and idle."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


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


def of_kind(report, *kinds):
    """The spans of some kinds."""
    return [each for each in report.profile.spans if each.kind in kinds]


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

    work = of_kind(report, *DEVICE_KINDS)
    launches = of_kind(report, SpanKind.LAUNCH)
    assert len(work) == len(launches)
    assert all(each.launched_s <= each.start_s <= each.end_s for each in work)
    assert {each.thread for each in launches} == {0, 1}
    assert all(0 <= each.start_s <= report.profile.length_s for each in work)


def test_work_of_one_stream_never_overlaps(training):
    """One thing after the other, in the order in which it was launched."""
    report = measure(lambda: [training() for _ in range(3)], profile=True)

    (stream,) = report.profile.streams
    work = of_kind(report, *DEVICE_KINDS)
    for before, after in pairwise(work):
        assert before.end_s <= after.start_s + 1e-9
        assert before.launched_s <= after.launched_s
    assert report.profile.overlapped_s == 0
    assert stream.busy_s == pytest.approx(
        sum(each.end_s - each.start_s for each in work)
    )


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

    copies = of_kind(report, SpanKind.COPY)
    assert {each.nbytes for each in copies} == {1 << 20}
    names = [each.name for each in copies]
    assert ["HtoD" in each for each in names[:3]] == [True, True, False]
    assert ["Pageable" in each for each in names[:2]] == [True, False]
    assert "Memcpy DtoD (Device -> Device)" in names
    assert "Memcpy DtoH (Device -> Pageable)" in names
    waits = {each.name for each in of_kind(report, SpanKind.WAIT)}
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

    launches = of_kind(report, SpanKind.LAUNCH)
    assert len({each.thread for each in launches}) == 3
    assert len(report.profile.streams) == 3
    assert report.profile.overlapped_s > 0.02


def test_workers_and_a_pinning_thread_are_timed(torch):
    """A loop over a loader with workers: its copies come from pinned memory."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(64, 1))
    loader = torch.utils.data.DataLoader(data, 8, num_workers=2, pin_memory=True)
    sums = []

    def code():
        total = torch.zeros((), device="cuda")
        for (batch,) in loader:
            total += batch.to("cuda", non_blocking=True).sum()
        sums.append(total)

    report = measure(code, profile=True)

    copies = [each.name for each in of_kind(report, SpanKind.COPY)]
    up = [each for each in copies if "HtoD" in each]
    assert len(up) == 8
    assert ["Pageable" in each for each in up] == [False] * 8
    assert sums[0].item() == sum(range(64))


@pytest.mark.parametrize("many", [20])
def test_a_replay_again_and_again_is_as_long_as_once(torch, spin, many):
    """A graph is timed like a kernel, and its memory is its own."""
    static = torch.ones(1 << 10, device="cuda")
    static.mul_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spin(2)
        static.add_(1)
    gc.collect()  # of the tests before
    before = torch.cuda.memory_allocated()

    once = measure(graph.replay, profile=True)
    report = repeat(graph.replay, samples=many, budget_s=1.0)

    assert min(report.samples.seconds) >= once.profile.busy_s * 0.99
    assert torch.cuda.memory_allocated() == before
    assert static[0].item() > many
