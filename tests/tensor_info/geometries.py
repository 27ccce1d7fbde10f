"""Random geometries of every kind that slicing makes, and their places one by one."""

import random

from gpumagic.tensor_info.geometry import Geometry, fresh_strides

STORAGE_ELEMENTS = 2**20


def of(size, stride=None, offset=0, itemsize=4):
    """A geometry; row-major if no strides are given."""
    return Geometry(
        tuple(size),
        fresh_strides(tuple(size)) if stride is None else tuple(stride),
        offset,
        itemsize,
    )


def seeded(seed):
    """Chance that is the same in every run."""
    return random.Random(seed)  # noqa: S311 -- to be repeated, not to be secret


def some(count, seed, **options):
    """So many random geometries, always the same for a seed."""
    chance = seeded(seed)
    return (one(chance, **options) for _ in range(count))


def one(chance, *, ndim=None, least=0):
    """A geometry as slicing makes it, or one with strides from nowhere."""
    dims = chance.choice((0, 1, 2, 2, 3, 3, 4, 4, 5)) if ndim is None else ndim
    counts = (1, 1, 2, 2, 2, 3, 3, 4, 5)
    size = [chance.choice(counts) for _ in range(dims)]
    if size and chance.random() < 0.05:
        size[chance.randrange(dims)] = least
    if chance.random() < 0.3:
        steps = (0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 60)
        stride = [chance.choice(steps) for _ in range(dims)]
    else:
        stride = _of_a_view(chance, size)
    return of(size, stride, chance.choice((0, 0, 1, 6)), chance.choice((1, 2, 4, 8)))


def _of_a_view(chance, size):
    """Strides of a view of a larger tensor: cut, strided, swapped, spread, windowed."""
    cuts = [(chance.choice((1, 1, 1, 2)), chance.choice((0, 0, 0, 1))) for _ in size]
    whole = [max(n, 1) * by + more for n, (by, more) in zip(size, cuts, strict=True)]
    order = list(range(len(size)))
    if chance.random() < 0.4:
        chance.shuffle(order)
    elif len(size) > 3 and chance.random() < 0.5:
        order = [0, *order[2:], 1]
    packed = fresh_strides(tuple(whole[dim] for dim in order))
    stride = [0] * len(size)
    for dim, step in zip(order, packed, strict=True):
        stride[dim] = step * cuts[dim][0]
    if size and chance.random() < 0.15:
        stride[chance.randrange(len(size))] = 0
    if size and chance.random() < 0.15:
        stride[chance.randrange(len(size))] = chance.choice(stride)
    if 1 in size and chance.random() < 0.3:
        stride[size.index(1)] = chance.choice((0, 1, 3, 77))
    return stride


def targets(chance, g):
    """A shape to view it as, which mostly has the right number of elements."""
    numel = g.numel
    if chance.random() < 0.1:
        return tuple(chance.choice((-1, -1, 0, 1, 2, 3, 5)) for _ in range(2))
    if not numel:
        return g.size if chance.random() < 0.3 else (chance.randrange(4), 0, 2)
    shape = []
    while numel > 1 and len(shape) < 4:
        parts = [n for n in range(1, numel + 1) if numel % n == 0]
        shape.append(chance.choice(parts))
        numel //= shape[-1]
    shape.append(numel)
    chance.shuffle(shape)
    if chance.random() < 0.1:
        shape[chance.randrange(len(shape))] = -1
    return tuple(shape)


def places(g):
    """Where each element lies, in the order of its indices."""
    found = [g.offset]
    for count, step in zip(g.size, g.stride, strict=True):
        found = [start + index * step for start in found for index in range(count)]
    return found


def bytes_of(g, start=0):
    """Every byte that an element lies in, the storage starting at `start`."""
    lows = {start + place * g.itemsize for place in places(g)}
    return {low + byte for low in lows for byte in range(g.itemsize)}


def flipped(chance, g):
    """The same places with some dims walked from the other end, as NumPy allows."""
    turned = [chance.random() < 0.5 for _ in g.size]
    pairs = list(zip(g.size, g.stride, turned, strict=True))
    far = sum((count - 1) * step for count, step, turn in pairs if turn)
    stride = tuple(-step if turn else step for _, step, turn in pairs)
    return Geometry(g.size, stride, g.offset + far, g.itemsize)
