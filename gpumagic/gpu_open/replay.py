"""Serves the requests of a recorded history again, by torch's rules.

What was in use before the recording is what is given back in it without having been
taken, and what is there in the end without having been taken; it is asked for first, in
order of address. What another stream still used is free again when the recording says
so. Pools of graphs are served as all other memory is.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.files import AGAIN
from gpumagic.gpu_open.memory_history import AT_ONCE, GREW, NEVER, SHRANK, History
from gpumagic.gpu_open.records import Replayed, ReplayOf
from gpumagic.simulator.allocator import CachingAllocator
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.gpu_open.snapshot_file import Snapshot
    from gpumagic.simulator.allocator_blocks import Block

    Entry = Mapping[str, Any]

GIVE_BACK, TAKE, RETURN, FAIL = range(4)  # what a step is
_PLENTY_BYTES = 1 << 42  # more than any device has
_MOST_MAPPED_BYTES = 1 << 44  # of pages mapped and unmapped: far beyond any run
_CUT = "The history and the final state disagree: some of it is missing."
SHORT_OR_EMPTIED = "Whether memory ran short or the program emptied the cache is open."


class Step(NamedTuple):
    """Something that the program did to the allocator."""

    kind: int  # GIVE_BACK, TAKE, RETURN (segments to the driver) or FAIL
    at: int  # its place among all entries; -1 is before the first
    event: int = 0  # its number among what is taken, given back or refused, from 1 on
    nbytes: int = 0  # what was asked for
    stream: int = 0  # for which stream
    piece: int = -1  # the number of the memory
    free: int = AT_ONCE  # the entry at which it was free again


def replay_of(
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
        recorded = AllocatorSettings()
        notes = [f"The recorded setting is taken as the default: {error.problem}."]
    if snapshot.settings is None:
        notes = ["The allocator's setting is not recorded: the default is taken."]
    trace, final = snapshot.trace_of(device), snapshot.segments_of(device)
    moved = sum(each["size"] for each in trace if each["action"].endswith("map"))
    if moved > _MOST_MAPPED_BYTES:
        problem = f"the sizes in the history of cuda:{device} are beyond any device"
        raise GpuMagicError(f"{problem}: it cannot be replayed", AGAIN)
    requests = Requests(trace, final, recorded)
    if not any(step.kind in (TAKE, FAIL) and step.event for step in requests.steps):
        raise GpuMagicError(
            f"the snapshot has no requests of cuda:{device} to be served again",
            "before the run, call torch.cuda.memory._record_memory_history()",
        )

    def served(setting: str, rules: AllocatorSettings, total: int | None) -> Replayed:
        run = Replay(requests, rules, total)
        run.run()
        reserved = run.allocator.peak_reserved_bytes
        count = run.allocator.counters.device_allocations
        return Replayed(setting, total, reserved, count, run.failed_event)

    total = requests.total_bytes
    peak_bytes, segments = requests.peak_reserved_bytes, requests.segments
    was = Replayed(text, total, peak_bytes, segments, requests.failed_event)
    others = {each: rules for each, rules in wanted.items() if each != text}
    if memory_bytes:
        others = {text: recorded, **others}
    return ReplayOf(
        device,
        (was, *(served(*each, memory_bytes or total) for each in others.items())),
        again=served(text, recorded, total),
        notes=tuple(dict.fromkeys((*notes, *requests.notes))),
    )


# ------------------------------------------------------------------ what was asked for


class Requests:
    """All that one device's history asks for."""

    def __init__(
        self,
        trace: Sequence[Entry],
        final: Sequence[Entry],
        settings: AllocatorSettings,
    ) -> None:
        self._history, self._settings = History(trace, final), settings
        self._trace = trace
        self.steps = self._steps()  # in order
        # places of the steps at which the program emptied the cache
        self.emptied: set[int] = set()
        # what this process could have, as its last error tells
        self.total_bytes: int | None = None
        self.failed_event: int | None = None  # the last error
        # the most that was taken from the driver
        self.peak_reserved_bytes = max(self._history.reserved)
        actions = Counter(each["action"] for each in trace)
        # how many there were, or how often memory was mapped
        self.segments = actions["segment_free"] + actions["segment_map"]
        self.segments += sum(not each["is_expandable"] for each in final)
        # what cannot be told, in sentences
        self.notes = [_CUT] * self._history.is_cut
        for step in self.steps:
            if step.kind == FAIL:
                self._fail(step)
        for step in self.steps:
            if step.kind == RETURN:
                self._return(step.at)

    def _steps(self) -> list[Step]:
        history, steps = self._history, []
        pieces = sorted(history.pieces, key=lambda each: each.address)
        for number, each in enumerate(pieces):
            what = each.nbytes, each.stream, number, each.free
            for kind, at in ((TAKE, each.began), (GIVE_BACK, each.ended)):
                if at < NEVER:
                    steps.append(Step(kind, at, history.events[at + 1], *what))
        before = ""
        for at, entry in enumerate(self._trace):
            if entry["action"] == "oom":
                asked = entry["size"], entry["stream"], -1
                steps.append(Step(FAIL, at, history.events[at + 1], *asked))
            # What went back at once is one step, at the first of its entries.
            elif entry["action"] in SHRANK and before not in SHRANK:
                steps.append(Step(RETURN, at))
            before = entry["action"]
        # What was there before is asked for first; else an address is free before it
        # is taken again.
        steps.sort(
            key=lambda each: (each.at, each.kind if each.at >= 0 else -each.kind)
        )
        return steps

    def _fail(self, step: Step) -> None:
        self.failed_event = step.event
        free = self._trace[step.at].get("device_free")
        if free is not None:
            level = self._history.reserved[step.at]
            self.total_bytes = level + free
            segment = self._settings.segment_bytes(step.nbytes)
            if segment <= free and not self._settings.expandable_segments:
                # A share was all that was allowed.
                self.total_bytes = level + segment - 1

    def _return(self, at: int) -> None:
        """Whether the program emptied the cache, or a request needed new memory."""
        left = islice(self._trace, at, None)
        following = next((e for e in left if e["action"] not in SHRANK), {})
        action, wanted = following.get("action"), 0
        if action == "oom":
            wanted = self._settings.segment_bytes(following["size"])
        elif action in GREW:
            wanted = following["size"]
        wanted += self._history.reserved[at] * bool(wanted)
        most = self.total_bytes or self.peak_reserved_bytes
        if not self._settings.garbage_collection_threshold and wanted <= most:
            self.emptied.add(at)
        elif wanted and not self.total_bytes:
            self.notes.append(SHORT_OR_EMPTIED)


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
                self._give_back(step)
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
        """What a step asks for; what asks for nothing takes a block as well."""
        return self.allocator.allocate(step.nbytes or 1, step.stream)

    def _give_back(self, step: Step) -> None:
        """Free a piece, at once or when the recording says so."""
        block = self._blocks.pop(step.piece, None)
        if not block:
            return
        if step.free != AT_ONCE:
            self.allocator.record_stream(block, self._stream_until(step.free))
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
