from __future__ import annotations

import warnings

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import describe, explain_view

torch = pytest.importorskip("torch")


def quietly(make):
    """Make a tensor of a kind that torch warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def grid():
    """24 numbers, four rows of six."""
    return torch.arange(24.0).reshape(4, 6)


def rows(layout):
    """A nested tensor of four and two rows."""
    return quietly(
        lambda: torch.nested.nested_tensor([grid(), grid()[:2]], layout=layout)
    )


def fake():
    """A tensor that only pretends."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3, 4)


def emptied():
    """A tensor whose storage was taken away."""
    x = torch.ones(4, 4)
    x.untyped_storage().resize_(0)
    return x


WITHOUT_GEOMETRY = {
    "sparse tensor (COO)": lambda: grid().to_sparse(),
    "sparse tensor (BSC)": lambda: quietly(lambda: grid().to_sparse_bsc((2, 2))),
    "mkldnn tensor": lambda: grid().to_mkldnn(),
    "nested tensor": lambda: rows(torch.jagged),
    "uninitialised parameter": torch.nn.parameter.UninitializedParameter,
}
WITHOUT_MEMORY = {
    "meta tensor": lambda: torch.empty(3, 4, device="meta"),
    "fake tensor": fake,
    "tensor without storage": emptied,
}


@pytest.mark.parametrize("kind", WITHOUT_GEOMETRY)
def test_what_has_no_strides_shows_none(kind):
    """A kind without strides has one line, its dtype, and no made-up geometry."""
    found = describe(WITHOUT_GEOMETRY[kind]())

    assert found.kind == kind
    assert len(found.remarks) == 1
    assert found.dtype == "float32"
    assert found.stride is None
    assert found.is_contiguous is None
    assert found.overlap is None


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_what_has_no_memory_shows_its_geometry_and_no_address(kind):
    """Sizes and strides are true where there is no memory; there is no address."""
    found = describe(WITHOUT_MEMORY[kind]())

    assert found.kind == kind
    assert len(found.remarks) == 1
    assert found.is_contiguous
    assert found.address is None


def test_a_sparse_tensor_is_described_by_what_it_is_made_of():
    """The indices and the values of a sparse tensor have reports of their own."""
    found = describe(grid().to_sparse(), expression="s")

    assert [each.expression for each in found.inner] == [
        "s: _indices()",
        "s: _values()",
    ]
    assert found.inner[1].size == (23,)


class Wrapper(torch.Tensor):
    """Stands for a larger tensor than it holds."""

    @staticmethod
    def __new__(cls, part):
        """A tensor without memory."""
        return torch.Tensor._make_wrapper_subclass(cls, (8, 6), dtype=part.dtype)

    def __init__(self, part):
        self.part = part
        self.mesh = memoryview(b"no tensor, although it has an ndim")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"looking has run {func}")


def test_a_wrapper_shows_what_it_wraps_and_runs_nothing():
    """The strides of a wrapper stand for something else; its part is shown."""
    found = describe(Wrapper(grid()))

    assert found.kind == "wrapper (Wrapper)"
    assert (found.size, found.is_contiguous) == ((8, 6), None)
    assert [each.size for each in found.inner] == [(4, 6)]


def test_a_geometry_beyond_its_storage_is_a_warning():
    """Elements behind the end of the storage are said not to be safe."""
    x = torch.zeros(4, 4)
    x.untyped_storage().resize_(32)

    found = describe(x)

    assert "reading it is not safe: it needs 64 B, and its storage has 32 B" in str(
        found
    )
    assert found.unused_storage_bytes is None


NO_TENSORS = {
    "None": (lambda: None, "None", "return nothing"),
    "number": (lambda: 5, "number 5", "no memory layout"),
    "tuple": (lambda: (3, grid()), "a tuple with a tensor in it", "x[1]"),
    "empty list": (list, "a list without a tensor", "name another"),
    "module": (lambda: torch.nn.Linear(2, 3), "(Linear)", "x.weight, x.bias"),
}


@pytest.mark.parametrize("case", NO_TENSORS)
def test_what_is_no_tensor_is_named_with_what_to_type(case):
    """Anything else is refused in two lines: what it is, and what to type."""
    make, problem, hint = NO_TENSORS[case]

    with pytest.raises(GpuMagicError) as caught:
        describe(make(), expression="x")

    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_views_of_a_kind_without_strides_are_refused():
    """A view of a sparse tensor is refused by its kind."""
    with pytest.raises(GpuMagicError, match="sparse"):
        explain_view(grid().to_sparse(), (24,))
