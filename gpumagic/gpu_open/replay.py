"""Serves the requests of a recorded history again, by torch's rules.

What was in use before the recording is what is given back in it without having been
taken, and what is there in the end without having been taken; it is asked for first, in
order of address. What another stream still used is free again when the recording says
so. Pools of graphs are served as all other memory is.
"""

from __future__ import annotations

from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.memory_history import EVENTS, GREW, SHRANK
from gpumagic.gpu_open.memory_records import Replayed, ReplayOf
from gpumagic.simulator.allocator import CachingAllocator
from gpumagic.simulator.allocator_blocks import INACTIVE
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.gpu_open.snapshot_file import Snapshot
    from gpumagic.simulator.allocator_blocks import Block

    Entry = Mapping[str, Any]

TAKE, GIVE_BACK, RETURN, FAIL = range(4)  # what a step is
_NEVER = 1 << 62
_PLENTY_BYTES = 1 << 42  # more than any device has
_MOST_MAPPED_BYTES = 1 << 44  # of pages mapped and unmapped: far beyond any run
_CUT = "The history and the final state disagree: some of it is missing."
SHORT_OR_EMPTIED = "Whether memory ran short or the program emptied the cache is open."


class Step(NamedTuple):
    """Something that the program did to the allocator."""

    kind: int  # TAKE, GIVE_BACK, RETURN (segments to the driver) or FAIL
    at: int  # its place among all entries; -1 is before the first
    event: int  # its number among what is taken, given back or refused, from 1 on
    piece: int = -1  # the number of the memory
    nbytes: int = 0  # what was asked for
    stream: int = 0  # for which stream


def replays(
    snapshot: Snapshot,
    device: int,
    settings: Sequence[str],
    memory_bytes: int | None = None,
) -> ReplayOf:
    """What would have happened under other settings, or with other memory."""
    text, notes = snapshot.settings or "", []
    wanted = {each: AllocatorSettings.parse(each) for each in settings}
    try:
        recorded = AllocatorSettings.parse(text)
    except GpuMagicError as error:
        if "backend" in text:
            return ReplayOf(device, why_not=f"this is not torch's own: {error.problem}")
        recorded = AllocatorSettings()
        notes.append(f"The recorded setting is taken as the default: {error.problem}.")
    if snapshot.settings is None:
        notes.append("The allocator's setting is not recorded: the default is taken.")
    trace, final = snapshot.trace_of(device), snapshot.segments_of(device)
    moved = sum(each["size"] for each in trace if each["action"].endswith("map"))
    if moved > _MOST_MAPPED_BYTES:
        return ReplayOf(device, why_not="sizes in this history are beyond any device")
    requests = Requests(trace, final, recorded)
    if not any(step.kind in (TAKE, FAIL) and step.event for step in requests.steps):
        return ReplayOf(device, why_not="the history of this device has no requests")
    total = requests.total_bytes

    def served(setting: str, rules: AllocatorSettings, total: int | None) -> Replayed:
        run = Replay(requests, rules, total)
        run.run()
        reserved = run.allocator.peak_reserved_bytes
        count = run.allocator.counters.device_allocations
        return Replayed(setting, total, False, reserved, count, run.failed_event)

    again = served(text, recorded, total)
    peak_bytes, segments = requests.peak_reserved_bytes, requests.segments
    made = [Replayed(text, total, True, peak_bytes, segments, requests.failed_event)]
    if memory_bytes is not None:
        made.append(served(text, recorded, memory_bytes))
    made += [
        served(each, rules, memory_bytes or total)
        for each, rules in wanted.items()
        if each != text
    ]
    return ReplayOf(
        device,
        tuple(made),
        again_bytes=again.peak_reserved_bytes,
        again_failed=again.failed_event is not None,
        notes=(*notes, *requests.notes),
    )


# ------------------------------------------------------------------ what was asked for


class Requests:
    """All that one device's history asks for.

    The entries are gone through once; then it is known what was there before them.
    """

    def __init__(
        self,
        trace: Sequence[Entry],
        final: Sequence[Entry],
        settings: AllocatorSettings,
    ) -> None:
        self.steps: list[Step] = []  # in order
        # when memory that another stream used was free again, by its number
        self.late: dict[int, int] = {}
        # places of the steps at which the program emptied the cache
        self.emptied: set[int] = set()
        # what this process could have, as its last error tells
        self.total_bytes: int | None = None
        self.failed_event: int | None = None  # the last error
        self.peak_reserved_bytes = 0  # the most that was taken from the driver
        self.segments = 0  # how many there were, or how often memory was mapped
        # what cannot be told, in sentences
        self.notes: dict[str, None] = {}
        self._settings, self._trace = settings, trace
        self._number = count()  # of pieces of memory
        self._held: dict[int, Step] = {}  # by address, what was in use before
        self._live: dict[int, int] = {}  # the piece at an address
        self._awaited: dict[int, int] = {}  # those given back and not free as yet
        self._met: set[int] = set()
        self._waiting: list[Step] = []  # pieces given back before the recording
        self._level = self._highest = 0  # of what was taken from the driver meanwhile
        # what was given back to the driver at once: its place, and what would have
        # been taken without it, where a request followed that needed new memory
        self._returns: list[tuple[int, int | None]] = []
        self._read()
        self._compare_end(final)
        self._conclude(final)

    def _conclude(self, final: Sequence[Entry]) -> None:
        """What is known once all is read: what there was before, and what that says."""
        before = sum(each["total_size"] for each in final) - self._level
        if before < 0:
            self._is_cut()
        self.peak_reserved_bytes = before + self._highest
        actions = Counter(each["action"] for each in self._trace)
        self.segments = actions["segment_free"] + actions["segment_map"]
        self.segments += sum(not each["is_expandable"] for each in final)
        if self.total_bytes is not None:
            self.total_bytes += before
        most = self.total_bytes or self.peak_reserved_bytes
        for at, wanted in self._returns:
            collects = self._settings.garbage_collection_threshold
            if not collects and (wanted is None or wanted + before <= most):
                self.emptied.add(at)
            elif wanted is not None and self.total_bytes is None:
                self.notes[SHORT_OR_EMPTIED] = None
        held = [step for _, step in sorted(self._held.items())]
        self.steps[:0] = [*held, *self._waiting]

    def _read(self) -> None:
        """Make steps of the entries."""
        event = 0
        for at, entry in enumerate(self._trace):
            action = entry["action"]
            event += action in EVENTS
            if action == "alloc":
                self._take(entry, at, event)
            elif action == "free_requested":
                self._give_back(entry, at, event)
            elif action == "free_completed":
                self._complete(entry, at)
            elif action in GREW:
                self._level += entry["size"]
                self._highest = max(self._highest, self._level)
            elif action in SHRANK:
                self._return(entry, at)
            elif action == "oom":
                self._fail(entry, at, event)

    def _take(self, entry: Entry, at: int, event: int) -> None:
        address = entry["addr"]
        gone = self._live.pop(address, None)
        if gone is not None:  # that it was given back is missing
            self.steps.append(Step(GIVE_BACK, at, event, gone))
            self._is_cut()
        elif address in self._awaited:  # its completion is missing
            self.late[self._awaited.pop(address)] = at - 1
        piece = self._live[address] = next(self._number)
        self._met.add(address)
        self.steps.append(Step(TAKE, at, event, piece, entry["size"], entry["stream"]))

    def _give_back(self, entry: Entry, at: int, event: int) -> None:
        address = entry["addr"]
        piece = self._live.pop(address, None)
        if piece is None:
            if address in self._met:
                self._is_cut()
                return
            piece = self._was_before(entry, address)
        self.steps.append(Step(GIVE_BACK, at, event, piece))
        following = self._trace[at + 1] if at + 1 < len(self._trace) else {}
        done = following.get("action"), following.get("addr")
        if done != ("free_completed", address):
            self._awaited[address] = piece
            self.late[piece] = _NEVER

    def _complete(self, entry: Entry, at: int) -> None:
        address = entry["addr"]
        piece = self._awaited.pop(address, None)
        if piece is None and address not in self._met:
            piece = self._was_before(entry, address)
            self._waiting.append(Step(GIVE_BACK, -1, 0, piece))
        if piece is not None:
            self.late[piece] = at

    def _return(self, entry: Entry, at: int) -> None:
        """What went back at once is one step, at the first of its entries."""
        trace = self._trace
        if not at or trace[at - 1]["action"] not in SHRANK:
            left = islice(trace, at, None)
            following = next((e for e in left if e["action"] not in SHRANK), None)
            wanted = None
            if following is not None and following["action"] in ("oom", *GREW):
                size = following["size"]
                if following["action"] == "oom":
                    size = self._settings.segment_bytes(size)
                wanted = self._level + size
            self._returns.append((at, wanted))
            self.steps.append(Step(RETURN, at, -1))
        self._level -= entry["size"]

    def _fail(self, entry: Entry, at: int, event: int) -> None:
        size, free = entry["size"], entry.get("device_free")
        self.steps.append(Step(FAIL, at, event, -1, size, entry["stream"]))
        self.failed_event = event
        if free is not None:
            self.total_bytes = self._level + free
            segment = self._settings.segment_bytes(size)
            if segment <= free and not self._settings.expandable_segments:
                # A share was all that was allowed.
                self.total_bytes = self._level + segment - 1

    def _compare_end(self, final: Sequence[Entry]) -> None:
        """Add what is there in the end and was before."""
        there = set()
        for segment in final:
            for block in segment["blocks"]:
                address = block["address"]
                if block["state"] == INACTIVE:
                    continue
                there.add(address)
                if address not in self._met:
                    size = block["requested_size"] or block["size"]
                    piece = self._was_before({**segment, "size": size}, address)
                    if block["state"] != "active_allocated":
                        self._waiting.append(Step(GIVE_BACK, -1, 0, piece))
                        self.late[piece] = _NEVER
                elif address not in self._live and address not in self._awaited:
                    self._is_cut()
        if not there >= self._live.keys():
            self._is_cut()

    def _is_cut(self) -> None:
        self.notes[_CUT] = None

    def _was_before(self, entry: Entry, address: int) -> int:
        piece = next(self._number)
        step = Step(TAKE, -1, 0, piece, entry["size"], entry["stream"])
        self._held[address] = step
        self._met.add(address)
        return piece


# -------------------------------------------------------------------- served again


class Replay:
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
    ) -> None:
        self._requests = requests
        self.failed_event: int | None = None
        self._now = -1  # the place of the entry
        self._blocks: dict[int, Block] = {}
        options = {"driver": self, "settings": settings, "addresses": addresses}
        total = total_bytes or _PLENTY_BYTES
        self.allocator = CachingAllocator(0, total, **options)
        if settings.garbage_collection_threshold and total_bytes:
            self.allocator.set_fraction(1.0)
        self._queues: list[int] = []  # until when the last of each is not free

    def run(self) -> None:
        """Serve what can be served, up to a failure that was not recorded."""
        for step in self._requests.steps:
            self._now = step.at
            if step.kind == GIVE_BACK:
                self._give_back(step.piece)
            elif step.kind == RETURN:
                if step.at in self._requests.emptied:
                    self.allocator.empty_cache()
            else:
                try:
                    block = self.take(step)
                except OutOfSimulatedMemory:
                    self.failed_event = step.event
                    if step.kind == TAKE:
                        return
                    continue
                if step.kind == TAKE and block is not None:
                    self._blocks[step.piece] = block
                elif block is not None:  # it had failed; what it led to is unknown
                    self.allocator.free(block)

    def take(self, step: Step) -> Block | None:
        """What a step asks for."""
        return self.allocator.allocate(step.nbytes, step.stream)

    def _give_back(self, piece: int) -> None:
        """Free a piece, at once or when the recording says so."""
        block = self._blocks.pop(piece, None)
        if block is None:
            return
        until = self._requests.late.get(piece)
        if until is not None:
            self.allocator.record_stream(block, self._stream_until(until))
        self.allocator.free(block)

    # -------------------------------------------------- as the driver of the allocator

    def malloc(self, nbytes: int) -> None:
        """Costs nothing here."""

    free = malloc

    def record(self, stream: int) -> int:
        """When the stream that a piece waits for had done what it had."""
        return self._queues[~stream]

    def done(self, event: int) -> bool:
        """Whether it had by now."""
        return event < self._now

    def wait(self, event: int) -> None:
        """Costs nothing here."""

    def _stream_until(self, until: int) -> int:
        """A stream of our own whose events are passed in order, this the last."""
        for place, last in enumerate(self._queues):
            if last <= until:
                self._queues[place] = until
                return ~place
        self._queues.append(until)
        return -len(self._queues)
