"""Why memory has run out on torch's own CUDA, for each reason that has a word."""

from __future__ import annotations

import gc

import pytest

from gpumagic.gpu_mem.records import Cause

MIB = 1 << 20


@pytest.fixture
def why(torch, shell):
    """Runs cells, the last of which runs out of memory, and asks why."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    shell.user_ns["free"] = torch.cuda.mem_get_info()[0] // MIB * MIB
    shell.run_cell(
        "def take(part):\n"
        "    n = int(part * free) // MIB * MIB\n"
        "    return torch.empty(n, dtype=torch.uint8, device='cuda')\n"
        "MIB = 1 << 20"
    )

    def why(*cells):
        for cell in cells:
            done = shell.run_cell(cell, store_history=True)
        assert isinstance(done.error_in_exec, torch.OutOfMemoryError)
        del done
        return shell.run_line_magic("gpu_mem", "why -o -q")

    yield why
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def text(report):
    """All that it says, in one line."""
    return " ".join(str(report).split())


def test_too_much_is_alive(why):
    """The variable that holds most is named, and asking for less."""
    report = why("big = take(0.6)", "more = take(0.6)")

    assert report.verdict.causes == (Cause.TOO_MUCH_LIVE,)
    assert any(each.startswith("big holds") for each in report.next_steps)
    assert report.oom.cell is not None
    assert report.oom.line.source == (
        "return torch.empty(n, dtype=torch.uint8, device='cuda')"
    )
    assert report.oom.called_from.source == "more = take(0.6)"


def test_an_earlier_error_holds_enough(torch, why, shell):
    """Letting go of it is the first step, and makes the request fit."""
    report = why(
        "def fails():\n    held = take(0.6)\n    raise ValueError\nfails()",
        "try:\n    more = take(0.6)\nexcept torch.OutOfMemoryError as error:\n"
        "    kept = str(error)\n    raise",
    )

    assert report.verdict.causes[0] in (Cause.LEAKED, Cause.TOO_MUCH_LIVE)
    del report
    shell.run_line_magic("gpu_mem", "free -q")
    done = shell.run_cell("more = take(0.6)")
    assert done.success
    assert torch.cuda.memory_allocated() > 0


def test_a_shown_result_holds_enough(why, shell):
    """What only Out[n] holds is no variable of the user's, and may go."""
    report = why("take(0.6)", "more = take(0.6)")

    assert report.verdict.causes[0] is Cause.LEAKED
    assert report.next_steps[0].startswith("%gpu_mem free")
    del report
    shell.run_line_magic("gpu_mem", "free -q")
    assert shell.run_cell("more = take(0.6)").success


def test_this_process_has_set_itself_a_limit(torch, why):
    """The device had enough: the limit is named, and how it goes."""
    torch.cuda.set_per_process_memory_fraction(0.1)

    report = why("more = take(0.2)")

    assert report.verdict.is_capped
    assert "than this process may take" in text(report)
    assert "set_per_process_memory_fraction(1.0)" in report.next_steps[0]


def test_the_free_memory_lies_in_pieces(why):
    """Each hole is too small; whose blocks lie between them is named."""
    report = why(
        "big = take(0.9); n = big.nbytes // 9; del big",
        "pieces = [take(0.1) for _ in range(9)]; apart = pieces[::2]; del pieces",
        "more = take(0.3)",
    )

    assert Cause.FRAGMENTED in report.verdict.causes
    assert "del apart: this joins the free pieces around it" in report.next_steps
    assert report.held.rigid
    assert "expandable_segments:True" in text(report)


def test_a_graph_keeps_what_it_does_not_use(why):
    """Free memory of its pool serves nobody else, which is said."""
    report = why(
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    between = take(0.6)\n"
        "    del between\n",
        "more = take(0.6)",
    )

    assert report.verdict.pools_bytes > 0
    assert "kept for graphs" in text(report)
    assert report.oom.private_pools_bytes > 0
