from __future__ import annotations

import gc
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
    compare(x, x, warp=True)
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
    """A copy-on-write tensor is not copied by looking."""
    x = grid()
    lazy = torch._lazy_clone(x)

    look(lazy)
    found = describe(lazy)

    assert torch._C._is_cow_tensor(lazy)
    assert torch._C._is_cow_tensor(x)
    assert found.address == torch._C._data_address(x)


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
    """What was looked at dies with its last name, also beside what is refused."""
    x = grid()
    gone = weakref.ref(x)
    gc.disable()
    try:
        kept = (
            describe(x, values=True),
            compare(x, None, x.to_sparse()),
            explain_view(x, 24),
            aliases({"x": x, "y": x}),
            overview([x], values=True),
        )
        del x
        assert gone() is None
    finally:
        gc.enable()
    assert len(kept[1].remarks) == 1


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


@pytest.mark.parametrize(
    "name",
    ["_C._data_address", "_C._storage_Use_Count", "_C._functorch"],
)
def test_a_private_name_that_is_missing_costs_its_figure_alone(monkeypatch, name):
    """Without one of torch's private names all else is told."""
    x = grid()
    expected = describe(x)
    monkeypatch.delattr(f"torch.{name}")

    found = describe(x)

    assert found.address in {expected.address, None}
    assert (found.stride, found.remarks) == (expected.stride, ())
    assert aliases({"x": x, "y": x.t()}).complete
