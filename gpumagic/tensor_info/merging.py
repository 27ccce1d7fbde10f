"""Says whether `.view` takes a shape: which dims merge, what blocks, what works."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record
from gpumagic.tensor_info.geometry import dim_order, fresh_strides

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import Geometry

    Shape = tuple[int, ...]


@dataclass(frozen=True)
class Merge(Record):
    """Dims that are walked as one: `numel` elements, each `step` after the last."""

    dims: tuple[int, ...]
    numel: int
    step: int


@dataclass(frozen=True)
class View(Record):
    """Whether `.view(shape)` works, and if not, what is in its way."""

    shape: tuple[int, ...]  # with -1 filled in
    view: bool
    stride: tuple[int, ...] | None = None  # of the view
    reshape_copies_bytes: int = 0  # 0 where reshape gives a view
    blocked_new_dim: int | None = None
    blocked_between_old_dims: tuple[int, int] | None = None
    stride_found: int | None = None  # of the outer of the two old dims
    stride_needed: int | None = None
    last_index: tuple[int, ...] | None = None  # the last before the misfit
    last_element: int | None = None  # and its place in the storage
    next_element: int | None = None  # where the next element lies
    next_expected: int | None = None  # where a view would look for it
    shapes_that_work: tuple[tuple[int, ...], ...] = ()
    permutation_that_works: tuple[int, ...] | None = None  # x.permute(p).view(-1)
    problem: str = ""  # why the shape is no shape for this tensor at all


def merges(g: Geometry) -> tuple[Merge, ...]:
    """The dims in the fewest runs that are walked with one step each.

    Every dim with more than one index is in exactly one run, also if it is alone
    there; dims of size 1 are in none. An empty tensor has no runs.
    """
    if not g.numel:
        return ()
    runs: list[Merge] = []
    for dim in reversed(g.walked_dims):
        count, step = g.size[dim], g.stride[dim]
        if runs and step == runs[-1].numel * runs[-1].step:
            inner = runs.pop()
            runs.append(Merge((dim, *inner.dims), count * inner.numel, inner.step))
        else:
            runs.append(Merge((dim,), count, step))
    return tuple(reversed(runs))


def flat(g: Geometry) -> bool:
    """Whether `.view(-1)` works."""
    return len(merges(g)) <= 1


def view(g: Geometry, shape: Shape) -> View:
    """Whether `.view(shape)` works, with torch's strides, or what is in its way.

    One -1 is worked out. A shape that no tensor of this many elements can have is a
    finding with a `problem`.
    """
    runs = merges(g)
    problem = _what_is_wrong(g.numel, shape)
    if problem:
        others = _without_a_copy(g.size, runs, shape) if g.numel else ()
        return View(shape, view=False, problem=problem, shapes_that_work=others)
    known = math.prod(count for count in shape if count != -1)
    shape = tuple(g.numel // known if count == -1 else count for count in shape)
    if not g.numel:
        stride = g.stride if shape == g.size else fresh_strides(shape)
        return View(shape, view=True, stride=stride)
    return _laid_over(g, runs, shape)


def _laid_over(g: Geometry, runs: tuple[Merge, ...], shape: Shape) -> View:
    """Fit the new dims into the runs, both from the right.

    A new dim of size 1 gets the stride that torch gives it: that of the run it
    ends, and before the first run that of the last old dim, used or not.
    """
    inner = len(runs)  # the run that is being filled
    left, done = 1, 1
    step = g.stride[-1] if g.ndim else 1
    stride = [1] * len(shape)
    for dim in reversed(range(len(shape))):
        if shape[dim] != 1 and left == 1:
            inner -= 1
            left, done, step = runs[inner].numel, 1, runs[inner].step
        if left % shape[dim]:
            return _blocked(g, runs, shape, dim, inner)
        stride[dim] = step * done
        left //= shape[dim]
        done *= shape[dim]
    return View(shape, view=True, stride=tuple(stride))


def _blocked(
    g: Geometry, runs: tuple[Merge, ...], shape: Shape, dim: int, inner: int
) -> View:
    """Say where the walk along the new dim leaves the step of the inner run."""
    outer_dim, inner_dim = runs[inner - 1].dims[-1], runs[inner].dims[0]
    needed = runs[inner].numel * runs[inner].step
    by_step = sorted(range(g.ndim), key=lambda dim: -abs(g.stride[dim]))
    order = dim_order(g) or tuple(by_step)
    last = (0,) * (outer_dim + 1) + tuple(n - 1 for n in g.size[outer_dim + 1 :])
    return View(
        shape,
        view=False,
        reshape_copies_bytes=g.logical_bytes,
        blocked_new_dim=dim,
        blocked_between_old_dims=(outer_dim, inner_dim),
        stride_found=g.stride[outer_dim],
        stride_needed=needed,
        last_index=last,
        last_element=g.place(last),
        next_element=g.offset + g.stride[outer_dim],
        next_expected=g.offset + needed,
        shapes_that_work=_without_a_copy(g.size, runs, shape),
        permutation_that_works=order if flat(g.permuted(order)) else None,
    )


def _what_is_wrong(numel: int, shape: Shape) -> str:
    """Why no tensor of so many elements has this shape; empty if one can."""
    below = [count for count in shape if count < -1]
    known = math.prod(count for count in shape if count != -1)
    unknown = shape.count(-1)
    if unknown > 1:
        return f"{shape} has {unknown} times -1: only one dim can be worked out"
    if below:
        return f"{shape} has a dim of size {below[0]}: no dim can be negative"
    if unknown and known == 0 and numel == 0:
        return f"with 0 elements the -1 of {shape} could be any number"
    if unknown and (known == 0 or numel % known):
        return f"{numel} elements cannot be split as {shape}"
    if not unknown and known != numel:
        return f"{shape} has {known} elements and the tensor has {numel}"
    return ""


def _without_a_copy(
    size: Shape, runs: tuple[Merge, ...], asked: Shape
) -> tuple[Shape, ...]:
    """The shape with all dims merged that can be, with dims of size 1 and without."""
    starts = {run.dims[0]: run for run in runs}
    inside = {dim for run in runs for dim in range(run.dims[0] + 1, run.dims[-1] + 1)}
    merged = tuple(
        starts[dim].numel if dim in starts else count
        for dim, count in enumerate(size)
        if dim not in inside
    )
    found = merged, tuple(run.numel for run in runs)
    return tuple(each for each in dict.fromkeys(found) if each not in {size, asked})
