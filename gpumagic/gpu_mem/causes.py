"""Why memory has run out, as sentences, and what to type next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.fragmentation import stuck_bytes
from gpumagic.gpu_mem.oom_text import allowed_bytes, others_bytes
from gpumagic.gpu_mem.report import BlockState, Cause, Pinning
from gpumagic.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.gpu_mem.report import Answer, DeviceMemory, OomFacts, Segment

_MUCH = 0.1  # of the device
_USUAL_OUTSIDE_BYTES = 2 << 30  # a context, loaded kernels, some buffers
_SURELY = 0.99  # sizes in the error are rounded to hundredths of their unit

_BATCH = "ask for less at once: a smaller batch, a smaller dtype, or parts in a loop"
_STEPS = {
    Cause.NEVER_FITS: (_BATCH, "spread it over several GPUs"),
    Cause.CAPPED: (
        "torch.{kind}.set_per_process_memory_fraction(1.0) lifts this process's limit",
    ),
    Cause.LEAKED: ("%gpu_mem free, then run the cell again",),
    Cause.PRIVATE_POOL: (
        "del the graphs that are not needed any more, then torch.{kind}.empty_cache()",
        'use torch.compile without mode="reduce-overhead", which records graphs',
    ),
    Cause.FRAGMENTED: ("%gpu_mem map shows what lies between the free pieces",),
    Cause.OTHERS: (
        "!nvidia-smi shows whose the other processes are",
        "%gpu_select free in a fresh kernel takes the freest GPU",
    ),
    Cause.TOO_MUCH_LIVE: (
        "%gpu_mem shows which names hold most: del what is not needed any more",
        _BATCH,
        "use torch.no_grad() where no backward pass follows",
        "use torch.utils.checkpoint where one does",
    ),
    Cause.UNKNOWN: ("%gpu_mem map shows how the memory is cut up",),
}
_EXPANDABLE = (
    "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in a fresh kernel, before "
    "torch is imported"
)


def causes_of(
    oom: OomFacts | None,
    answer: Answer | None = None,
    memory: DeviceMemory | None = None,
    *,
    leaks_bytes: int | None = None,
    private_pool_bytes: int | None = None,
) -> tuple[Cause, ...]:
    """All that a request which found no place comes down to, the most telling first.

    Args:
        oom: What the error said; None for a request that nobody has made yet.

        answer: Whether the request fits now. One that does, or may, has no causes
            without an error.

        memory: The device now. Where the error says something else, that counts.

        leaks_bytes: What is probably not wanted any more on this device.

        private_pool_bytes: What is free there in the pools of graphs and of the user.
    """
    if oom is None and (answer is None or answer.place != "nowhere"):
        is_open = answer is not None and answer.place is None
        return (Cause.UNKNOWN,) if is_open else ()
    room = _room_at(oom, answer, memory, private_pool_bytes or 0)
    found = tuple(dict.fromkeys(room.causes(leaks_bytes or 0)))
    return found or (Cause.UNKNOWN,)


def next_steps(
    causes: Sequence[Cause],
    *,
    kind: str = "cuda",
    expandable: bool | None = None,
    pinning: Sequence[Pinning] = (),
    others: Sequence[tuple[int, int]] = (),
) -> tuple[str, ...]:
    """What to type, the best first.

    Args:
        causes: From `causes_of`.

        kind: The word in front of the colon of the device.

        expandable: Whether segments are expandable; None where they cannot be.

        pinning: Blocks in between, from `pinning_of`.

        others: Other processes and their bytes, from `others_in`.
    """
    steps: list[str] = []
    for cause in causes:
        if cause is Cause.FRAGMENTED:
            steps += _unpinning(pinning)
            steps += [_EXPANDABLE] if expandable is False else []
        if cause is Cause.OTHERS:
            steps += [
                f"process {pid} holds {bytes_text(nbytes)}: ask whose it is"
                for pid, nbytes in sorted(others, key=lambda each: -each[1])
            ]
        steps += [each.format(kind=kind) for each in _STEPS[cause]]
    return tuple(dict.fromkeys(steps))


def pinning_of(segments: Iterable[Segment], most: int = 5) -> tuple[Pinning, ...]:
    """Blocks that keep free memory from going back to the driver.

    Those come first of which the fewest hold back the most.

    Args:
        segments: Of one device.

        most: How many blocks are wanted.
    """
    found = []
    for segment in segments:
        kept_bytes = stuck_bytes(segment)
        blocks = [b for b in segment.blocks if b.state is not BlockState.FREE]
        found += [
            (
                kept_bytes / len(blocks),
                Pinning(segment.nbytes, b.nbytes, kept_bytes, b.names, b.line),
            )
            for b in blocks
            if kept_bytes
        ]
    found.sort(key=lambda each: -each[0])
    return tuple(pinning for _, pinning in found[:most])


def _unpinning(pinning: Sequence[Pinning]) -> Iterator[str]:
    first_names = (each.names[0] for each in pinning if each.names)
    names = dict.fromkeys(each for each in first_names if each.isidentifier())
    if names:
        yield f"del {', '.join(names)}: they keep free memory in pieces"


# ----------------------------------------------------------- how much there was


class _Room(NamedTuple):
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


def _room_at(
    oom: OomFacts | None,
    answer: Answer | None,
    memory: DeviceMemory | None,
    pools: int,
) -> _Room:
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


def _room_now(answer: Answer | None, memory: DeviceMemory | None, pools: int) -> _Room:
    counters = None if memory is None else memory.counters
    reserved = None if counters is None else counters.reserved_bytes
    active = None if counters is None else counters.active_bytes
    cap = None if memory is None else memory.cap_bytes
    known = reserved is not None and active is not None
    return _Room(
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
