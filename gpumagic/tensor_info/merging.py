"""Whether `.view` takes a shape: which dims are walked as one, and what blocks."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.tensor_info import shapes
from gpumagic.tensor_info.geometry import Geometry, fresh_strides
from gpumagic.tensor_info.layout import dim_order
from gpumagic.tensor_info.report import Merge


@dataclass(frozen=True)
class ViewFinding:
    """What `.view(shape)` does; the fields are those of the report of that name."""

    shape: tuple[int, ...]
    view: bool
    stride: tuple[int, ...] | None = None
    reshape_copies_bytes: int = 0
    blocked_new_dim: int | None = None
    blocked_between_old_dims: tuple[int, int] | None = None
    stride_found: int | None = None
    stride_needed: int | None = None
    last_index: tuple[int, ...] | None = None
    last_element: int | None = None
    next_element: int | None = None
    next_expected: int | None = None
    shapes_that_work: tuple[tuple[int, ...], ...] = ()
    permutation_that_works: tuple[int, ...] | None = None
    problem: str = ""


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


def view(g: Geometry, shape: tuple[int, ...]) -> ViewFinding:
    """Whether `.view(shape)` works, with torch's strides, or what is in its way.

    Args:
        g: The tensor.

        shape: What is asked for. One -1 is worked out. A shape that no tensor of
            this many elements can have is a finding with a `problem`.
    """
    runs = merges(g)
    problem = shapes.what_is_wrong(g.numel, shape)
    if problem:
        others = shapes.without_a_copy(g.size, runs, shape) if g.numel else []
        return ViewFinding(
            shape, view=False, problem=problem, shapes_that_work=tuple(others)
        )
    shape = shapes.filled_in(g.numel, shape)
    if not g.numel:
        stride = g.stride if shape == g.size else fresh_strides(shape)
        return ViewFinding(shape, view=True, stride=stride)
    return _laid_over(g, runs, shape)


def _laid_over(
    g: Geometry, runs: tuple[Merge, ...], shape: tuple[int, ...]
) -> ViewFinding:
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
    return ViewFinding(shape, view=True, stride=tuple(stride))


def _blocked(
    g: Geometry, runs: tuple[Merge, ...], shape: tuple[int, ...], dim: int, inner: int
) -> ViewFinding:
    """Say where the walk along the new dim leaves the step of the inner run."""
    outer_dim, inner_dim = runs[inner - 1].dims[-1], runs[inner].dims[0]
    needed = runs[inner].numel * runs[inner].step
    last = (0,) * (outer_dim + 1) + tuple(n - 1 for n in g.size[outer_dim + 1 :])
    return ViewFinding(
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
        shapes_that_work=tuple(shapes.without_a_copy(g.size, runs, shape)),
        permutation_that_works=_permutation(g),
    )


def _permutation(g: Geometry) -> tuple[int, ...] | None:
    """An order of the dims in which all are walked as one; None if there is none."""
    by_step = sorted(range(g.ndim), key=lambda dim: -abs(g.stride[dim]))
    order = dim_order(g) or tuple(by_step)
    return order if flat(g.permuted(order)) else None
