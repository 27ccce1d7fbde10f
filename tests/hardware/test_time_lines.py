"""`--lines` on torch's own CUDA: what a line has launched is told at that line."""

from __future__ import annotations

import pytest

from gpumagic.cuda_sync_time import measure
from gpumagic.report.events import DEVICE_KINDS
from tests.hardware.cells import cell


@pytest.fixture(autouse=True)
def started(torch):
    """CUDA is in use, and idle."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


@pytest.fixture
def spin_cycles(cycles_per_ms):
    """How many cycles keep the GPU busy for so many milliseconds."""
    return lambda milliseconds: int(milliseconds * cycles_per_ms)


@pytest.fixture
def by_line(torch):
    """The lines of a cell, by what is typed there, and the trace that they are from."""

    def measured(text, **names):
        report = measure(cell(text, torch=torch, **names), lines=True)
        assert report.profile.problem is None
        return {each.line.source: each for each in report.lines}, report

    return measured


def sums(lines):
    """What the lines have launched, and how many seconds that took, together."""
    return (
        sum(each.launches for each in lines.values()),
        sum(each.device_s for each in lines.values()),
    )


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


def test_a_kernel_is_the_line_s_that_launched_it(torch, by_line, spin_cycles):
    """However short the next line is, ten times of ten: nothing is nobody's."""
    x = torch.ones(256, 256, device="cuda")

    for _ in range(10):
        lines, report = by_line(CELL, x=x, unit=spin_cycles(0.5))

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
        assert sums(lines)[1] == pytest.approx(
            sum(each.end_s - each.start_s for each in work_of(report))
        )


def test_lines_within_one_statement_are_told_apart(torch, by_line, spin_cycles):
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
    lines, _ = by_line(text, x=torch.ones(64, device="cuda"), unit=spin_cycles(0.2))

    launches = {source: each.launches for source, each in lines.items()}
    assert launches["x.add_(1)"] == launches["return x.mul_(2)"] == 5
    assert launches["torch.cuda._sleep(unit)"] == 5
    assert launches["step(x)"] == 15
    assert launches["c = 1"] == launches["d = 1"] == 0


def test_the_work_of_a_graph_is_the_line_s_that_replays_it(torch, by_line, spin_cycles):
    """All its kernels, as often as it is replayed."""
    static, unit = torch.ones(1 << 10, device="cuda"), spin_cycles(0.5)
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


def test_several_streams_are_added_up_at_their_lines(torch, by_line, spin_cycles):
    """What runs at once counts at each line, as long as it took."""
    side = torch.cuda.Stream()
    text = """\
torch.cuda._sleep(unit)
with torch.cuda.stream(side):
    torch.cuda._sleep(2 * unit)
side.synchronize()
"""
    lines, report = by_line(text, side=side, unit=spin_cycles(20))

    main = lines["torch.cuda._sleep(unit)"]
    aside = lines["torch.cuda._sleep(2 * unit)"]
    assert main.launches == aside.launches == 1
    assert aside.device_s == pytest.approx(2 * main.device_s, rel=0.02)
    assert report.profile.overlapped_s == pytest.approx(main.device_s, rel=0.1)
    assert lines["side.synchronize()"].host_s > main.device_s


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
    assert sums(lines)[0] == len(work_of(report))


def test_copies_are_told_at_their_lines(torch, by_line):
    """Up, down and within the device, by bytes and by who waits for them."""
    host = torch.ones(1 << 20).pin_memory()
    there = torch.empty(1 << 20, device="cuda")
    text = """\
there.copy_(host, non_blocking=True)
a = 1
twice = there.clone()
there.zero_()
back = twice.cpu()
"""
    lines, _ = by_line(text, host=host, there=there)

    assert {source: each.launches for source, each in lines.items()} == {
        "there.copy_(host, non_blocking=True)": 1,
        "a = 1": 0,
        "twice = there.clone()": 1,
        "there.zero_()": 1,
        "back = twice.cpu()": 1,
    }
