"""What tensors and arrays of every kind say of themselves, held to torch."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import compare, describe, explain_view

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def grid():
    """24 numbers, four rows of six."""
    return torch.arange(24.0).reshape(4, 6)


def test_random_views_agree_with_torch():
    """Whatever views are stacked, the figures are torch's own."""
    chance = random.Random(7)  # noqa: S311 - not for secrets
    for _ in range(300):
        x = torch.empty([chance.randint(1, 4) for _ in range(4)])
        for _ in range(chance.randint(0, 4)):
            dim, other = chance.randrange(4), chance.randrange(4)
            x = chance.choice(
                [
                    x.transpose(dim, other),
                    x.narrow(dim, 0, max(1, x.size(dim) - 1)),
                    x[::2],
                    x.contiguous(memory_format=torch.channels_last),
                    x[:1].expand(3, -1, -1, -1),
                ]
            )
        found = describe(x)
        assert (found.size, found.stride) == (tuple(x.size()), x.stride())
        assert found.geometry.offset == x.storage_offset()
        assert found.address == x.data_ptr()
        assert found.is_contiguous == x.is_contiguous()
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        assert found.is_channels_last == channels_last
        expanded = [
            n > 1 and not step for n, step in zip(x.shape, x.stride(), strict=True)
        ]
        assert found.overlaps_itself is any(expanded)


def test_random_pairs_share_what_their_addresses_share():
    """The bytes in common are those of the elements that both can reach."""
    chance = random.Random(3)  # noqa: S311 - not for secrets
    places = torch.arange(60, dtype=torch.int32)
    for _ in range(300):
        one, other = (
            places.as_strided(
                [chance.randint(1, 3) for _ in range(3)],
                [chance.randint(0, 7) for _ in range(3)],
                chance.randint(0, 10),
            )
            for _ in range(2)
        )
        common = set(one.flatten().tolist()) & set(other.flatten().tolist())
        assert compare(one, other).pairs[0].shared_bytes == len(common) * 4


def test_numpy_shares_memory_over_another_storage():
    """A tensor made of an array is another storage at the same address."""
    array = np.zeros(8, dtype=np.float32)
    made, later = torch.from_numpy(array), torch.from_numpy(array[2:4])

    for other in (array[2:4], later):
        (found,) = compare(made, other).pairs
        assert found.storage == "two over one memory"
        assert (found.relation, found.shared_bytes) == ("contains", 8)
    assert compare(made[2:4], later).pairs[0].relation == "identical"
    assert compare(made[:2], later).pairs[0].relation == "disjoint"


def test_what_has_no_strides_has_no_layout_to_compare():
    """Of equal sizes alone nothing follows; strides have to be known of both."""
    x = grid()

    others = (x[0, 0], x[:2], x.to_sparse(), torch.nn.UninitializedParameter())
    found = [compare(x, other).pairs[0].same_layout for other in others]
    assert found == [False, False, None, None]


def test_nothing_without_an_address_is_said_to_share():
    """Empty and meta tensors all claim address 0: neither is known to be read."""
    for x in (torch.zeros(0, 3), torch.zeros(3, device="meta")):
        (found,) = compare(x, torch.zeros_like(x)).pairs
        assert found.storage == "two"
        assert found.elements_overlap is not True
        assert (describe(x).address, describe(x).warp_along_dim) == (None, ())


def test_a_numpy_array_has_strides_in_elements_and_keeps_its_own():
    """A numpy slice has an offset into the array that owns its memory."""
    owner = np.arange(24, dtype=np.int16).reshape(4, 6)
    records = np.zeros(4, dtype=[("flag", "i1"), ("value", "f4")])

    found, odd = describe(owner[1:, ::2]), describe(records["value"])

    assert found.kind == "numpy array"
    assert (found.dtype, found.device, found.itemsize) == ("int16", "cpu", 2)
    assert found.stride == (6, 2)
    assert (found.geometry.offset, found.storage_bytes) == (6, 48)
    assert found.address == owner.ctypes.data + 12
    assert describe(np.zeros(4).view(np.uint8)).storage_bytes == 32
    assert (odd.stride, odd.is_contiguous, odd.storage_bytes) == (None, None, 20)
    assert "no multiples of its itemsize" in odd.remarks[0]
    assert ": 4 values, " in describe(records["value"], values=True).headline


def test_what_is_to_be_typed_of_an_array_are_methods_of_numpy():
    """Its `.view` takes a dtype, and it has neither `.contiguous` nor `.clone`."""
    x = np.arange(24.0).reshape(4, 6)

    found = explain_view(x.T, 24, expression="x")
    (note,) = describe(np.zeros(10_000)[:3], expression="x").drawing().notes

    assert " transposed numpy array, not contiguous; .copy() " in describe(x.T).headline
    assert " a reversed numpy array, " in describe(x[::-1]).headline
    assert note.hint == "x = x.copy()"
    assert found.headline == "x.reshape(24) copies 192 B"
    assert "x.transpose(1, 0).reshape(-1)" in str(found)


def test_arrays_need_no_torch():
    """A numpy array is described in a process where nobody has imported torch."""
    code = (
        "import sys, numpy as np\n"
        "from gpumagic.tensor_info import describe\n"
        "assert describe(np.zeros((2, 3)).T, values=True).stride == (1, 3)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def quietly(make):
    """Make a tensor of a kind that torch warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


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
    "nested tensor": lambda: quietly(
        lambda: torch.nested.nested_tensor([grid(), grid()[:2]], layout=torch.jagged)
    ),
    "uninitialised parameter": torch.nn.parameter.UninitializedParameter,
}
WITHOUT_MEMORY = {
    "meta tensor": lambda: torch.empty(3, 4, device="meta"),
    "fake tensor": fake,
    "tensor without storage": emptied,
}


@pytest.mark.parametrize("kind", [*WITHOUT_GEOMETRY, *WITHOUT_MEMORY])
def test_what_has_no_strides_or_no_memory_claims_none(kind):
    """A kind has one line, its dtype, and neither made-up geometry nor address."""
    found = describe({**WITHOUT_GEOMETRY, **WITHOUT_MEMORY}[kind]())

    assert (found.kind, found.dtype) == (kind, "float32")
    assert len(found.remarks) == 1
    assert found.address is None
    strided = kind in WITHOUT_MEMORY
    assert (found.stride is not None) is strided
    assert found.is_contiguous is (True if strided else None)


def test_a_sparse_tensor_is_described_by_what_it_is_made_of():
    """The indices and the values have reports of their own; a view is refused."""
    found = describe(grid().to_sparse(), expression="s")

    assert [each.expression for each in found.inner] == [
        "s: _indices()",
        "s: _values()",
    ]
    assert found.inner[1].size == (23,)
    with pytest.raises(GpuMagicError, match="sparse"):
        explain_view(grid().to_sparse(), (24,))


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
