"""The shape that was asked for, and shapes that need no copy."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.tensor_info.report import Merge

    Shape = tuple[int, ...]


def what_is_wrong(numel: int, shape: Shape) -> str:
    """Why no tensor of so many elements has this shape; empty if one can."""
    below = [count for count in shape if count < -1]
    known = math.prod(count for count in shape if count != -1)
    unknown = shape.count(-1)
    if unknown > 1:
        return f"{_text(shape)} has {unknown} times -1: only one dim can be worked out"
    if below:
        return f"{_text(shape)} has a dim of size {below[0]}: no dim can be negative"
    if unknown and known == 0 and numel == 0:
        return f"with 0 elements the -1 of {_text(shape)} could be any number"
    if unknown and (known == 0 or numel % known):
        return f"{numel} elements cannot be split as {_text(shape)}"
    if not unknown and known != numel:
        return f"{_text(shape)} has {known} elements and the tensor has {numel}"
    return ""


def filled_in(numel: int, shape: Shape) -> Shape:
    """The shape with its -1 worked out; it must be one that fits."""
    known = math.prod(count for count in shape if count != -1)
    return tuple(numel // known if count == -1 else count for count in shape)


def without_a_copy(size: Shape, runs: tuple[Merge, ...], asked: Shape) -> list[Shape]:
    """The telling shapes that `.view` takes, the nearest to what was asked first.

    Args:
        size: The size of the tensor, which is not among them.

        runs: Its dims as they are walked, as `merges` gives them.

        asked: What was asked for; its product need not fit.
    """
    near = _split_at_runs(runs, asked)
    all_merged = tuple(run.numel for run in runs)
    found = [near] if near else []
    found += [_merged(size, runs), all_merged]
    return [each for each in dict.fromkeys(found) if each not in {size, asked}]


def _merged(size: Shape, runs: tuple[Merge, ...]) -> Shape:
    """The size with every run as one dim; dims of 1 stay, unless inside a run."""
    starts = {run.dims[0]: run for run in runs}
    inside = {dim for run in runs for dim in range(run.dims[0] + 1, run.dims[-1] + 1)}
    return tuple(
        starts[dim].numel if dim in starts else count
        for dim, count in enumerate(size)
        if dim not in inside
    )


def _split_at_runs(runs: tuple[Merge, ...], asked: Shape) -> Shape | None:
    """What was asked with dims split where a run ends; None if that cannot be."""
    cuts = sorted(_cuts(run.numel for run in runs) | _cuts(asked))
    if math.prod(asked) != cuts[-1] or any(far % near for near, far in pairwise(cuts)):
        return None
    return tuple(far // near for near, far in pairwise(cuts))[::-1]


def _cuts(counts: Iterable[int]) -> set[int]:
    """After how many elements one index or another is back at 0."""
    return set(accumulate(reversed(tuple(counts)), mul, initial=1))


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
