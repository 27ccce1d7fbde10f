"""Where elements lie, against every place listed one by one."""

import pytest

from gpumagic.tensor_info.geometry import Geometry, fresh_strides
from tests.tensor_info.geometries import flipped, of, places, seeded, some


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


def test_a_place_by_its_index():
    """An element lies at the offset plus each index times its stride."""
    g = of((4, 6), (1, 10), offset=3, itemsize=2)
    assert g.place((2, 5)) == 3 + 2 + 50
    assert g.stride_bytes == (2, 20)
    assert g.logical_bytes == 48


def test_permuting_keeps_the_places():
    """In another order of the dims the same places are reached."""
    g = of((2, 3, 4), (1, 20, 5), offset=7)
    turned = g.permuted((1, 2, 0))
    assert turned.size == (3, 4, 2)
    assert sorted(places(turned)) == sorted(places(g))


def test_fresh_strides_are_those_of_a_new_tensor():
    """A new tensor of any size, empty ones included, has the strides that we say."""
    torch = pytest.importorskip("torch")
    for g in some(2_000, 2):
        assert fresh_strides(g.size) == torch.empty(g.size).stride()


def test_sizes_and_strides_belong_together():
    """As many strides as sizes are asked for."""
    with pytest.raises(ValueError, match="2 sizes, 1 strides"):
        Geometry((2, 3), (1,), 0, 4)
