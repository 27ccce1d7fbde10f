"""Judges why memory has run out, and what to type next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.fragmentation import blocking_names
from gpumagic.gpu_mem.oom import allowed_bytes, others_bytes
from gpumagic.gpu_mem.records import Cause, LeakKind
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_mem.records import (
        Answer,
        DeviceMemory,
        Leak,
        OomFacts,
        Pinning,
        Setting,
    )

_BATCH = "ask for less at once: a smaller batch, a smaller dtype, or parts in a loop"
_LESS_IN_THE_RUN = (
    _BATCH,
    "use torch.no_grad() where no backward pass follows",
    "use torch.utils.checkpoint where one does",
)
_STEPS = {
    Cause.NEVER_FITS: (_BATCH, "spread it over several GPUs"),
    Cause.CAPPED: (
        "torch.{kind}.set_per_process_memory_fraction(1.0) lifts this process's limit",
    ),
    Cause.PRIVATE_POOL: (
        "del the graphs that are not needed any more, then torch.{kind}.empty_cache()",
        'use torch.compile without mode="reduce-overhead", which records graphs',
    ),
    Cause.FRAGMENTED: ("%gpu_mem map shows what lies between the free pieces", _BATCH),
    Cause.OTHERS: (
        "!nvidia-smi shows whose the other processes are",
        "%gpu_select free in a fresh kernel takes the freest GPU",
    ),
    Cause.UNKNOWN: ("%gpu_mem map shows how the memory is cut up",),
}
_TO_LEARN_MORE = (
    "let it out once, without try and except: its words say how much was asked for",
    "%gpu_mem fit 2GiB asks whether so much would fit now",
)
_OTHERS_OF_THE_MODEL = {Cause.OTHERS: ("%gpu_select free takes the freest GPU",)}
_EXPANDABLE = (
    "%env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in a fresh kernel, before "
    "torch is imported"
)
_EXPANDABLE_IN_THE_MODEL = (
    'allocator="expandable_segments:True" besides what you have given '
    "gpumagic.simulate, after a restart"
)
_MUCH_OF_THE_DEVICE = 0.1  # of the device
_USUAL_OUTSIDE_BYTES = 2 << 30  # a context, loaded kernels, some buffers
_SURELY = 0.99  # sizes in the error are rounded to hundredths of their unit
_FREE = "%gpu_mem free"
_WORTH_A_LINE_BYTES = 1 << 20
_MUCH_OF_WHAT_LIVES = 0.25  # of what is alive
_MOST_NAMES = 2


def causes_of(
    oom: OomFacts | None,
    answer: Answer | None = None,
    memory: DeviceMemory | None = None,
    *,
    leaks_bytes: int | None = None,
    private_pool_bytes: int | None = None,
) -> tuple[Cause, ...]:
    """All that a request which found no place comes down to, the most telling first."""
    if oom is None and (answer is None or answer.place != "nowhere"):
        is_open = answer is not None and answer.place is None
        return (Cause.UNKNOWN,) if is_open else ()
    room = _room_at(oom, answer, memory, private_pool_bytes or 0)
    found = tuple(dict.fromkeys(room.causes(leaks_bytes or 0)))
    return found or (Cause.UNKNOWN,)


def next_steps(  # noqa: PLR0913 -- each is something that a step may rest on
    causes: Sequence[Cause],
    *,
    setting: Setting | None = None,
    expandable: bool | None = None,
    pinning: Sequence[Pinning] = (),
    others: Sequence[tuple[int, int]] = (),
    held: Held | None = None,
    in_pieces_bytes: int | None = None,
) -> tuple[str, ...]:
    """What to do, what gives back the most first."""
    held = held or Held()
    kind = "cuda" if setting is None else setting.kind
    simulated = setting is not None and setting.label != ""
    steps: list[str] = []
    for cause in causes:
        if cause is Cause.FRAGMENTED:
            if held.own_bytes > (in_pieces_bytes or 0):
                steps += held.ways_to_need_less()
            steps += _unpinning(pinning)
            way = _EXPANDABLE_IN_THE_MODEL if simulated else _EXPANDABLE
            steps += [way] if expandable is False else []
        if cause is Cause.OTHERS:
            steps += [
                f"process {pid} holds {bytes_text(nbytes)}: ask whose it is"
                for pid, nbytes in sorted(others, key=lambda each: -each[1])
            ]
        if cause is Cause.LEAKED:
            steps += held.ways_to_let_go()
        if cause is Cause.TOO_MUCH_LIVE:
            steps += _with_less_alive(held)
        said = _STEPS.get(cause, ())
        said = (_OTHERS_OF_THE_MODEL if simulated else {}).get(cause, said)
        steps += [each.format(kind=kind) for each in said]
    if Cause.NEVER_FITS not in causes:
        steps += held.ways_to_need_less()
    if Cause.LEAKED in causes and held.own_bytes:
        steps.append(_BATCH)
    return tuple(dict.fromkeys((*steps, *held.of_the_error_itself())))


def steps_for_caught(held: Held) -> tuple[str, ...]:
    """What to type where an error was caught, and nobody knows what was asked for."""
    leaks = any(leak.kind is not LeakKind.GRAPH for leak in held.leaks)
    return (
        *(held.ways_to_let_go() if leaks else ()),
        *_TO_LEARN_MORE,
        *held.ways_to_need_less(),
        held.names_to_delete(),
        *held.ways_to_cut_graphs(),
        *held.of_the_error_itself(),
    )


def _with_less_alive(held: Held) -> tuple[str, ...]:
    """Where the failing run had made much of it, its batch comes before the names."""
    graphs, names = held.ways_to_cut_graphs(), held.names_to_delete()
    if held.is_much_its_own:
        less = *held.ways_to_need_less(), *_LESS_IN_THE_RUN
        return *less, *held.of_the_error_itself(), names, *graphs
    return names, *graphs, *_LESS_IN_THE_RUN


def _unpinning(pinning: Sequence[Pinning]) -> Iterator[str]:
    names = blocking_names(pinning)
    if names:
        keep = "it keeps" if len(names) == 1 else "they keep"
        yield f"del {', '.join(names)}: {keep} free memory in pieces"


# -------------------------------------------------------------- how much room there was


class _Room(NamedTuple):
    """What there was for a request; None is unknown."""

    asked: int | None  # what would have been needed in one piece
    made: bool  # whether the request has been made, and so has failed
    total: int | None
    live: int | None  # what tensors hold
    free: int | None  # what the driver has
    unused: int | None  # what the allocator has for any request
    pools: int  # what it has for graphs and pools of the user's alone
    others: int | None
    outside: int | None  # what this process has besides
    cap_left: int | None  # what this process may still take, where it has a limit

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
        if nbytes is None or self.total is None:
            return False
        return nbytes >= _MUCH_OF_THE_DEVICE * self.total

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
        others=None if memory is None else memory.not_ours_bytes,
        outside=None if memory is None else memory.outside_bytes,
        cap_left=_first(
            None if answer is None else answer.cap_left_bytes,
            None if cap is None or reserved is None else cap - reserved,
        ),
    )


def _first(*values: int | None) -> int | None:
    return next((each for each in values if each is not None), None)


# -------------------------------------------------------------- what could be let go of


class Held(NamedTuple):
    """What is held beside the variables of the user's."""

    leaks: tuple[Leak, ...] = ()  # what may be without need
    own_bytes: int = 0  # what the frames of the error hold that is asked about
    live_bytes: int | None = None  # what all tensors hold; None is unknown
    own: tuple[Leak, ...] = ()  # the same by name, the largest first
    # the variables of the user's with what they hold, the largest first
    names: tuple[tuple[str, int], ...] = ()

    @property
    def is_much_its_own(self) -> bool:
        """Whether much of what is alive is what the failing run had made."""
        return self.own_bytes > 0 and self.own_bytes >= _MUCH_OF_WHAT_LIVES * (
            self.live_bytes or 0
        )

    def ways_to_need_less(self) -> Iterator[str]:
        """What most of it is that the failing run had made, by its names."""
        for each in self.own[:_MOST_NAMES]:
            if each.nbytes >= max(
                _MUCH_OF_WHAT_LIVES * self.own_bytes, _WORTH_A_LINE_BYTES
            ):
                yield f"{each.where} holds {bytes_text(each.nbytes)}: {each.undo}"

    def names_to_delete(self) -> str:
        """Which variables hold most, where any of them holds much."""
        enough = max(_MUCH_OF_WHAT_LIVES * (self.live_bytes or 0), _WORTH_A_LINE_BYTES)
        most = [
            f"{name} {'' if number else 'holds '}{bytes_text(nbytes)}"
            for number, (name, nbytes) in enumerate(self.names[:_MOST_NAMES])
            if nbytes >= enough
        ]
        if not most:
            return (
                "%gpu_mem shows which names hold most: del what is not needed any more"
            )
        return f"{', '.join(most)}: del what is not needed any more; %gpu_mem shows all"

    def ways_to_let_go(self) -> Iterator[str]:
        """For errors and results: one command, beside those that variables hold."""
        undone = [leak.undo for leak in self.leaks if leak.kind is not LeakKind.GRAPH]
        for undo in undone:
            if not undo.startswith(_FREE):
                yield f"{undo}, then run the cell again"
        if not undone or any(undo.startswith(_FREE) for undo in undone):
            yield f"{_FREE}, then run the cell again"

    def ways_to_cut_graphs(self) -> Iterator[str]:
        """A graph may be needed: only the user knows."""
        for leak in self.leaks:
            if leak.kind is LeakKind.GRAPH and leak.nbytes >= _WORTH_A_LINE_BYTES:
                yield f"{leak.undo}, unless {leak.lost} is still to come"

    def of_the_error_itself(self) -> Iterator[str]:
        """It comes back, and is needed again: this alone leads in a circle."""
        if self.own_bytes >= _WORTH_A_LINE_BYTES:
            yield (
                f"{_FREE} gives back the {bytes_text(self.own_bytes)} that frames of "
                "this error still hold, but the cell will need them again"
            )
