"""The simulated GPU in a real kernel, with all on that goes round every cell."""

from __future__ import annotations

import re

import pytest

from tests.notebook.shells import see_in_kernel

pytest.importorskip("torch")

CELLS = {
    "load": "%load_ext gpumagic\nimport asyncio, time, torch, gpumagic",
    "simulate": 'box = gpumagic.simulate("h100", as_cuda=True)',
    "first use": "x = torch.ones(256, 256, device='cuda'); y = x @ x",
    "on": "%cuda_sync_time on\n%gpu_mem on",
    "captured": "%%capture caught\nprint('x')\nz = x @ x",
    "what it printed": "caught.stdout, len(caught.outputs)",
    "polled": (
        "e = torch.cuda.Event()\ny = x @ x\ne.record()\nwhile not e.query(): pass"
    ),
    "polled asleep": (
        "y = x @ x\nwhile not torch.cuda.current_stream().query(): time.sleep(0.01)"
    ),
    "polled awaiting": (
        "y = x @ x\ne.record()\nwhile not e.query():\n    await asyncio.sleep(0.001)"
    ),
    "an error": "1 / 0",
    "off": "%cuda_sync_time off\n%gpu_mem off",
    "box off": "box.off()",
    "unload": "%unload_ext gpumagic",
    "after all": "time.sleep, 2 + 2",
}


@pytest.fixture(scope="module")
def seen():
    """Each of the cells, as its user sees it."""
    return dict(zip(CELLS, see_in_kernel([*CELLS.values()]), strict=True))


@pytest.mark.kernel
def test_every_cell_ends_as_the_plain_one(seen):
    """Captured, polling, awaiting: all run; the one error is the user's."""
    errors = {name: each.error for name, each in seen.items() if each.error}

    assert errors == {"an error": "ZeroDivisionError: division by zero"}
    assert seen["what it printed"].result == "('x\\n', 0)"
    assert seen["after all"].result == "(<function time.sleep>, 4)"


@pytest.mark.kernel
def test_a_polled_wait_is_timed_as_what_it_waits_for(seen):
    """A sleep of 10 ms between two questions is at least that long."""
    polled, asleep = (_told_s(seen[name]) for name in ("polled", "polled asleep"))

    assert 0 < polled < 1e-3
    assert 0.01 <= asleep < 0.02


def _told_s(seen):
    """The time in our line."""
    lines = [each["text/plain"] for each in seen.shown]
    [figures] = [
        found for each in lines if (found := re.search(r"([\d.]+) (\S?s)\b", each))
    ]
    return float(figures[1]) * {"s": 1, "ms": 1e-3, "us": 1e-6}[figures[2]]
