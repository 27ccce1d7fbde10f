"""Whether somebody has reset counters in between, as far as two looks can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records.counters import Counters

PEAKS = ("peak_bytes", "peak_reserved_bytes")
SUMS = (
    "taken_bytes",
    "given_back_bytes",
    "taken",
    "retries",
    "ooms",
    "stream_waits",
    "driver_calls",
    "flushed_bytes",
)


def peaks_were_reset(before: Counters, after: Counters) -> bool:
    """Whether the peaks were: they never fall by themselves."""
    return _fell(before, after, PEAKS)


def sums_were_reset(before: Counters, after: Counters) -> bool:
    """Whether the sums were: then they fall, or do not explain what is allocated."""
    return _fell(before, after, SUMS) or not _explained(before, after)


def _fell(before: Counters, after: Counters, names: tuple[str, ...]) -> bool:
    for name in names:
        then, now = getattr(before, name), getattr(after, name)
        if then is not None and now is not None and now < then:
            return True
    return False


def _explained(before: Counters, after: Counters) -> bool:
    """Whether what was taken less what was given back is the difference."""
    then, now = _balance(before), _balance(after)
    return then is None or now is None or then == now


def _balance(counters: Counters) -> int | None:
    allocated, taken, given_back = (
        counters.allocated_bytes,
        counters.taken_bytes,
        counters.given_back_bytes,
    )
    if allocated is None or taken is None or given_back is None:
        return None
    return allocated - taken + given_back
