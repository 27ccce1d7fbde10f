"""Why a place cannot be taken as free, and what the user may do about it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_select.naming import listed
from gpumagic.gpu_select.usage import busy_text
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.gpu_select.request import Request
    from gpumagic.gpu_select.usage import Usage

# An idle GPU that draws a desktop, or whose driver keeps a little, is still free.
_FREE_AT_SHARE = 0.05


class Cause(enum.Enum):
    """What a refusal comes from: each has a way out of its own."""

    LIMIT = "limit"  # the process was not given it
    FILTER = "filter"  # the user does not want it
    SLICE = "slice"  # one process sees one
    MODE = "mode"
    CLAIM = "claim"
    USE = "use"
    NEED = "need"  # free memory is not enough
    SIZE = "size"  # all of its memory would not be enough


_PASSING = {Cause.CLAIM, Cause.USE, Cause.NEED}  # what time may heal


class Refusal(NamedTuple):
    """A reason against a place."""

    cause: Cause
    why: str


def of_use(usage: Usage, request: Request) -> Iterator[Refusal]:
    """What speaks against a place because of how it is used; unknowns never do."""
    yield from _of_mode(usage)
    if request.min_free_bytes is None:
        yield from _of_not_being_free(usage)
    else:
        yield from _of_need(usage, request.min_free_bytes)
    limit, busy = request.max_util_share, usage.busy_share
    if limit is not None and busy is not None and busy > limit:
        yield Refusal(
            Cause.USE,
            f"{busy_text(busy)}, at most {limit * 100:.3g} % asked for",
        )


def _of_not_being_free(usage: Usage) -> Iterator[Refusal]:
    if usage.processes:
        count = count_text(usage.processes, "process", "processes")
        own = usage.own_processes and not usage.own_yield
        yield Refusal(Cause.USE, f"{count} on it{_of_yours(usage) if own else ''}")
    used, total = usage.used_bytes, usage.total_bytes
    if used is not None and total is not None and used > total * _FREE_AT_SHARE:
        listed_ones = usage.processes or usage.own_processes
        unseen = "" if listed_ones else " by processes that are not listed"
        yield Refusal(Cause.USE, f"{part_text(used, total)} in use{unseen}")


def _of_yours(usage: Usage) -> str:
    all_own = usage.own_processes == usage.processes
    return ", your own" if all_own else f", {usage.own_processes} of them your own"


def _of_need(usage: Usage, needed: int) -> Iterator[Refusal]:
    free, total = usage.free_bytes, usage.total_bytes
    asked = f"{bytes_text(needed)} asked for"
    if total is not None and total < needed:
        yield Refusal(Cause.SIZE, f"{bytes_text(total)} in all, {asked}")
    elif free is not None and free < needed:
        yield Refusal(Cause.NEED, f"{bytes_text(free)} free, {asked}")


def _of_mode(usage: Usage) -> Iterator[Refusal]:
    """CUDA cannot start on it, whatever is free."""
    mode = usage.place.gpu.compute_mode or ""
    processes = (usage.processes or 0) + usage.own_processes * usage.own_yield
    if mode == "prohibited":
        yield Refusal(Cause.MODE, "its compute mode forbids CUDA")
    elif mode.startswith("exclusive") and processes:
        yield Refusal(Cause.MODE, "its compute mode admits one process, which is there")


# ---------------------------------------------------------------- ways out


def way_out(
    request: Request,
    found: int,
    refused: Iterable[tuple[Usage, Sequence[Refusal]]],
) -> str:
    """What to type after fewer places were found than asked for."""
    cases = [(usage, {each.cause for each in reasons}) for usage, reasons in refused]
    mine = not request.mine_ok and any(_mine_in_the_way(*case) for case in cases)
    causes = [each for _, each in cases if each]
    # Waiting is of use where the GPUs in the way would be enough, if they were free.
    waited_for = sum(each <= _PASSING for each in causes)
    passing = waited_for and found + waited_for >= request.count
    too_small = any(Cause.SIZE in each for each in causes)
    largest = max((usage.total_bytes or 0 for usage, _ in cases), default=0)
    shared = causes.count({Cause.USE}) if request.min_free_bytes is None else 0
    sharing = shared and found + shared >= request.count
    ways = [
        *([f"-n {found} for what there is"] if found else []),
        *(["-n 1 for a slice"] if {Cause.SLICE} in causes and not found else []),
        *(["--mine-ok to count your own processes as free"] if mine else []),
        *(["--wait 10m to wait for more"] if passing else []),
        *(["--min-free 20GiB to share a GPU with others"] if sharing else []),
        *(["less for --min-free"] if {Cause.NEED} in causes else []),
        *([_of_the_largest(largest)] if too_small and not passing else []),
        *(["less to filter by"] if {Cause.FILTER} in causes else []),
        *(["--force to leave the limit"] if {Cause.LIMIT} in causes else []),
    ]
    if ways:
        return f"type {listed(ways, 'or')}"
    return "type %gpu_select without a word to see what there is"


def _of_the_largest(total_bytes: int) -> str:
    return f"less for --min-free, as the largest has {bytes_text(total_bytes)} in all"


def _mine_in_the_way(usage: Usage, causes: set[Cause]) -> bool:
    """Whether the place might be had, were it not for the user's own processes."""
    return (
        bool(causes) and usage.own_processes > 0 and causes <= {Cause.USE, Cause.NEED}
    )
