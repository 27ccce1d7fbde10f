"""Where elements lie, against every place listed; layouts and views against torch."""

import itertools

import pytest

from gpumagic.tensor_info import geometry
from gpumagic.tensor_info.geometry import (
    dim_order,
    flat,
    fresh_strides,
    merges,
    view,
    warp_reads,
)
from tests.tensor_info.geometries import (
    STORAGE_ELEMENTS,
    flipped,
    of,
    places,
    seeded,
    some,
    targets,
)

torch = pytest.importorskip("torch")
MEMORY = torch.empty(STORAGE_ELEMENTS)
GEOMETRIES = 30_000


def tensors(count, seed, **options):
    """Random geometries, each with the tensor of torch that has it."""
    for g in some(count, seed, **options):
        yield g, MEMORY.as_strided(g.size, g.stride, g.offset)


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


def test_flags_and_orders_are_those_of_torch():
    """Contiguous, channels last, dense, and the order of dims: of every geometry."""
    is_dense = torch.ops.aten.is_non_overlapping_and_dense
    seen = set()
    for g, tensor in tensors(100_000, 7):
        assert fresh_strides(g.size) == torch.empty(g.size, device="meta").stride()
        channels = torch.channels_last_3d if g.ndim == 5 else torch.channels_last
        flags = (
            geometry.is_contiguous(g),
            geometry.is_channels_last(g),
            geometry.non_overlapping_and_dense(g),
        )
        assert flags == (
            tensor.is_contiguous(),
            tensor.is_contiguous(memory_format=channels),
            is_dense(tensor),
        ), g
        seen.add(flags)
        found = dim_order(g)
        if found and g.numel:
            expected = [dim for dim in tensor.dim_order() if g.size[dim] > 1]
            assert [dim for dim in found if g.size[dim] > 1] == expected, g
        assert bool(found) == (flags[2] and g.ndim > 0)
    assert len(seen) == 5


def test_convolutions_agree_on_the_format():
    """A convolution of one by one returns the format that the strides make it take."""
    formats = set()
    for g, tensor in tensors(600, 9, ndim=4, least=1):
        with torch.no_grad():
            out = torch.conv2d(tensor, torch.zeros(3, g.size[1], 1, 1))
        expected = geometry.treat_as(g)
        fresh = torch.empty(out.shape, memory_format=getattr(torch, expected))
        walked = [dim for dim, count in enumerate(out.shape) if count > 1]
        strides = [(out.stride(dim), fresh.stride(dim)) for dim in walked]
        assert all(found == wanted for found, wanted in strides), g
        formats.add(expected)
    assert len(formats) == 2


def _agrees(g, start):
    for read in warp_reads(g, start):
        step, lanes = g.stride[read.dim], min(32, g.size[read.dim])
        lows = [start + n * step * g.itemsize for n in range(lanes)]
        found = {low + byte for low in lows for byte in range(g.itemsize)}
        assert read.sectors == len({byte // 32 for byte in found}), (g, start)
        assert read.lines == len({byte // 128 for byte in found}), (g, start)
        assert (read.unique_bytes, read.lanes) == (len(found), lanes)
        assert read.fetched_bytes == 32 * read.sectors
        assert read.efficiency == len(found) / read.fetched_bytes


def test_full_warps_of_any_step_and_any_start():
    """32 lanes fetch what their bytes lie in, whatever the step, dtype and address."""
    chance = seeded(21)
    for g in some(8_000, 20):
        _agrees(flipped(chance, g), chance.choice((0, 64, 512, 4, 20, 7)))
    for _ in range(6_000):
        count = chance.choice((2, 31, 32, 33, 1000))
        item = chance.choice((1, 2, 4, 8, 16))
        g = of((count,), (chance.randint(-70, 70),), chance.randrange(64), item)
        _agrees(g, chance.choice((0, 4096, 4096 + item, 4096 + 3)))
    assert warp_reads(of((0, 3)), 0) == warp_reads(of(()), 0) == ()


# ------------------------------------------------------------------------- views


def _viewed(tensor, shape):
    """The view that torch gives, or the words of its refusal."""
    try:
        return tensor.view(shape)
    except RuntimeError as refusal:
        return str(refusal)


def test_agrees_with_torch_on_every_view():
    """Whether a view works, its shape and its strides are as torch has them."""
    chance = seeded(3)
    answers = {"view": 0, "copy": 0, "problem": 0}
    for g, tensor in tensors(GEOMETRIES, 3):
        shape = targets(chance, g)
        real, found = _viewed(tensor, shape), view(g, shape)
        if isinstance(real, str):
            problem = "view size is not compatible" not in real
            assert (found.view, found.stride) == (False, ()), (g, shape)
            assert bool(found.problem) == problem, (g, shape, real)
            answers["problem" if problem else "copy"] += 1
        else:
            assert found.stride == real.stride(), (g, shape)
            assert found.shape == tuple(real.shape), (g, shape)
            answers["view"] += 1
    assert min(answers.values()) > GEOMETRIES / 20


def test_flat_exactly_if_the_places_are_evenly_spaced():
    """`.view(-1)` works if and only if one step leads from each element to the next."""
    for g in some(10_000, 4):
        found = places(g)
        steps = {after - before for before, after in itertools.pairwise(found)}
        assert flat(g) == (len(steps) <= 1), g
        assert flat(g) == view(g, (-1,)).view


def test_what_is_said_of_a_refusal_holds():
    """The misfit is real, and torch takes the permuted flat view that is offered."""
    chance, permuted = seeded(5), 0
    for g, tensor in tensors(8_000, 5):
        found = view(g, targets(chance, g))
        if found.view or found.problem:
            continue
        in_order = places(g)
        indices = list(itertools.product(*map(range, g.size)))
        at = indices.index(found.last_index)
        assert in_order[at] == found.last_element
        assert in_order[at + 1] == found.next_element != found.next_expected
        outer, inner = found.blocked_between_old_dims
        assert set(g.size[outer + 1 : inner]) <= {1}
        assert g.stride[outer] == found.stride_found != found.stride_needed
        fitting = (*g.stride[:outer], found.stride_needed, *g.stride[outer + 1 :])
        run = next(run for run in merges(of(g.size, fitting)) if outer in run.dims)
        assert inner in run.dims
        if found.permutation_that_works:
            order = found.permutation_that_works
            assert not isinstance(_viewed(tensor.permute(order), (-1,)), str)
            permuted += 1
        elif g.ndim <= 3:
            orders = itertools.permutations(range(g.ndim))
            assert not any(flat(g.permuted(order)) for order in orders), g
    assert permuted > 200


def test_a_shape_that_cannot_be_is_a_problem():
    """A shape that no tensor of so many elements has is refused by its numbers."""
    words = "(5, 5) has 25 elements and the tensor has 24"
    assert view(of((4, 6)), (5, 5)).problem == words
    words = "24 elements cannot be split as (-1, 5)"
    assert view(of((4, 6)), (-1, 5)).problem == words


def test_as_large_as_it_likes():
    """A million million elements in twelve dims are explained like a few."""
    size = (10,) * 12
    found = view(of(size, tuple(10**dim for dim in range(12))), (-1,))
    assert found.reshape_copies_bytes == 4 * 10**12
    assert found.last_element == 9 * 10**11
    assert found.permutation_that_works == tuple(reversed(range(12)))
