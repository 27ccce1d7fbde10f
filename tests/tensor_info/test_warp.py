"""What a warp fetches, against the sectors of every byte that its lanes read."""

import pytest

from gpumagic.tensor_info.geometry import warp_reads
from tests.tensor_info.geometries import flipped, of, seeded, some


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
        assert read.requested_bytes == read.lanes * g.itemsize


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


@pytest.mark.parametrize(
    ("g", "dim", "pieces", "efficiency"),
    [
        (of((64, 64)), 1, (4, 1, 4), 1.0),
        (of((64, 64)), 0, (32, 32, 4), 0.125),
        (of((64, 32), (64, 2)), 1, (8, 2, 4), 0.5),
        (of((64, 64), itemsize=2), 0, (32, 32, 2), 0.0625),
        (of((64,), offset=1), 0, (5, 2, 4), 0.8),
        (of((64,), (0,)), 0, (1, 1, 1), 0.125),
    ],
)
def test_known_reads(g, dim, pieces, efficiency):
    """Rows, columns, steps, halves, a shifted start and a broadcast."""
    read = warp_reads(g, 0)[dim]
    assert (read.sectors, read.lines, read.ideal_sectors) == pieces
    assert read.efficiency == pytest.approx(efficiency)


def test_nothing_is_read_of_an_empty_tensor():
    """A tensor without elements or without dims has no dim to read along."""
    assert warp_reads(of((0, 3)), 0) == warp_reads(of(()), 0) == ()
