"""Memory of several GPUs: whose it is, on which, and why one of them ran out."""

from __future__ import annotations

import pytest

from gpumagic.gpu_mem.records import Cause

MIB = 1 << 20


@pytest.fixture
def several(torch, shell):
    """A shell on at least two GPUs, all of them started and empty."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("there is one GPU")
    for number in range(count):
        torch.zeros(1, device=f"cuda:{number}")
    torch.cuda.empty_cache()
    return shell


def test_each_name_is_told_on_each_device(torch, several):
    """A model in parts has a row for each, and each device adds up."""
    last = torch.cuda.device_count() - 1
    several.user_ns["last"] = last
    several.run_cell("base = torch.ones(3 << 18, device='cuda:0')", store_history=True)

    report = several.run_cell(
        "%%gpu_mem -o -q --lines\n"
        "parts = [torch.ones(5 << 18, device=f'cuda:{n}') for n in (0, last)]",
        store_history=True,
    ).result

    changed = {each.device: each.allocated_delta for each in report.changes}
    assert changed == {0: 5 * MIB, last: 5 * MIB}
    taken = {row.device: row.allocated_bytes for row in report.lines}
    assert taken == changed
    held = {(h.device, h.name): h.own_bytes for h in report.holdings.holders}
    assert held[0, "parts"] == held[last, "parts"] == 5 * MIB
    assert held[0, "base"] == 3 * MIB


def test_the_map_and_the_fit_are_of_every_device(torch, several):
    """What fits on one need not fit on another."""
    several.run_cell("x = torch.ones(20 << 18, device='cuda:1')\ndel x")

    drawn = several.run_line_magic("gpu_mem", "map -o -q")
    fits = several.run_line_magic("gpu_mem", "fit 16MiB -o -q")

    assert {each.device for each in drawn.segments} == {1}
    places = {each.device: each.place for each in fits.answers}
    assert len(places) == torch.cuda.device_count()
    assert places.pop(1) == "hole"
    assert set(places.values()) == {"driver"}


def test_the_device_that_ran_out_is_named(torch, several):
    """The others have room; what is held there is not counted."""
    several.user_ns["n"] = int(torch.cuda.mem_get_info(1)[0] * 0.6)
    several.run_cell(
        "take = lambda on: torch.empty(n, dtype=torch.uint8, device=on)\n"
        "elsewhere = take('cuda:0'); big = take('cuda:1')"
    )
    several.run_cell("more = take('cuda:1')", store_history=True)

    report = several.run_line_magic("gpu_mem", "why -o -q")

    assert (report.oom.device, report.verdict.causes) == (1, (Cause.TOO_MUCH_LIVE,))
    assert [each.name for each in report.held.names] == ["big"]
    assert "elsewhere" not in " ".join(report.next_steps)


def test_what_is_let_go_of_comes_back_on_each(torch, several):
    """A result that was shown, in parts on two devices."""
    several.run_cell(
        "[torch.ones(5 << 18, device=f'cuda:{n}') for n in (0, 1)]", store_history=True
    )
    before = [torch.cuda.memory_allocated(n) for n in (0, 1)]

    several.run_line_magic("gpu_mem", "free -q")

    now = [torch.cuda.memory_allocated(n) for n in (0, 1)]
    assert [b - n for b, n in zip(before, now, strict=True)] == [5 * MIB, 5 * MIB]
