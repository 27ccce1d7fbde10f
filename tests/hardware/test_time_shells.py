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
    "oom": "%%cuda_sync_time\ntorch.empty(1 << 45, dtype=torch.uint8, device='cuda')",
    "again": "%%cuda_sync_time --syncs\ntorch.cuda.synchronize()",
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


def test_waits_are_told_with_the_line(seen):
    """Three times the same one; what is printed comes out as ever."""
    text = text_of(seen["syncs"])

    assert re.search(r"its lines wait [\d.]+ \w?s for the GPU", text)
    assert "In [7], line 3" in text
    assert "131072.0" in seen["syncs"].printed


def test_a_profile_has_each_stream_and_no_thread_of_ours(seen):
    """Of a run so long that a thread of ours has waited for its end."""
    text = text_of(seen["profile"])

    assert "the GPU works" in text
    assert "spin_kernel" in text
    assert text.count("stream ") >= 2
    assert "thread 1" not in text


def test_an_error_is_the_cell_s_own_and_the_next_cell_is_timed(seen):
    """Out of memory ends in the user's line; the GPU is as before."""
    assert "OutOfMemoryError" in seen["oom"].error
    assert seen["oom"].frames[-1][0] == 2
    assert "failed" in "\n".join(each["text/plain"] for each in seen["oom"].shown)
    assert text_of(seen["again"])
