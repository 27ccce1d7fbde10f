"""The sentences that an out-of-memory error comes down to: one for each cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.records.leaks import LeakKind
from gpumagic.gpu_mem.records.requests import Cause
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.gpu_mem.report import FitReport, WhyReport

# What each comes down to, in the title.
SHORT = {
    Cause.NEVER_FITS: "that is more than the device has",
    Cause.TOO_MUCH_LIVE: "too much else is alive",
    Cause.FRAGMENTED: "enough was free, but in no piece that was large enough",
    Cause.PRIVATE_POOL: "much of the memory is kept for graphs",
    Cause.OTHERS: "others on the device hold much of its memory",
    Cause.LEAKED: "memory that is probably not wanted would have been enough",
    Cause.CAPPED: "this process may not take more",
    Cause.UNKNOWN: "why cannot be told",
}


def cause_sentence(cause: Cause, report: WhyReport) -> str:
    """What is so, with the figures that are known."""
    return _SENTENCES[cause](report)


def may_be_elsewhere(report: WhyReport) -> bool:
    """Whether the holes that are known may not be those of the request's stream."""
    answer, asked = report.answer, report.oom.requested_bytes if report.oom else None
    if answer is None:
        return False
    fits_now = asked is not None and (answer.hole_bytes or 0) >= asked
    return fits_now or answer.elsewhere_bytes > 0


def fit_sentence(cause: Cause, report: FitReport) -> str:
    """The same where nothing has failed yet."""
    asked = bytes_text(report.requested_bytes)
    return f"{_OF_A_REQUEST[cause].format(asked=asked)}."


_OF_A_REQUEST = {
    Cause.NEVER_FITS: "{asked} is more than the device has, whatever is freed",
    Cause.TOO_MUCH_LIVE: "with what is alive now, {asked} more is too much",
    Cause.FRAGMENTED: "enough is free, but no piece of it is as large as {asked}",
    Cause.PRIVATE_POOL: "much is kept for graphs, and other tensors cannot use it",
    Cause.OTHERS: "other processes, or what lies outside the allocator, hold much",
    Cause.LEAKED: "letting go of what is probably not wanted would be enough",
    Cause.CAPPED: "this process may not take that much",
    Cause.UNKNOWN: "why cannot be told from what is known",
}


def _never_fits(report: WhyReport) -> str:
    total = report.oom.total_bytes if report.oom else None
    have = "" if total is None else f" ({bytes_text(total)} in all)"
    return (
        f"{_asked(report)} is more than the device can give{have}: nothing that is "
        "freed here makes it fit."
    )


def _too_much_live(report: WhyReport) -> str:
    allocated = report.oom.allocated_bytes if report.oom else None
    alive = "Too much" if allocated is None else bytes_text(allocated)
    return f"{alive} was alive in tensors: {_asked(report)} does not fit beside it."


def _fragmented(report: WhyReport) -> str:
    free = report.oom.reserved_unallocated_bytes if report.oom else None
    hole = None if report.answer is None else report.answer.hole_bytes
    enough = "Enough" if free is None else bytes_text(free)
    whose = " of the default stream" if may_be_elsewhere(report) else ""
    largest = "" if hole is None else f"; the largest{whose} is {bytes_text(hole)}"
    return (
        f"{enough} was free in what torch has reserved, but not in one piece as large "
        f"as what was asked for{largest}."
    )


def _private_pool(report: WhyReport) -> str:
    kept = report.oom.private_pools_bytes if report.oom else None
    much = "Much" if kept is None else bytes_text(kept)
    return (
        f"{much} is kept for captured graphs, or for a pool of your own: other tensors "
        "cannot use it."
    )


def _others(report: WhyReport) -> str:
    memory = report.memory
    others = None if memory is None else memory.others_bytes
    outside = None if memory is None else memory.outside_bytes
    hold = "much of the device" if others is None else bytes_text(others)
    lies = (
        ""
        if outside is None
        else f", and {bytes_text(outside)} of this one lies outside the allocator"
    )
    return f"Other processes hold {hold}{lies}: no tensor that is freed here helps."


def _leaked(report: WhyReport) -> str:
    leaks = [leak for leak in report.leaks if leak.kind is not LeakKind.GRAPH]
    held = sum(leak.nbytes for leak in leaks)
    # What two of them hold is in both of their figures.
    most = "At most " if len(leaks) > 1 else ""
    much = f"{most}{bytes_text(held)}" if leaks else "Enough"
    return (
        f"{much} is held by what is probably not wanted any more: letting go of it "
        "would be enough."
    )


def _capped(report: WhyReport) -> str:
    cap = None if report.memory is None else report.memory.cap_bytes
    most = "" if cap is None else f" than {bytes_text(cap)}"
    return (
        f"This process may not take more{most}: a limit was set with "
        "set_per_process_memory_fraction."
    )


def _unknown(_: WhyReport) -> str:
    return "Neither the text of the error nor the memory now tells why."


def _asked(report: WhyReport) -> str:
    asked = report.oom.requested_bytes if report.oom else None
    return "what was asked for" if asked is None else bytes_text(asked)


_SENTENCES: dict[Cause, Callable[[WhyReport], str]] = {
    Cause.NEVER_FITS: _never_fits,
    Cause.TOO_MUCH_LIVE: _too_much_live,
    Cause.FRAGMENTED: _fragmented,
    Cause.PRIVATE_POOL: _private_pool,
    Cause.OTHERS: _others,
    Cause.LEAKED: _leaked,
    Cause.CAPPED: _capped,
    Cause.UNKNOWN: _unknown,
}
