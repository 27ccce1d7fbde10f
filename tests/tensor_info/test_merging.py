"""What `.view` takes, against torch; and whether what is said of a refusal is true."""

import itertools

import pytest

from gpumagic.tensor_info.geometry import dim_order
from gpumagic.tensor_info.merging import flat, merges, view
from tests.tensor_info.geometries import (
    STORAGE_ELEMENTS,
    of,
    places,
    seeded,
    some,
    targets,
)

GEOMETRIES = 30_000


def _viewed(tensor, shape):
    """The view that torch gives, or the words of its refusal."""
    try:
        return tensor.view(shape)
    except RuntimeError as refusal:
        return str(refusal)


def _refused(count, seed):
    """Geometries with a shape for which a copy is needed."""
    chance = seeded(seed)
    for g in some(count, seed):
        shape = targets(chance, g)
        found = view(g, shape)
        if not found.view and not found.problem:
            yield g, found


def _tensor(g):
    torch = pytest.importorskip("torch")
    return torch.empty(STORAGE_ELEMENTS).as_strided(g.size, g.stride, g.offset)


def test_agrees_with_torch_on_every_view():
    """Whether a view works, its shape and its strides are as torch has them."""
    chance = seeded(3)
    torch = pytest.importorskip("torch")
    memory = torch.empty(STORAGE_ELEMENTS)
    answers = {"view": 0, "copy": 0, "problem": 0}
    for g in some(GEOMETRIES, 3):
        shape = targets(chance, g)
        real = _viewed(memory.as_strided(g.size, g.stride, g.offset), shape)
        found = view(g, shape)
        if isinstance(real, str):
            problem = "view size is not compatible" not in real
            assert (found.view, found.stride) == (False, None), (g, shape)
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
    """The misfit is real: the next element lies elsewhere than the inner dims lead."""
    for g, found in _refused(8_000, 5):
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


def test_the_shapes_and_the_permutation_offered_work():
    """Torch takes every shape that is offered, and the permuted flat view."""
    offered = permuted = 0
    for g, found in _refused(8_000, 6):
        tensor = _tensor(g)
        for shape in found.shapes_that_work:
            assert not isinstance(_viewed(tensor, shape), str), (g, shape)
            offered += 1
        if found.permutation_that_works is not None:
            order = found.permutation_that_works
            assert not isinstance(_viewed(tensor.permute(order), (-1,)), str)
            assert dim_order(g) in {order, None}
            permuted += 1
        elif g.ndim <= 3:
            orders = itertools.permutations(range(g.ndim))
            assert not any(flat(g.permuted(order)) for order in orders), g
    assert min(offered, permuted) > 200


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((5, 5), "(5, 5) has 25 elements and the tensor has 24"),
        ((-1, -1), "(-1, -1) has 2 times -1: only one dim can be worked out"),
        ((-1, 5), "24 elements cannot be split as (-1, 5)"),
        ((0, -1), "24 elements cannot be split as (0, -1)"),
        ((-2, 12), "(-2, 12) has a dim of size -2: no dim can be negative"),
        ((7,), "(7,) has 7 elements and the tensor has 24"),
    ],
)
def test_a_shape_that_cannot_be_is_a_problem(shape, words):
    """A shape that no tensor of so many elements has is refused, and others offered."""
    found = view(of((4, 6)), shape)
    assert (found.problem, found.view, found.stride) == (words, False, None)
    assert found.shape == shape
    assert found.shapes_that_work == ((24,),)


def test_as_large_as_it_likes():
    """A million million elements in twelve dims are explained like a few."""
    size = (10,) * 12
    found = view(of(size, tuple(10**dim for dim in range(12))), (-1,))
    assert found.reshape_copies_bytes == 4 * 10**12
    assert found.last_element == 9 * 10**11
    assert found.permutation_that_works == tuple(reversed(range(12)))
