"""What cells on torch's own CUDA do to memory is told as what it was."""

from __future__ import annotations

import gc

import pytest

from gpumagic.devices.torch_private import cublas_workspace_bytes
from gpumagic.gpu_mem.records import BadgeKind, HolderKind

MIB = 1 << 20
FAILS = """
def fails():
    lost = torch.ones({nbytes} // 4, device="cuda")
    1 / 0
fails()
"""
WORKSPACES = "cuBLAS workspaces"
PROBABLY_WORKSPACES = f"{WORKSPACES} (probably)"


@pytest.fixture
def cell(shell):
    """Runs a cell under the magic, and hands its report out."""

    def cell(code, options=""):
        line = f"%%gpu_mem -o -q {options}\n{code}"
        return shell.run_cell(line, store_history=True).result

    return cell


def badges(report):
    """Its badges by kind, with their amounts."""
    return {each.kind: each.amount for each in report.badges}


# --------------------------------------------------------- who has emptied the cache


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.empty_cache()",
        "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    x * 2",
    ],
    ids=["by the user", "by a graph"],
)
def test_an_emptied_cache_is_nobodys_shortage(shell, cell, code):
    """The code has asked for it, so that nobody is told to free memory."""
    shell.run_cell("x = torch.ones(1 << 20, device='cuda')", store_history=True)

    report = cell(code)

    assert BadgeKind.RETRY not in badges(report)
    assert "free unused tensors" not in str(report)


def test_a_retry_is_told_as_one(torch, shell, cell):
    """Where the driver has none left the cache goes: that is a part of it."""
    shell.user_ns["n"] = 2 * torch.cuda.mem_get_info()[1]

    report = cell(
        "try:\n"
        "    torch.empty(n, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n"
        "    pass"
    )

    told = badges(report)
    assert (told[BadgeKind.RETRY], told[BadgeKind.OOM_CAUGHT]) == (1, 1)
    assert BadgeKind.DRIVER_CALLS not in told


# ------------------------------------------------------------- what cuBLAS keeps


@pytest.fixture
def size(torch):
    """How large a workspace is; none is left of earlier tests."""
    torch.zeros(1, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    return cublas_workspace_bytes(torch)


def test_what_a_product_leaves_behind_is_named(torch, shell, cell, size):
    """The first product of a thread on a stream: told once, with how it goes."""
    shell.run_cell("a = torch.ones(64, 64, device='cuda')", store_history=True)

    first = cell("b = a @ a; big = torch.ones(1 << 20, device='cuda')")
    second = cell("more = torch.ones(1 << 20, device='cuda')")

    def workspace(report):
        rows = (h for h in report.holdings.holders if h.kind is HolderKind.LIBRARY)
        return [(h.name, h.own_bytes, h.delta_bytes) for h in rows]

    assert workspace(first) == [(PROBABLY_WORKSPACES, size, size)]
    assert workspace(second) == [(PROBABLY_WORKSPACES, size, 0)]
    assert any("clearCublasWorkspaces" in each for each in second.holdings.remarks)
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    assert before - torch.cuda.memory_allocated() == size


def test_a_backward_pass_and_a_stream_have_one_of_their_own(shell, size):
    """Each is named, in the balance and on the map."""
    shell.run_cell(
        "w = torch.ones(64, 64, device='cuda', requires_grad=True)\n"
        "(w @ w).sum().backward()\n"
        "with torch.cuda.stream(torch.cuda.Stream()):\n"
        "    w @ w",
        store_history=True,
    )

    balance = shell.run_line_magic("gpu_mem", "-o -q")
    drawn = shell.run_line_magic("gpu_mem", "map -o -q")

    named = {each.name: each.own_bytes for each in balance.holdings.holders}
    assert named[PROBABLY_WORKSPACES] == 3 * size
    blocks = [each for segment in drawn.segments for each in segment.blocks]
    assert sum(each.names == (PROBABLY_WORKSPACES,) for each in blocks) == 3


def test_what_has_a_name_is_never_taken_for_a_workspace(shell, size):
    """Neither a tensor of just that size, nor what no name leads to beyond it."""
    shell.user_ns["size"] = size
    shell.run_cell(
        "mine = torch.empty(size, dtype=torch.uint8, device='cuda')\n"
        "def hidden():\n"
        "    t = torch.empty(24 << 20, dtype=torch.uint8, device='cuda')\n"
        "    return lambda: t\n"
        "import weakref\n"
        "class Holder: pass\n"
        "Holder.__module__ = 'torch'\n"
        "Holder.kept = hidden()\n",
        store_history=True,
    )

    report = shell.run_line_magic("gpu_mem", "-o -q")

    kinds = {each.name: each.kind for each in report.holdings.holders}
    assert kinds["mine"] is HolderKind.VARIABLE
    assert HolderKind.LIBRARY not in kinds.values()


# --------------------------------------------------------- lines, and a graph's pool


def test_what_a_graph_keeps_lies_in_a_pool_of_its_own(torch, shell, cell):
    """Its outputs are named, its pool is told apart, and both go with it."""
    shell.run_cell("x = torch.ones(1 << 20, device='cuda')", store_history=True)
    cell(
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    between = x * 2\n"
        "    out = between + 1\n"
        "    del between\n"
        "graph.replay()"
    )

    report = shell.run_line_magic("gpu_mem", "map -o -q")

    (pool,) = {each.pool for each in report.segments} - {"small", "large"}
    names = {
        name
        for segment in report.segments
        if segment.pool == pool
        for block in segment.blocks
        for name in block.names
    }
    assert names == {"out"}
    shell.run_cell("graph.reset(); del graph, out; torch.cuda.empty_cache()")
    gc.collect()
    torch.cuda.empty_cache()
    report = shell.run_line_magic("gpu_mem", "map -o -q")
    assert {each.pool for each in report.segments} <= {"small", "large"}


# ------------------------------------------------------------- whose recording it is


def test_a_recording_of_the_users_goes_on(torch, shell, cell):
    """Lines are read from it, and it still has what came before and comes after."""
    history = torch.cuda.memory._record_memory_history
    history(max_entries=1000, stacks="all")
    try:
        shell.run_cell("before = torch.ones(3 << 18, device='cuda')")
        report = cell("y = torch.ones(5 << 18, device='cuda')", "--lines")
        shell.run_cell("after = torch.ones(7 << 18, device='cuda')")
        assert torch._C._cuda_isHistoryEnabled()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        history(None)

    assert [row.allocated_bytes for row in report.lines if row.allocated_bytes] == [
        5 * MIB
    ]
    sizes = [each["size"] for each in trace if each["action"] == "alloc"]
    assert [each for each in sizes if each >= MIB] == [3 * MIB, 5 * MIB, 7 * MIB]


# ------------------------------------------------------------- names, leaks, letting go


def test_every_way_of_holding_has_its_name(shell):
    """Elements, models, optimizers, graphs, results and errors; and all adds up."""
    shell.run_cell(
        "model = torch.nn.Linear(1024, 1024, device='cuda')\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(4, 1024, device='cuda')).sum().backward()\n"
        "optimizer.step()\n"
        "parts = {'a': [torch.ones(1 << 20, device='cuda')]}\n"
        "class Cache:\n    kept = torch.ones(1 << 20, device='cuda')\n"
        "def closure(t=torch.ones(1 << 20, device='cuda')): return t\n"
        "leaf = torch.ones(1 << 20, device='cuda', requires_grad=True)\n"
        "loss = leaf.exp().sum()",
        store_history=True,
    )
    shell.run_cell("leaf.detach() * 2", store_history=True)
    shell.run_cell(
        FAILS.format(nbytes=4 * MIB),
        store_history=True,
    )

    report = shell.run_line_magic("gpu_mem", "-o -q")

    held = {each.name: each.reachable_bytes for each in report.holdings.holders}
    for name in ("parts", "Cache.kept", "closure", "leaf", "loss.grad_fn", "Out[2]"):
        assert held[name] >= 4 * MIB, name
    assert held["optimizer"] >= 12 * MIB
    assert any(name.startswith("lost in fails") for name in held)
    (total,) = (nbytes for _, nbytes in report.holdings.allocated_bytes)
    assert sum(nbytes for *_, nbytes in report.holdings.sums) == total
    assert report.holdings.partial is False


def test_leaks_come_back_to_the_byte(torch, shell):
    """What is told to be held without need is what letting go gives back."""
    shell.run_cell("torch.ones(3 << 18, device='cuda')", store_history=True)
    shell.run_cell(
        FAILS.format(nbytes=5 * MIB),
        store_history=True,
    )
    told = shell.run_line_magic("gpu_mem", "leaks -o -q")
    before = torch.cuda.memory_allocated()

    shell.run_line_magic("gpu_mem", "free -q")

    # A block may be larger than what was asked for, by what is not split off.
    sizes = {each.where: each.nbytes for each in told.leaks}
    assert sizes["Out[1]"] >= 3 * MIB
    assert sizes["lost in fails of the last error"] >= 5 * MIB
    assert before - torch.cuda.memory_allocated() == dict(told.total_bytes)[0]


def test_what_a_name_holds_alone_comes_back_with_it(torch, shell):
    """Deleting a name frees exactly its own share and that of its graph."""
    shell.run_cell(
        "leaf = torch.ones(1_000_003, device='cuda', requires_grad=True)\n"
        "loss = leaf.exp().sin().sum()\n"
        "big = torch.empty(21 << 20, dtype=torch.uint8, device='cuda')\n"
        "small = torch.empty(1, device='cuda')\n"
        "odd = torch.empty(3_000_001, dtype=torch.uint8, device='cuda')\n"
        "view = big[100:]"
    )

    for name in ("leaf", "loss", "big", "small", "odd", "view"):
        report = shell.run_line_magic("gpu_mem", "-o -q")
        own = sum(
            each.own_bytes
            for each in report.holdings.holders
            if each.name in (name, f"{name}.grad_fn")
        )
        before = torch.cuda.memory_allocated()
        shell.run_cell(f"del {name}")
        assert before - torch.cuda.memory_allocated() == own, name


def test_a_fit_is_kept(torch, shell):
    """What is said to fit does, from a hole or the driver; what is not does not."""
    free, total = torch.cuda.mem_get_info()
    shell.run_cell("hole = torch.ones(64 << 18, device='cuda'); del hole")

    def place(size):
        report = shell.run_line_magic("gpu_mem", f"fit {size} -o -q")
        return report.answers[0].place

    assert place("60MiB") == "hole"
    assert place(f"{free // 2}") == "driver"
    assert place(f"{2 * total}") == "nowhere"
    torch.empty(free // 2, dtype=torch.uint8, device="cuda")
