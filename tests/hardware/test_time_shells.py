"""`%%cuda_sync_time` as it is typed, in a terminal and in a kernel, on torch's CUDA."""

from __future__ import annotations

import re

import pytest

from tests.notebook.shells import see_in_kernel, see_in_terminal

pytestmark = pytest.mark.kernel

# By a word for each, in the order in which they are typed.
CELLS = {
    "load": "%load_ext gpumagic\nimport torch",
    "before": "%%cuda_sync_time\nsum(range(10))",
    "start": "%%cuda_sync_time\nx = torch.ones(1 << 16, device='cuda')",
    "cycles": """\
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda._sleep(10_000_000)  # while it runs, the host sends what is measured
start.record(); torch.cuda._sleep(10_000_000); end.record(); end.synchronize()
ms = int(10_000_000 / start.elapsed_time(end))""",
    "plain": "%%cuda_sync_time\ntorch.cuda._sleep(40 * ms)",
    "value": "%%cuda_sync_time\nx.sum().item()",
    "lines": """\
%%cuda_sync_time --lines -v lines
y = x + 1
torch.cuda._sleep(20 * ms)
a = 1
w = y * 2
torch.cuda._sleep(10 * ms)
b = 1
torch.cuda.synchronize()""",
    "told": """\
[(each.number, each.launches, round(each.device_s * 1e3)) for each in lines.lines]""",
    "syncs": """\
%%cuda_sync_time --syncs
for _ in range(3):
    loss = (x * 2).sum().item()
print(loss)""",
    "profile": """\
%%cuda_sync_time --profile
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(20 * ms)
torch.cuda._sleep(80 * ms)""",
    "repeat": "%cuda_sync_time --repeat 7 torch.cuda._sleep(5 * ms)",
    "base": "%cuda_sync_time --repeat 7 --name base torch.cuda._sleep(8 * ms)",
    "vs": "%cuda_sync_time --vs base torch.cuda._sleep(2 * ms)",
    "races": """\
%%cuda_sync_time --races
z = x.add_(1)
with torch.cuda.stream(side):
    w = x * 2""",
    "oom": "%%cuda_sync_time\ntorch.empty(1 << 45, dtype=torch.uint8, device='cuda')",
    "again": "%%cuda_sync_time --syncs\ntorch.cuda.synchronize()",
    "capture": """\
%%cuda_sync_time --lines
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()""",
    "reads": """\
%%cuda_sync_time
for _ in range(3):
    torch.cuda._sleep(20 * ms)
    v = x.sum().item()""",
}


@pytest.fixture(scope="module", params=[see_in_terminal, see_in_kernel])
def seen(request, torch):
    """What each cell came to, typed one after the other into one shell."""
    assert torch
    cells = request.param(list(CELLS.values()))
    return dict(zip(CELLS, cells, strict=True))


def text_of(cell):
    """All that is shown of a cell."""
    assert cell.status == "ok", cell.traceback
    return "\n".join(each["text/plain"] for each in cell.shown)


def milliseconds(text):
    """The first time in a text."""
    number, unit = re.search(r"([\d.,]+) (us|ms|s)\b", text).groups()
    return float(number.replace(",", "")) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def test_before_cuda_has_started_only_the_host_is_timed(seen):
    """And that is said; the first use of the GPU is said as well."""
    assert "on the host; no GPU was used" in text_of(seen["before"])
    assert seen["before"].result == "45"
    assert "first use" in text_of(seen["start"])


def test_a_kernel_is_waited_for(seen):
    """The time is the kernel's, and %%time would have missed it."""
    text = text_of(seen["plain"])

    assert milliseconds(text) >= 39
    assert "the host waits" in text
    assert "%%time would say" in text


def test_the_value_of_the_cell_is_its_own(seen):
    """What the plain cell gives is given."""
    assert seen["value"].result == "65536.0"


def test_lines_that_wait_for_values_are_named_without_options(seen):
    """Where and at what, how often, and what to do about it."""
    text = " ".join(text_of(seen["reads"]).split())

    assert re.search(r"its lines wait [\d.]+ \ws for the GPU", text)
    assert re.search(r"In \[\d+\], line 4 waits .* at \.item\(\), 3 times", text)
    assert "not known" not in text


def test_lines_are_told_by_their_numbers(seen):
    """Work and time at the lines that have launched it, and no line has others'."""
    told = text_of(seen["lines"])

    assert eval(seen["told"].result) == [  # noqa: S307
        (2, 1, 0),
        (3, 1, 20),
        (4, 0, 0),
        (5, 1, 0),
        (6, 1, 10),
        (7, 0, 0),
        (8, 0, 0),
    ]
    assert "torch.cuda._sleep(20 * ms)" in told
    assert "In [7], line 3 launches" in told


def test_waits_are_told_with_the_line(seen):
    """Three times the same one; what is printed comes out as ever."""
    text = text_of(seen["syncs"])

    assert re.search(r"its lines wait [\d.]+ \w?s for the GPU", text)
    assert "In [9], line 3" in text
    assert "131072.0" in seen["syncs"].printed


def test_a_profile_has_each_stream_and_no_thread_of_ours(seen):
    """Of a run so long that a thread of ours has waited for its end."""
    text = text_of(seen["profile"])

    assert "the GPU works" in text
    assert "spin_kernel" in text
    assert text.count("stream ") >= 2
    assert "thread 1" not in text


def test_many_runs_are_at_least_as_long_as_their_kernel(seen):
    """In the median, by the clock of the host."""
    assert milliseconds(text_of(seen["repeat"])) >= 4.9


@pytest.mark.times
def test_of_two_pieces_of_code_the_shorter_is_faster(seen):
    """By about what it is shorter, where the host is not held up."""
    assert "times as fast" in text_of(seen["vs"])


def test_a_race_is_told_with_both_lines(seen):
    """And with what mends it."""
    text = text_of(seen["races"])

    assert "z = x.add_(1)" in text
    assert "w = x * 2" in text
    assert "wait_stream" in text


def test_an_error_is_the_cell_s_own_and_the_next_cell_is_timed(seen):
    """Out of memory ends in the user's line; the GPU is as before."""
    assert "OutOfMemoryError" in seen["oom"].error
    assert seen["oom"].frames[-1][0] == 2
    assert "failed" in "\n".join(each["text/plain"] for each in seen["oom"].shown)
    assert text_of(seen["again"])


def test_a_capture_within_a_cell_is_timed_by_line(seen):
    """Its replay has the graph's work, the capture none."""
    text = text_of(seen["capture"])

    assert "graph.replay()" in text
    assert "captured" not in text
