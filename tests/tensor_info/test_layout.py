"""The verdicts on layouts, against torch's own."""

import itertools

import pytest

from gpumagic.tensor_info import geometry
from gpumagic.tensor_info.geometry import fresh_strides
from tests.tensor_info.geometries import STORAGE_ELEMENTS, of, some


def _tensors(count, seed, **options):
    torch = pytest.importorskip("torch")
    memory = torch.empty(STORAGE_ELEMENTS)
    for g in some(count, seed, **options):
        yield g, memory.as_strided(g.size, g.stride, g.offset)


def _channels_last(torch, g):
    return torch.channels_last_3d if g.ndim == 5 else torch.channels_last


def test_flags_are_those_of_torch():
    """Contiguous, channels last, dense, canonical: as torch says of every geometry."""
    torch = pytest.importorskip("torch")
    is_dense = torch.ops.aten.is_non_overlapping_and_dense
    seen = set()
    for g, tensor in _tensors(100_000, 7):
        flags = (
            geometry.is_contiguous(g),
            geometry.is_channels_last(g),
            geometry.non_overlapping_and_dense(g),
        )
        assert flags == (
            tensor.is_contiguous(),
            tensor.is_contiguous(memory_format=_channels_last(torch, g)),
            is_dense(tensor),
        ), g
        assert geometry.canonical(g) == (fresh_strides(g.size) == tensor.stride())
        seen.add(flags)
    assert len(seen) == 5


def test_dim_order_is_that_of_torch():
    """The order of the dims, and whether it is the only one, are as torch has them."""
    unique = 0
    for g, tensor in _tensors(12_000, 8):
        if not geometry.non_overlapping_and_dense(g):
            assert geometry.dim_order(g) is geometry.dim_order_unique(g) is None
            continue
        assert geometry.dim_order(g) == tuple(tensor.dim_order()), g
        try:
            tensor.dim_order(ambiguity_check=True)
        except RuntimeError:
            assert geometry.dim_order_unique(g) is False, g
        else:
            assert geometry.dim_order_unique(g) is True, g
            unique += 1
    assert unique > 1000


def test_convolutions_agree_on_the_format():
    """A convolution of one by one returns the format that the strides make it take."""
    torch = pytest.importorskip("torch")
    formats = set()
    for g, tensor in _tensors(600, 9, ndim=4, least=1):
        with torch.no_grad():
            out = torch.conv2d(tensor, torch.zeros(3, g.size[1], 1, 1))
        expected = geometry.treat_as(g)
        fresh = torch.empty(out.shape, memory_format=getattr(torch, expected))
        walked = [dim for dim, count in enumerate(out.shape) if count > 1]
        strides = [(out.stride(dim), fresh.stride(dim)) for dim in walked]
        assert all(found == wanted for found, wanted in strides), g
        formats.add(expected)
    assert len(formats) == 2


@pytest.mark.parametrize("ndim", [3, 4, 5])
def test_the_format_that_operators_take_is_as_torch_suggests(ndim):
    """Torch's own rule, where this torch offers it, suggests the same format."""
    torch = pytest.importorskip("torch")
    suggested = getattr(torch._prims_common, "suggest_memory_format", None)
    if suggested is None:
        pytest.skip("this torch does not offer its rule to Python")
    for g, tensor in _tensors(6_000, 11, ndim=ndim):
        assert f"torch.{geometry.treat_as(g)}" == str(suggested(tensor)), g


def test_only_images_and_volumes_have_channels():
    """Tensors of other ranks are never channels last, whatever their strides."""
    for g in itertools.chain(some(1_000, 10, ndim=2), some(1_000, 10, ndim=3)):
        assert not geometry.is_channels_last(g)
        assert geometry.treat_as(g) == "contiguous_format"
        assert geometry.ambiguity(g) is None


@pytest.mark.parametrize(
    ("size", "stride", "words"),
    [
        ((2, 1, 4, 5), (20, 20, 5, 1), "C = 1: with one channel"),
        ((2, 1, 4, 5), (20, 1, 5, 1), "C = 1: with one channel"),
        ((2, 3, 1, 1), (3, 1, 3, 3), "H = W = 1: with one pixel"),
        ((2, 3, 1, 1, 1), (3, 1, 3, 3, 3), "D = H = W = 1: with one pixel"),
        ((1, 3, 4, 5), (3, 1, 15, 3), "N = 1 with a stride of 3, below 60"),
        ((0, 3, 4, 5), (60, 1, 15, 3), "it has no elements"),
    ],
)
def test_ambiguity_has_a_cause(size, stride, words):
    """The sizes that make both formats fit are named, or the stride that is misread."""
    assert geometry.ambiguity(of(size, stride)).startswith(words)


def test_ambiguous_where_the_flags_or_the_operators_differ():
    """A cause is given if and only if both flags are set, or operators disagree."""
    causes = 0
    for g in some(20_000, 22, ndim=4):
        last, row_major = geometry.is_channels_last(g), geometry.is_contiguous(g)
        unused = geometry.treat_as(g) == "contiguous_format"
        assert (geometry.ambiguity(g) is not None) == (last and (row_major or unused))
        causes += geometry.ambiguity(g) is not None
    assert causes > 100


def test_plain_formats_are_not_ambiguous():
    """An image with channels and pixels is one or the other."""
    assert geometry.ambiguity(of((2, 3, 4, 5))) is None
    assert geometry.ambiguity(of((2, 3, 4, 5), (60, 1, 15, 3))) is None


def test_a_picture_taken_out_of_a_batch_and_put_back():
    """`batch[0][None]` keeps the flag, but operators take it for row-major."""
    torch = pytest.importorskip("torch")
    batch = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    picture = batch[0][None]
    g = of(picture.shape, picture.stride())
    assert geometry.is_channels_last(g)
    assert geometry.treat_as(g) == "contiguous_format"
    assert "not for operators" in geometry.ambiguity(g)


def test_canonical_is_more_than_contiguous():
    """Odd strides of dims of size 1 are allowed to contiguous tensors only."""
    odd = of((1, 4), (99, 1))
    assert geometry.is_contiguous(odd)
    assert not geometry.canonical(odd)
    assert geometry.canonical(of((1, 4)))
