"""Where elements lie, against every place listed; layouts against torch's own verdicts.

And what a warp fetches, against the sectors of every byte that its lanes read.
"""

import pytest

from gpumagic.tensor_info import geometry
from gpumagic.tensor_info.geometry import fresh_strides, warp_reads
from tests.tensor_info.geometries import (
    STORAGE_ELEMENTS,
    flipped,
    of,
    places,
    seeded,
    some,
)


def test_first_last_and_span():
    """The lowest and the highest place are found also where dims run backwards."""
    chance = seeded(1)
    for plain in some(3_000, 1):
        g = flipped(chance, plain)
        found = places(g)
        assert g.first_element == min(found, default=None)
        assert g.last_element == max(found, default=None)
        assert g.numel == len(found)
        span = max(found) - min(found) + 1 if found else 0
        assert (g.span_elements, g.span_bytes) == (span, span * g.itemsize)


def test_fresh_strides_are_those_of_a_new_tensor():
    """A new tensor of any size, empty ones included, has the strides that we say."""
    torch = pytest.importorskip("torch")
    for g in some(2_000, 2):
        assert fresh_strides(g.size) == torch.empty(g.size).stride()


def _tensors(count, seed, **options):
    torch = pytest.importorskip("torch")
    memory = torch.empty(STORAGE_ELEMENTS)
    for g in some(count, seed, **options):
        yield g, memory.as_strided(g.size, g.stride, g.offset)


def _channels_last(torch, g):
    return torch.channels_last_3d if g.ndim == 5 else torch.channels_last


def test_flags_are_those_of_torch():
    """Contiguous, channels last, dense: as torch says of every geometry."""
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
        seen.add(flags)
    assert len(seen) == 5


def test_dim_order_is_that_of_torch():
    """The order of the dims that take a step is as torch has it."""
    for g, tensor in _tensors(12_000, 8):
        found = geometry.dim_order(g)
        if found is None:
            assert not geometry.non_overlapping_and_dense(g)
            continue
        expected = [dim for dim in tensor.dim_order() if g.size[dim] > 1]
        assert [dim for dim in found if g.size[dim] > 1] == expected or not g.numel, g


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


def _bytes_read(g, dim, base_address):
    lows = (
        base_address + (g.offset + lane * g.stride[dim]) * g.itemsize
        for lane in range(min(32, g.size[dim]))
    )
    return {low + byte for low in lows for byte in range(g.itemsize)}


def _agrees(g, base_address):
    for read in warp_reads(g, base_address):
        found = _bytes_read(g, read.dim, base_address)
        assert read.sectors == len({byte // 32 for byte in found}), (g, base_address)
        assert read.lines == len({byte // 128 for byte in found}), (g, base_address)
        assert read.unique_bytes == len(found)
        assert read.fetched_bytes == 32 * read.sectors
        assert read.efficiency == len(found) / read.fetched_bytes
        assert read.lanes == min(32, g.size[read.dim])


def test_sectors_and_lines_are_those_of_the_bytes():
    """Sectors, lines and bytes of small tensors are as listing the bytes gives them."""
    chance = seeded(20)
    for g in some(8_000, 20):
        _agrees(flipped(chance, g), chance.choice((0, 64, 512, 4, 20, 7)))


def test_full_warps_of_any_step_and_any_start():
    """32 lanes fetch what their bytes lie in, whatever the step, dtype and address."""
    chance = seeded(21)
    for _ in range(6_000):
        count = chance.choice((2, 31, 32, 33, 1000))
        item = chance.choice((1, 2, 4, 8, 16))
        g = of((count,), (chance.randint(-70, 70),), chance.randrange(64), item)
        _agrees(g, chance.choice((0, 4096, 4096 + item, 4096 + 3)))


def test_nothing_is_read_of_an_empty_tensor():
    """A tensor without elements or without dims has no dim to read along."""
    assert warp_reads(of((0, 3)), 0) == warp_reads(of(()), 0) == ()
