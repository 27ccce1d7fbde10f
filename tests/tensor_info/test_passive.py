from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from gpumagic.tensor_info import aliases, compare, describe, explain_view, overview

torch = pytest.importorskip("torch")


def grid():
    """24 numbers in a storage of their own."""
    return torch.arange(24.0).clone().view(4, 6)


def look(x):
    """Everything that can be asked without reading values."""
    describe(x)
    explain_view(x, (-1,))
    compare(x, x, view=(-1,), warp=True)
    aliases({"x": x, "xs": [x], "Out": {1: x}})
    overview([x, {"x": x}])


def holders(x):
    """How many tensors torch counts on a storage."""
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def test_versions_and_counts_stay_as_they_were():
    """Looking changes neither the version nor the use counts of a tensor."""
    x = grid()
    before = x._version, holders(x), sys.getrefcount(x)

    look(x)
    look(x.t())

    assert (x._version, holders(x), sys.getrefcount(x)) == before


def test_a_lazy_copy_stays_lazy():
    """A copy-on-write tensor is said to be one, and is not copied by looking."""
    x = grid()
    lazy = torch._lazy_clone(x)

    look(lazy)
    found = describe(lazy)

    assert torch._C._is_cow_tensor(lazy)
    assert torch._C._is_cow_tensor(x)
    assert found.address == torch._C._data_address(x)
    assert any("lazy copy" in line for line in found.remarks)


def test_no_operation_runs():
    """The profiler of torch sees no operation, and so no allocation, while looking."""
    x = grid()
    views = x, x.t(), x[:, ::2], x.detach()
    with torch.profiler.profile(profile_memory=True) as trace:
        for each in views:
            look(each)

    names = {event.name for event in trace.events()}
    assert not [name for name in names if name.startswith("aten::")]


def test_nothing_is_kept_alive():
    """A report holds no tensor: what was looked at dies with its last name."""
    x = grid()
    gone = weakref.ref(x)
    gc.disable()
    try:
        kept = describe(x), compare(x, x, view=(24,)), aliases({"x": x, "y": x})
        del x
        assert gone() is None
    finally:
        gc.enable()
    assert kept


def test_what_is_refused_beside_a_tensor_keeps_nothing_alive():
    """Refusals in a comparison are words: no frame with the tensors survives."""
    x = grid()
    gone = weakref.ref(x)
    gc.disable()
    try:
        kept = compare(x, None, x.to_sparse(), view=(24,))
        del x
        assert gone() is None
    finally:
        gc.enable()
    assert len(kept.remarks) == 2


def test_a_graph_is_neither_grown_nor_needed():
    """Under no_grad and in inference mode the figures are the same as outside."""
    x = grid().requires_grad_()
    outside = describe(x)

    with torch.no_grad():
        assert describe(x) == outside
    with torch.inference_mode():
        assert describe(x) == outside
        assert describe(torch.zeros(3)).is_contiguous
    assert outside.requires_grad


def test_functionalised_code_can_look():
    """Inside of functionalize a tensor is described by the one within."""
    seen = []

    def watched(x):
        seen.append(describe(x))
        return x + 1

    torch.func.functionalize(watched)(grid())

    assert seen[0].size == (4, 6)
    assert seen[0].inner


PRIVATE = {
    "_C._data_address": "_data_address",
    "_C._storage_Use_Count": "",
    "_C._is_cow_tensor": "_is_cow_tensor",
    "_C._functorch": "",
    "_C.DisableTorchFunction": "",
    "_is_functional_tensor": "",
    "_from_functional_tensor": "",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_that_is_missing_costs_one_remark_at_most(monkeypatch, name):
    """Without one of torch's private names all else is told, and what is not is."""
    x = grid()
    expected = describe(x)
    monkeypatch.delattr(f"torch.{name}")

    found = describe(x)

    assert found.address == expected.address
    assert found.to_dict().keys() == expected.to_dict().keys()
    said = PRIVATE[name]
    assert len(found.remarks) == bool(said)
    assert all(said in line for line in found.remarks)


def test_without_any_safe_pointer_a_lazy_copy_has_no_address(monkeypatch):
    """Where asking for the address would copy, there is none, and it stays lazy."""
    lazy = torch._lazy_clone(grid())
    is_lazy = torch._C._is_cow_tensor
    monkeypatch.delattr(torch._C, "_data_address")
    monkeypatch.setattr(torch.Tensor, "const_data_ptr", None, raising=False)

    found, plain = describe(lazy), grid()

    assert found.address is None
    assert is_lazy(lazy)
    assert describe(plain).address == plain.data_ptr()


def test_hidden_holders_need_a_private_name(monkeypatch):
    """Without torch's count hidden holders are unknown, and that is said."""
    x = grid()
    monkeypatch.delattr(torch._C, "_storage_Use_Count")

    found = aliases({"x": x, "y": x.t()})

    assert found.groups[0].hidden_holders is None
    assert any("_storage_Use_Count" in line for line in found.remarks)


SIMULATED = """
import torch
import gpumagic
from gpumagic.tensor_info import aliases, compare, describe

with gpumagic.simulate("h100") as machine:
    x = torch.zeros(4, 6, device="sim")
    view = x[1:]
    before = torch.sim.memory_stats(), torch._C._storage_Use_Count(
        x.untyped_storage()._cdata
    )
    found = describe(view)
    pair = compare(x, view).pairs[0]
    groups = aliases({"x": x, "view": view}).groups
    after = torch.sim.memory_stats(), torch._C._storage_Use_Count(
        x.untyped_storage()._cdata
    )
    assert before == after
    assert found.on_accelerator and found.simulated
    assert found.device == "sim:0"
    block = view.untyped_storage()._gpumagic.life.block
    assert found.address == block.address + 24
    assert (pair.same_storage, pair.relation) == (True, "contains")
    assert len(groups) == 1 and groups[0].hidden_holders == 0
    assert describe(x, values=True).values.zero_count == 24
    assert "waited for it" in str(describe(x, values=True).show("how"))
"""


def test_tensors_of_the_simulated_gpu_are_seen_where_they_lie():
    """A simulated tensor has its made-up address, and looking allocates nothing."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SIMULATED],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert run.returncode == 0, run.stderr
