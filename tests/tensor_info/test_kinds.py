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
    "sparse tensor (CSR)": lambda: quietly(grid().to_sparse_csr),
    "sparse tensor (BSC)": lambda: quietly(lambda: grid().to_sparse_bsc((2, 2))),
    "mkldnn tensor": lambda: grid().to_mkldnn(),
    "nested tensor (strided)": lambda: rows(torch.strided),
    "nested tensor (jagged)": lambda: rows(torch.jagged),
    "uninitialised parameter": torch.nn.parameter.UninitializedParameter,
}
WITHOUT_MEMORY = {
    "functional tensor": lambda: torch._to_functional_tensor(grid()),
    "meta tensor": lambda: torch.empty(3, 4, device="meta"),
    "fake tensor": fake,
    "zero tensor": lambda: torch._efficientzerotensor((3, 4)),
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
    assert (found.address, found.warp_base) == (None, "unknown")


def test_a_sparse_tensor_is_described_by_what_it_is_made_of():
    """The indices and the values of a sparse tensor have reports of their own."""
    found = describe(grid().to_sparse(), expression="s")

    assert [each.expression for each in found.inner] == [
        "s: _indices()",
        "s: _values()",
    ]
    assert found.inner[1].size == (23,)


def test_jagged_rows_lead_to_their_values():
    """A jagged tensor says that its size has a symbol, and shows its values."""
    found = describe(rows(torch.jagged))

    assert "symbols" in found.remarks[0]
    assert found.inner[0].size == (6, 6)


def test_nested_sizes_are_listed():
    """A nested tensor without common strides lists the sizes of its parts."""
    assert "4 x 6, 2 x 6" in describe(rows(torch.strided)).remarks[0]


@pytest.mark.parametrize("wrap", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_inside_a_transform_the_tensor_within_is_shown(wrap):
    """Inside of vmap or grad the memory is that of the tensor within."""
    x, seen = grid(), []

    def look(part):
        seen.append(describe(part))
        return part.sum()

    wrap(look)(x)

    (found,) = seen
    assert "inside" in found.kind
    assert found.address is None
    assert found.inner[0].address == x.data_ptr()


class Wrapper(torch.Tensor):
    """Stands for a larger tensor than it holds."""

    @staticmethod
    def __new__(cls, part):
        """A tensor without memory."""
        return torch.Tensor._make_wrapper_subclass(cls, (8, 6), dtype=part.dtype)

    def __init__(self, part):
        self.part = part
        self.mesh = memoryview(b"no tensor, although it has an ndim")
        self.placements = ["in two halves"]

    def __tensor_flatten__(self):
        """What it is made of, by name."""
        return ["part", "mesh"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"looking has run {func}")


def test_a_wrapper_shows_what_it_wraps_and_runs_nothing():
    """The strides of a wrapper stand for something else; its part is shown."""
    found = describe(Wrapper(grid()))

    assert found.kind == "wrapper (Wrapper)"
    assert (found.size, found.is_contiguous) == ((8, 6), None)
    assert "in two halves" in found.remarks[0]
    assert [each.size for each in found.inner] == [(4, 6)]


class Subclass(torch.Tensor):
    """A subclass whose every function is overridden."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"looking has called {func}")


def test_overrides_of_a_subclass_are_not_called():
    """A subclass is described without a call of its `__torch_function__`."""
    found = describe(grid().as_subclass(Subclass))

    assert found.kind == "tensor (Subclass)"
    assert found.stride == (6, 1)


def test_bits_that_are_read_lazily_are_told():
    """A conjugate or a negative view has its bit set, and the same memory."""
    x = torch.ones(3, dtype=torch.complex64)

    assert describe(x.conj()).conj_bit
    assert describe(x.conj().imag).neg_bit
    assert describe(x.conj()).address == x.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("uint4", "each value of 4 bits"), ("bits4x2", "packs 2 values")],
)
def test_dtypes_below_a_byte_are_explained(dtype, words):
    """A dtype of fewer than eight bits says what one element is."""
    found = describe(torch.empty(4, dtype=getattr(torch, dtype)))

    assert words in found.remarks[0]
    assert found.itemsize == 1


def test_a_parameter_is_called_one():
    """A parameter is no plain tensor in the report."""
    assert describe(torch.nn.Parameter(grid())).kind == "parameter"


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
    "list": (lambda: [grid(), 3], "a list with 1 tensor among 2", "x[0]"),
    "tuple": (lambda: (grid(),) * 3, "a tuple of 3 tensors", "x[0]"),
    "dict": (lambda: {"a": grid()}, "a dict of 1 tensor", "x['a']"),
    "empty list": (list, "a list without a tensor", "name one"),
    "module": (lambda: torch.nn.Linear(2, 3), "(Linear) with 2", "x.weight, x.bias"),
    "numbered module": (
        lambda: torch.nn.Sequential(torch.nn.Linear(2, 3)),
        "with 2 parameters",
        "x.get_parameter('0.weight')",
    ),
    "text": (lambda: "word", "of type str", "type the name"),
    "class": (lambda: torch.Tensor, "of type", "type the name"),
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
