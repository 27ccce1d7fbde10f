"""How much room there was for a request, and what stood in its way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.oom_text import allowed_bytes, others_bytes
from gpumagic.gpu_mem.records.requests import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.records.devices import DeviceMemory
    from gpumagic.gpu_mem.records.requests import Answer, OomFacts

_MUCH = 0.1  # of the device
_USUAL_OUTSIDE_BYTES = 2 << 30  # a context, loaded kernels, some buffers
_SURELY = 0.99  # sizes in the error are rounded to hundredths of their unit


class Room(NamedTuple):
    """What there was for a request; None is unknown.

    Attributes:
        asked: What would have been needed in one piece.

        made: Whether the request has been made, and so has failed.

        live: What tensors hold.

        free: What the driver has.

        unused: What the allocator has for any request.

        pools: What it has for graphs and pools of the user's alone.

        outside: What this process has besides.

        cap_left: What this process may still take, where it has a limit.
    """

    asked: int | None
    made: bool
    total: int | None
    live: int | None
    free: int | None
    unused: int | None
    pools: int
    others: int | None
    outside: int | None
    cap_left: int | None

    def causes(self, leaks: int) -> Iterator[Cause]:
        """The sentences that are true, some perhaps twice."""
        asked, total = self.asked, self.total
        if asked is None:
            return
        if total is not None and asked > total - (self.outside or 0):
            yield Cause.NEVER_FITS
            return
        if self._is_capped(asked):
            yield Cause.CAPPED
        if leaks and asked <= leaks + (self._to_take or 0):
            yield Cause.LEAKED
        decisive = list(self._decisive(asked))
        yield from decisive
        if total is not None:
            yield from self._beside(total, asked, anyway=not decisive)

    @property
    def _to_take(self) -> int | None:
        """What the driver has for this process."""
        if self.free is None or self.cap_left is None:
            return self.free
        return max(min(self.free, self.cap_left), 0)

    def _is_capped(self, asked: int) -> bool:
        """Whether there would have been enough without the limit."""
        free, unused = self.free or 0, self.unused or 0
        to_take = self._to_take or 0
        return to_take < asked <= free or to_take + unused < asked <= free + unused

    def _decisive(self, asked: int) -> Iterator[Cause]:
        """Without what of all this it would have been enough."""
        if self._to_take is None or self.unused is None:
            return
        room = self._to_take + self.unused
        if asked <= room:
            if not self._driver_had_it(asked):
                yield Cause.FRAGMENTED
        elif asked <= room + self.pools:
            yield Cause.PRIVATE_POOL
        elif self._is_much(self.others) and asked <= room + (self.others or 0):
            yield Cause.OTHERS

    def _driver_had_it(self, asked: int) -> bool:
        """Then the pieces are no reason: something else has hindered the driver."""
        return self.made and asked <= (self._to_take or 0) * _SURELY

    def _beside(self, total: int, asked: int, *, anyway: bool) -> Iterator[Cause]:
        """What is worth a sentence as well, or else in its place."""
        is_worth_it = anyway or self._is_much(self.live)
        if self.live is not None and self._is_short(total, asked) and is_worth_it:
            yield Cause.TOO_MUCH_LIVE
        if self._is_much(self.pools):
            yield Cause.PRIVATE_POOL
        unusual = max((self.outside or 0) - _USUAL_OUTSIDE_BYTES, 0)
        if self._is_much((self.others or 0) + unusual):
            yield Cause.OTHERS

    def _is_much(self, nbytes: int | None) -> bool:
        return None not in (nbytes, self.total) and (nbytes or 0) >= _MUCH * (
            self.total or 0
        )

    def _is_short(self, total: int, asked: int) -> bool:
        """Whether what is alive and what was asked for cannot both be there."""
        if self._to_take is not None and self.unused is not None:
            return asked > self._to_take + self.unused + self.pools
        besides = (self.outside or 0) + (self.others or 0)
        return (self.live or 0) + asked > total - besides


def room_at(
    oom: OomFacts | None,
    answer: Answer | None,
    memory: DeviceMemory | None,
    pools: int,
) -> Room:
    """The figures of the error, and those of now where it has none."""
    now = _room_now(answer, memory, pools)
    if oom is None:
        return now
    live = oom.allocated_bytes
    if live is not None:  # the error counts the free parts of these pools with it
        live -= oom.private_pools_bytes or 0
    then = now._replace(
        asked=_first(oom.requested_bytes, now.asked),
        made=True,
        total=_first(oom.total_bytes, now.total),
        live=_first(live, now.live),
        free=_first(oom.free_bytes, now.free),
        unused=_first(oom.reserved_unallocated_bytes, now.unused),
        pools=oom.private_pools_bytes or now.pools,
        others=_first(others_bytes(oom), now.others),
    )
    cap = allowed_bytes(oom.text)
    if cap is None or then.live is None or then.unused is None:
        return then
    return then._replace(cap_left=cap - then.live - then.unused - then.pools)


def _room_now(answer: Answer | None, memory: DeviceMemory | None, pools: int) -> Room:
    counters = None if memory is None else memory.counters
    reserved = None if counters is None else counters.reserved_bytes
    active = None if counters is None else counters.active_bytes
    cap = None if memory is None else memory.cap_bytes
    known = reserved is not None and active is not None
    return Room(
        asked=None if answer is None else answer.rounded_bytes,
        made=False,
        total=None if memory is None else memory.total_bytes,
        live=None if counters is None else counters.allocated_bytes,
        free=_first(
            None if answer is None else answer.device_free_bytes,
            None if memory is None else memory.free_bytes,
        ),
        unused=max((reserved or 0) - (active or 0) - pools, 0) if known else None,
        pools=pools,
        others=None if memory is None else memory.others_bytes,
        outside=None if memory is None else memory.outside_bytes,
        cap_left=_first(
            None if answer is None else answer.cap_left_bytes,
            None if cap is None or reserved is None else cap - reserved,
        ),
    )


def _first(*values: int | None) -> int | None:
    return next((each for each in values if each is not None), None)
