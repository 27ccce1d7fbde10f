"""Serves the requests of a recorded history again, by torch's rules.

Under the recorded setting every address and every new segment has to come out again:
where the driver put segments, and when they went back to it, is taken from the
recording, all else follows from the rules. Under another setting, or with another
amount of memory, the rules decide everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.memory_records import AllocatorSetting, Replayed, ReplayOf
from gpumagic.gpu_open.recorded_requests import (
    BEYOND,
    FAIL,
    GIVE_BACK,
    NEVER,
    SHORT_OR_EMPTIED,
    TAKE,
    is_beyond,
    requests_of,
)
from gpumagic.simulator.allocator import CachingAllocator, SegmentOrder
from gpumagic.simulator.allocator_blocks import SHARED
from gpumagic.simulator.allocator_segments import MadeUpAddresses, OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import (
    LARGEST_SMALL_BYTES,
    SEGMENT_STEP_BYTES,
    AllocatorSettings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.gpu_open.recorded_requests import (
        Group,
        HasHistory,
        Requests,
        Returned,
        Step,
        Taken,
    )
    from gpumagic.simulator.allocator_blocks import Block, PoolId

STEP_BYTES = SEGMENT_STEP_BYTES  # how finely the least memory is looked for
_PLENTY_BYTES = 1 << 42  # more than any device has
_MOST_RUNS = 40  # to find the least memory: enough for 2 TiB in steps of 2 MiB
UNREADABLE_SETTING = "The recorded setting is replayed as torch's default: "
SETTING_UNKNOWN = "How the allocator was set is not recorded: torch's default is taken."


def replays(
    snapshot: HasHistory, device: int, settings: Sequence[AllocatorSetting]
) -> ReplayOf:
    """What would have happened under other settings, or with other memory."""
    notes: list[str] = []
    recorded_text = snapshot.settings
    if recorded_text is None:
        notes.append(SETTING_UNKNOWN)
    wanted = [(each, AllocatorSettings.parse(each.text)) for each in settings]
    try:
        recorded = AllocatorSettings.parse(recorded_text or "")
    except GpuMagicError as error:
        if "backend" in (recorded_text or ""):
            return ReplayOf(device, why_not=f"This is not torch's own: {error.problem}")
        recorded, recorded_text = AllocatorSettings(), ""
        notes.append(f"{UNREADABLE_SETTING}{error.problem}.")
    if is_beyond(snapshot, device):
        return ReplayOf(device, why_not=BEYOND)
    requests = requests_of(snapshot, device, recorded)
    if not any(step.kind in (TAKE, FAIL) for step in requests.steps):
        return ReplayOf(device, why_not="The history of this device has no requests.")
    total = requests.total_bytes
    guided = _recorded_run(requests, recorded)
    first = AllocatorSetting(recorded_text or "", total)
    made = [guided.told(first)]
    done = {(first.text, total)}
    for memory in sorted({e.total_bytes for e, _ in wanted if e.total_bytes}):
        wanted.insert(0, (AllocatorSetting(first.text, memory), recorded))
    for setting, parsed in wanted:
        memory_bytes = setting.total_bytes or total
        if (setting.text, memory_bytes) in done:
            continue
        done.add((setting.text, memory_bytes))
        run = _Free(
            requests,
            parsed,
            recorded,
            memory_bytes,
            emptied=guided.emptied,
            order=guided.order,
        )
        run.run()
        made.append(run.told(AllocatorSetting(setting.text, memory_bytes)))
    return ReplayOf(
        device,
        tuple(made),
        needed_bytes(requests, recorded, guided.emptied, guided.order),
        notes=(*notes, *requests.notes, *guided.notes),
    )


def _recorded_run(requests: Requests, recorded: AllocatorSettings) -> _Guided:
    """The recorded setting, in the order of segments that explains most.

    Neither the version of torch is recorded, nor which of the segments from before the
    recording came first.
    """
    runs: list[_Guided] = []
    for order in SegmentOrder:
        runs.append(_Guided(requests, recorded, order))
        runs[-1].run()
        if not runs[-1].differing:
            break
    return min(runs, key=lambda each: each.differing)


def needed_bytes(
    requests: Requests,
    settings: AllocatorSettings,
    emptied: set[int],
    order: SegmentOrder = SegmentOrder.UPWARDS,
) -> int | None:
    """Memory with which nothing fails; with a step less something does.

    It is mostly the least, and not always: where memory runs short the cache is
    emptied, or garbage collected earlier, and what follows lies elsewhere. One history
    in a hundred goes through with some amount below, or fails with one above.
    """

    def fails(total: int | None) -> tuple[bool, int]:
        run = _Free(
            requests,
            settings,
            settings,
            total,
            emptied=emptied,
            order=order,
            stops=True,
        )
        run.run()
        return run.failed is not None, run.allocator.peak_reserved_bytes

    failed, peak = fails(None)
    if failed:
        return None
    enough, too_little = -(-peak // STEP_BYTES), 0
    for _ in range(_MOST_RUNS):  # once: a limit may count more than what is mapped
        if not fails(enough * STEP_BYTES)[0]:
            break
        too_little, enough = enough, enough + 1 + enough // 8
    for _ in range(_MOST_RUNS):
        if enough - too_little <= 1:
            break
        # Mostly nearly all that was taken is needed, and a failure is found early.
        middle = (enough + too_little) // 2
        if fails(middle * STEP_BYTES)[0]:
            too_little = middle
        else:
            enough = middle
    return enough * STEP_BYTES


class _Run:
    """One replay: an allocator, and the memory that it handed out by number.

    To the allocator it is the driver as well: an event is the entry of the recording at
    which the device had passed it.
    """

    def __init__(
        self,
        requests: Requests,
        settings: AllocatorSettings,
        total_bytes: int | None,
        addresses: Any = None,
        order: SegmentOrder = SegmentOrder.UPWARDS,
    ) -> None:
        self.requests = requests
        self.order = order
        self.settings = settings
        self.failed: tuple[int, int] | None = None  # the event, and what was asked for
        self.now = -1  # the place of the entry
        self.blocks: list[Block | None] = [None] * requests.pieces
        self.allocator = CachingAllocator(
            0,
            total_bytes or _PLENTY_BYTES,
            context_bytes=self.withheld_bytes,
            driver=self,
            settings=settings,
            processes=None,
            addresses=addresses or MadeUpAddresses(0, _above(requests)),
        )
        if settings.garbage_collection_threshold and total_bytes:
            self.allocator.set_fraction(1.0)
        self._queues: list[int] = []  # until when the last of each is not free
        self._pools: set[PoolId] = set()
        self._before = 0  # segments
        self.served = 0

    # -------------------------------------------------- as the driver of the allocator

    def malloc(self, nbytes: int) -> None:
        """Costs nothing here."""

    def free(self, nbytes: int) -> None:
        """Costs nothing here."""

    def record(self, stream: int) -> int:
        """When the stream that a piece waits for had done what it had."""
        return self._queues[~stream]

    def withheld_bytes(self) -> int:
        """What the device has and does not give."""
        return 0

    def done(self, event: int) -> bool:
        """Whether it had by now."""
        return event < self.now

    def wait(self, event: int) -> None:
        """Costs nothing here."""

    # ----------------------------------------------------------------------- steps

    def restore(self) -> None:
        """Begin with what there was before the recording."""
        requests = self.requests
        owned = self.allocator.restore(requests.segments, self.order)
        for held in requests.held:
            self.blocks[held.piece] = owned.get(held.address)
        self._before = sum(not each["is_expandable"] for each in requests.segments)

    def take(self, step: Step) -> Block | None:
        """What a step asks for."""
        return self.take_from(step.pool, step.nbytes, step.stream)

    def take_from(self, pool: PoolId, nbytes: int, stream: int) -> Block | None:
        """A block from a private pool, or any other."""
        allocator = self.allocator
        if pool == SHARED:
            return allocator.allocate(nbytes, stream)
        if pool not in self._pools and not allocator.pool_uses(pool):
            allocator.keep_pool(pool)
        self._pools.add(pool)
        allocator.divert(pool, lambda _: True)
        try:
            return allocator.allocate(nbytes, stream)
        finally:
            allocator.end_diversion(pool)
            allocator.release_pool(pool)

    def give_back(self, piece: int) -> None:
        """Free a piece, at once or when the recording says so."""
        block = self.blocks[piece]
        if block is None:
            return
        self.blocks[piece] = None
        until = self.requests.late.get(piece)
        if until is not None:
            self.allocator.record_stream(block, self._stream_until(until))
        self.allocator.free(block)

    def _stream_until(self, until: int) -> int:
        """A stream of our own whose events are passed in order, this the last."""
        queues = self._queues
        for place, last in enumerate(queues):
            if last <= until:
                queues[place] = until
                return ~place
        queues.append(until)
        return -len(queues)

    def release(self, returned: Returned) -> None:
        """Let go of private pools whose segments went back."""
        for pool in returned.pools:
            while self.allocator.pool_uses(pool):
                self.allocator.release_pool(pool)
            self._pools.discard(pool)

    def told(self, setting: AllocatorSetting) -> Replayed:
        """The outcome as a record."""
        allocator = self.allocator
        event, asked_bytes = self.failed or (None, None)
        return Replayed(
            setting=setting,
            recorded=False,
            exact=None,
            requests=self.served,
            peak_allocated_bytes=allocator.peak_since(),
            peak_reserved_bytes=allocator.peak_reserved_bytes,
            segments=self._before + allocator.counters.device_allocations,
            failed_event=event,
            asked_bytes=asked_bytes or None,
            retries=allocator.counters.retries,
        )


class _Guided(_Run):
    """The recorded setting: segments lie and go where and when they were recorded to.

    Attributes:
        emptied: At which steps the program has emptied the cache, as no want of memory
            explains it.
    """

    def __init__(
        self, requests: Requests, settings: AllocatorSettings, order: SegmentOrder
    ) -> None:
        self._driver = _RecordedDriver(requests)
        super().__init__(requests, settings, None, self._driver, order)
        self.emptied: set[int] = set()
        self.notes: list[str] = []
        self._differing = 0
        self._retries = 0
        self._is_short = False  # whether only as much can be had as was recorded, ...
        self._flush: Returned | None = None  # ... and what then went back
        self._flush_at = -1
        self._level: int | None = None  # what is to be left of it

    def malloc(self, nbytes: int) -> None:
        """Memory is taken: as the next that is recorded, or it differs."""
        if self._level is not None:
            self._differing += self.allocator.reserved_bytes != self._level
            self._level = None
        self._driver.malloc(nbytes, self.now)

    def free(self, nbytes: int) -> None:
        """Memory went back, as it did at that entry."""
        del nbytes
        if self._flush is not None and self._is_short:
            self._level, self._flush = self._flush.level_bytes, None

    def done(self, event: int) -> bool:
        """Whether it had by now, or before the device was waited for in mid-request."""
        return event < (self.now if self._flush is None else self._flush.begin)

    def withheld_bytes(self) -> int:
        """All but what was mapped next, where memory ran short in mid-request."""
        if not self._is_short:
            return 0
        bound = self.now if self._flush is None else self._flush_at
        expected = self._driver.expected(bound)
        room_bytes = 0 if expected is None else expected.nbytes
        return _PLENTY_BYTES - self.allocator.reserved_bytes - room_bytes

    def take(self, step: Step) -> Block | None:
        """What a step asks for, with addresses of its own kind if any are set aside."""
        size = self.settings.rounded_bytes(max(step.nbytes, 1))
        kind = "small" if size <= LARGEST_SMALL_BYTES else "large"
        self._driver.group = step.stream, kind, step.pool
        return super().take(step)

    def run(self) -> None:
        """Serve everything."""
        self.restore()
        steps = self.requests.steps
        for place, step in enumerate(steps):
            kind = step.kind
            self.now = step.at
            if kind == TAKE:
                self._take_recorded(step)
            elif kind == GIVE_BACK:
                self.give_back(step.piece)
            elif kind == FAIL:
                self._fail_again(step)
            else:
                following = steps[place + 1] if place + 1 < len(steps) else None
                self._return(step, following)
        self._driver.catch_up(NEVER)

    def told(self, setting: AllocatorSetting) -> Replayed:
        """The outcome, held against the recording."""
        record = super().told(setting)
        return replace(
            record,
            recorded=True,
            exact=not self.differing,
            differing=self.differing,
            retries=record.retries + self._retries,
        )

    @property
    def differing(self) -> int:
        """How much came out otherwise than it was recorded."""
        return self._differing + self._driver.differing

    def _take_recorded(self, step: Step) -> None:
        self._is_short = self._flush is not None
        try:
            block = self.take(step)
        except OutOfSimulatedMemory:
            block = None
        self._end_short()
        self.blocks[step.piece] = block
        self.served += 1
        if block is None or block.address != step.address:
            self._differing += 1
        self._driver.catch_up(self.now)

    def _fail_again(self, step: Step) -> None:
        """See that nothing that is held would have served what has failed."""
        allocator = self.allocator
        if self._flush is None and self._driver.expected(self.now) is None:
            self.failed = step.event, step.nbytes
            self.now = step.address
            allocator.let_go_of_done()
            self._retries += 1
            if step.pool == SHARED:
                self._differing += allocator.serves(step.nbytes, step.stream)
            self.now = step.at
            allocator.let_go_of_done()
            return
        self._is_short = True
        try:
            block = self.take(step)
        except OutOfSimulatedMemory:
            self.failed = step.event, step.nbytes
        else:
            self._differing += 1
            if block is not None:
                allocator.free(block)
        self._end_short()
        self._driver.catch_up(self.now)

    def _end_short(self) -> None:
        self._is_short, self._flush, self._level = False, None, None

    def _return(self, step: Step, following: Step | None) -> None:
        """Give back what went back, and find out who wanted it."""
        allocator, returned = self.allocator, self.requests.returned[step.at]
        self.release(returned)
        is_short = self._was_short(returned)
        if following is not None and self._in_request(step, returned, following):
            # The request that follows returns it, in the midst of what it does.
            self._flush, self._flush_at = returned, step.at
            if not is_short:
                self.emptied.add(step.at)
            return
        allocator.let_go_of_done()
        addresses = None if returned.addresses is None else set(returned.addresses)
        is_all = addresses is None or allocator.returnable <= addresses
        allocator.give_back(addresses)
        self._differing += allocator.reserved_bytes != returned.level_bytes
        if is_short:
            self._retries += following is None or following.kind != FAIL
        elif is_all:
            self.emptied.add(step.at)

    def _in_request(self, step: Step, returned: Returned, following: Step) -> bool:
        """Whether a request emptied the cache, after it had looked for a block in vain.

        It looks for none once more, even where waiting has made one free.
        """
        if returned.wanted_bytes is None or following.kind not in (TAKE, FAIL):
            return False
        if self._driver.expected(step.at) is not None:  # it had mapped pages already
            return True
        settings = self.settings
        returns_some = (
            settings.garbage_collection_threshold or settings.max_split_size_bytes
        )
        waited = returned.begin < step.at  # else the outcome is the same
        if not waited or returns_some or following.pool != SHARED:
            return False
        if settings.expandable_segments and self._driver.has_gone(following.at):
            return False
        self.now = returned.begin
        self.allocator.let_go_of_done()
        self.now = step.at
        return not self.allocator.serves(following.nbytes, following.stream)

    def _was_short(self, returned: Returned) -> bool:
        """Whether memory ran short: for more was asked than there ever was."""
        wanted, total = returned.wanted_bytes, self.requests.total_bytes
        if wanted is None:
            return False
        if total is not None:
            return wanted > total
        is_more = wanted > self.requests.peak_reserved_bytes
        if is_more and SHORT_OR_EMPTIED not in self.notes:
            self.notes.append(SHORT_OR_EMPTIED)
        return is_more


class _Free(_Run):
    """Any setting and amount of memory: the rules decide."""

    def __init__(  # noqa: PLR0913 -- a replay has as many circumstances
        self,
        requests: Requests,
        settings: AllocatorSettings,
        recorded: AllocatorSettings,
        total_bytes: int | None,
        *,
        emptied: set[int],
        order: SegmentOrder = SegmentOrder.UPWARDS,
        stops: bool = False,
    ) -> None:
        super().__init__(requests, settings, total_bytes, order=order)
        self._total_bytes = total_bytes
        self._anew = settings != recorded and bool(requests.segments)
        self._emptied = emptied
        self._stops = stops

    def run(self) -> None:  # noqa: C901, PLR0912 -- written out, as it runs often
        """Serve what can be served, up to a failure that was not recorded."""
        if not self._begin():
            return
        allocate, free = self.allocator.allocate, self.allocator.free
        blocks = self.blocks
        late, empties = self.requests.late, self._emptied
        for kind, at, event, piece, nbytes, stream, pool, _ in self.requests.steps:
            if kind == TAKE:
                self.now = at
                try:
                    if pool == SHARED:
                        blocks[piece] = allocate(nbytes, stream)
                    else:
                        blocks[piece] = self.take_from(pool, nbytes, stream)
                except OutOfSimulatedMemory:
                    self.failed = event, nbytes
                    return
                self.served += 1
            elif kind == GIVE_BACK:
                block = blocks[piece]
                if block is not None and piece not in late:
                    blocks[piece] = None
                    free(block)
                elif block is not None:
                    self.give_back(piece)
            elif kind == FAIL:
                self.now = at
                try:
                    block = self.take_from(pool, nbytes, stream)
                except OutOfSimulatedMemory:
                    self.failed = event, nbytes
                    if self._stops:
                        return
                else:
                    if block is not None:
                        free(block)
            else:
                self.release(self.requests.returned[at])
                if at in empties:
                    self.allocator.empty_cache()

    def told(self, setting: AllocatorSetting) -> Replayed:
        """The outcome as a record."""
        return replace(super().told(setting), from_anew=self._anew)

    def _begin(self) -> bool:
        """Hold what was held before the recording; whether there is memory for it."""
        allocator, total = self.allocator, self._total_bytes
        if not self._anew:
            self.restore()
            if total is not None and allocator.reserved_bytes > total:
                allocator.empty_cache()
                allocator.reset_peaks()  # there never was as much
                if allocator.reserved_bytes > total:
                    self.failed = 0, 0
            return self.failed is None
        for held in self.requests.held:
            try:
                block = self.take_from(held.pool, held.requested, held.stream)
            except OutOfSimulatedMemory:
                self.failed = 0, held.requested
                return False
            self.blocks[held.piece] = block
        return True


class _RecordedDriver:
    """Puts segments where they were recorded to lie, as long as they come in order."""

    def __init__(self, requests: Requests) -> None:
        self.differing = 0
        self.group: Group | None = None  # for whom memory is asked
        self._taken = requests.taken
        self._places: dict[Group, list[int]] = defaultdict(list)
        for place, each in enumerate(requests.taken):
            self._places[each.group].append(place)
        self._next = 0
        self._address: int | None = None
        self._held = {each["address"] for each in requests.segments}
        above = _above(requests)
        self._made_up = MadeUpAddresses(0, above)
        self._above = above

    def malloc(self, nbytes: int, now: int) -> None:
        """So much is taken, at an entry."""
        expected = self.expected(now)
        if expected is not None and expected.nbytes == nbytes:
            self._address = expected.address
            self._next += 1
        else:
            self._address = None
            self.differing += 1

    def catch_up(self, now: int) -> None:
        """What had been recorded by now, and was not taken, differs."""
        while self.expected(now) is not None:
            self._next += 1
            self.differing += 1

    def has_gone(self, now: int) -> bool:
        """Whether what is recorded next lies where something had to go before."""
        expected = self.expected(now)
        return expected is not None and expected.address in self._held

    def take(self, size: int) -> int:
        """Where the segment was that has just been taken."""
        return self._recorded(self._address) or self._made_up.take(size)

    def give_back(self, address: int, size: int) -> None:
        """Take back what was made up."""
        self._held.discard(address)
        if address >= self._above:
            self._made_up.give_back(address, size)

    def take_range(self, size: int) -> int:
        """Where memory is mapped next for whom it is: others may come before.

        What has failed set addresses aside as well, which its kind then uses first.
        """
        places = [] if self.group is None else self._places.get(self.group, [])
        following = bisect_left(places, self._next)
        address = None
        if following < len(places):
            address = self._taken[places[following]].address
        return self._recorded(address) or self._made_up.take_range(size)

    def give_back_range(self, address: int, size: int) -> None:
        """Likewise."""
        self._held.discard(address)
        if address >= self._above:
            self._made_up.give_back_range(address, size)

    def _recorded(self, address: int | None) -> int | None:
        """This address, unless something lies there that should have gone."""
        if address is None or address in self._held:
            return None
        self._held.add(address)
        return address

    def expected(self, now: int) -> Taken | None:
        """What was recorded next, if that was before now."""
        if self._next < len(self._taken) and self._taken[self._next].at < now:
            return self._taken[self._next]
        return None


def _above(requests: Requests) -> int:
    """An address above all that are recorded."""
    ends = [each["address"] + each["total_size"] for each in requests.segments]
    ends += [each.address + each.nbytes for each in requests.taken]
    return -(-max(ends, default=0) // STEP_BYTES) * STEP_BYTES
