"""Runs the collectives of one group: numbers by gloo, times by the machine.

The host goes on after a call. What others send comes by `deliveries`; when a
collective ends on the machine's clock is settled by `meetings`, once that is asked.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.backend.deliveries import Deliveries
from gpumagic.simulator.backend.handles import work_class
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    Placement,
    collective_time,
)
from gpumagic.simulator.engines import CollectiveName
from gpumagic.simulator.meetings import (
    Circle,
    CollectiveCall,
    GroupCall,
    Pace,
    Roll,
    real_pause,
)
from gpumagic.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.accesses import Operand
    from gpumagic.simulator.backend.deliveries import Moved
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.engines import Meeting
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.meetings import Peers
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_LONGEST_PAUSE_S = 2e-3
_FAREWELL_S = 10.0
_MOST_CALLS = 100_000
_BARRIER_BYTES = 4
_MOST_OPEN = 64  # of which nobody may have been told
_Key = tuple[int, ...]  # of a stream: the GPU, and for pairs who sends to whom


class Collectives:
    """The collectives of this process in one group.

    Args:
        simulation: Whose tensors they are.

        given: What torch makes groups of.

        prefix: Makes a store within a store.
    """

    def __init__(self, simulation: Simulation, given: Any, prefix: Any) -> None:
        self._simulation = simulation
        self._machine = simulation.machine
        self._group = str(given.group_id)
        self._place = given.group_rank
        members = [*given.global_ranks_in_group] or range(given.group_size)
        self._members = tuple(int(each) for each in members)
        shared = simulation.ranks
        if not given.global_ranks_in_group or shared.pace is None:
            rank = self._members[self._place]
            shared.pace = Pace(prefix("pace", given.store), rank)
        self._circle = Circle(
            prefix("meetings", given.store),
            self._members,
            self._place,
            shared.pace,
            given.timeout.total_seconds(),
            simulation.interrupts.run_asked,
            shared.roll,
        )
        self._streams: dict[_Key, SimulatedStream] = {}
        self._last: dict[_Key, Peers] = {}
        self._open: collections.deque[Meeting] = collections.deque(maxlen=_MOST_OPEN)
        self._numbers: dict[_Key, int] = {}
        self._works: list[Any] | None = None  # of those called together
        self._called = 0
        self._hosts: Sequence[bytes] = ()
        self._gpu: SimulatedGpu | None = None  # the first that was used
        self._deliveries = shared.deliveries
        self._work_class = work_class(simulation.torch)
        shared.groups.append(self)
        atexit.register(self.tell_at_exit)
        self._meet_first()

    def _meet_first(self) -> None:
        """Making a group waits for all members: so do the clocks of their hosts."""
        scheduler = self._machine.scheduler
        store = self._circle.store
        store.set(f"host/{self._place}", str(self._simulation.ranks.host))
        now_ns = self._circle.agree_on_latest("made", scheduler.now_ns)
        scheduler.elapse(now_ns - scheduler.now_ns)
        places = range(len(self._members))
        self._hosts = store.multi_get([f"host/{place}" for place in places])

    def set_timeout(self, timeout: Any) -> None:
        """How long the others are waited for."""
        object.__setattr__(self._circle, "timeout_s", timeout.total_seconds())

    def next_between(self, source: int, to: int) -> int:
        """Counts what one sends to another, on both sides alike."""
        number = self._numbers.get((source, to), 0)
        self._numbers[source, to] = number + 1
        return number

    # ----------------------------------------------------------------- a call

    def collective(
        self,
        what: Collective,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        nbytes: int,
        move: Callable[[list[Any]], Moved],
        word: str = "",
        pair: tuple[int, int, int] | None = None,
    ) -> Any:
        """Begin a collective; answers with torch's handle of it."""
        simulation = self._simulation
        gpu = simulation.tensors.claimed((*inputs, *outputs)[0]).gpu
        self._gpu = self._gpu or gpu
        call = self._called_now(what.name.lower(), nbytes, pair)
        twins = [simulation.tensors.twin_of(each).detach() for each in inputs]
        contiguous = simulation.torch.contiguous_format
        moved = move([each.clone(memory_format=contiguous) for each in twins])
        reads = [self._operand(each) for each in inputs]
        writes = [self._operand(each) for each in outputs]
        work = self._begin(what, gpu, call, word, pair, reads, writes)
        work.keep = (moved.works, inputs, outputs)
        work.outputs = [*outputs]
        self._deliveries.add(moved, outputs, work.come_to, call)
        if self._works is not None:
            self._works.append(work)
        return work

    def barrier(self, index: int | None) -> Any:
        """All members meet, and the host waits for that."""
        gpu = self._gpu
        if index is not None or gpu is None:
            visible = len(self._simulation.latch.visible())
            here = self._members[self._place] % visible
            gpu = self._simulation.gpu(here if index is None else index)
        call = self._called_now("barrier", _BARRIER_BYTES, None)
        work = self._begin(Collective.ALL_REDUCE, gpu, call, "Sum_f32", None, [], [])
        work.host_waits = "dist.barrier()"
        return work

    def _called_now(
        self, name: str, nbytes: int, pair: tuple[int, int, int] | None
    ) -> GroupCall:
        """Enter a call in the roll, if the others mean the same by its number."""
        if not isinstance(self._machine.scheduler, Scheduler):
            raise not_simulated("collectives in a graph", "capture what is around them")
        number = self._called if pair is None else pair[2]
        call = GroupCall(self._group, number, name, nbytes, of_two=pair is not None)
        if pair is None:  # what only two have to do with has no place in the order
            self._called += 1
            self._simulation.ranks.roll.called(call)
        self._circle.agree(_meeting_name(call, pair), str(call))
        return call

    def _operand(self, tensor: Any) -> Operand:
        operand, _ = operand_of(tensor, self._simulation.tensors.claimed(tensor))
        return operand

    def _begin(
        self,
        what: Collective,
        gpu: SimulatedGpu,
        call: GroupCall,
        word: str,
        pair: tuple[int, int, int] | None,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
    ) -> Any:
        simulation, machine = self._simulation, self._machine
        current, place = simulation.stream(gpu), simulation.places.here()
        key: _Key = (gpu.number, *(pair[:2] if pair else ()))
        members, hosts = self._members, self._hosts
        if pair is not None:
            members = tuple(members[each] for each in pair[:2])
            hosts = [hosts[each] for each in pair[:2]]
        told = collective_time(what, call.nbytes, _placement(gpu, hosts))
        name = "_".join(
            each
            for each in (
                "ncclDevKernel",
                what.value,
                word,
                told.algorithm,
                told.protocol,
            )
            if each
        )
        with simulation.books() as tracker:
            gpu.start()
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = gpu.own_stream()
            called_ns = machine.scheduler.now_ns
            machine.wait(stream, current)
            peers = self._peers(key, members, pair, call, told.ns)
            spot = GroupPlace(
                self._group, call.number, what.value, members, call.nbytes
            )
            meeting = machine.scheduler.meet(
                stream.queue, peers, told.ns, HOST_NS, CollectiveName(name, spot)
            )
            self._open.append(meeting)
            races = (
                tracker.operate(stream.order, reads, writes, place)
                if simulation.tracking
                else ()
            )
            mark = tracker.record(stream.order)
        if races:
            simulation.tell(races)
        calls = simulation.ranks.calls
        if len(calls) < _MOST_CALLS:
            calls.append(
                CollectiveCall(
                    self._group, call.number, name, call.nbytes, called_ns, members,
                    told.algorithm, meeting,
                )
            )  # fmt: skip
        return self._work_class(self, gpu, meeting, mark)

    def _peers(
        self,
        key: _Key,
        members: tuple[int, ...],
        pair: tuple[int, int, int] | None,
        call: GroupCall,
        took_ns: int,
    ) -> Peers:
        circle = self._circle
        if pair is not None:
            place = pair[:2].index(self._place)
            circle = replace(circle, members=members, place=place)
        name, before = _meeting_name(call, pair), self._last.get(key)
        peers = circle.next_meeting(name, str(call), took_ns, before, call)
        self._last[key] = peers
        return peers

    # ------------------------------------------------------------ called together

    def start_together(self) -> None:
        """What is called from now on is waited for as one."""
        self._works = []

    def end_together(self) -> Any:
        """That was all of it."""
        works, self._works = self._works or [], None
        if not works:
            return None
        last = works[-1]
        last.others = works[:-1]
        return last

    # --------------------------------------------------------------- what follows

    def current_stream_waits(
        self, gpu: SimulatedGpu, meeting: Meeting, mark: Mark
    ) -> None:
        """Later work of this thread's stream comes after a collective."""
        stream = self._simulation.stream(gpu)
        with self._simulation.books() as tracker:
            wait_ns = gpu.costs.host.wait_stream_ns
            self._machine.scheduler.wait(stream.queue, meeting, wait_ns)
            tracker.wait(stream.order, mark)

    def come_to(self, meeting: Meeting) -> None:
        """Let the others know when this process comes to a meeting."""
        with self._simulation.books():
            self._machine.scheduler.come_to(meeting)

    def host_waits(self, what: str, meeting: Meeting, mark: Mark) -> None:
        """The host goes on when a collective has ended."""
        scheduler = self._machine.scheduler
        with self._simulation.books() as tracker:
            began_ns = scheduler.now_ns
            scheduler.wait_for(meeting)
            tracker.host_waits_for_mark(mark)
            scheduler.host_waited(what, began_ns)

    def done(self, gpu: SimulatedGpu, meeting: Meeting) -> bool:
        """Whether a collective has ended by now."""
        with self._simulation.books():
            scheduler = self._machine.scheduler
            asking_ns = gpu.costs.host.query_ns
            return self._simulation.polling.ask(
                lambda: scheduler.done(meeting), asking_ns
            )

    def tell(self) -> None:
        """Tell the others of all that this process will come to, as far as known."""
        if not self._simulation.on:
            return
        with self._simulation.books():
            for meeting in self._open:
                self._machine.scheduler.come_to(meeting, asking=False)

    def tell_at_exit(self) -> None:
        """The program ends without a word; others may still ask for what it did."""
        if self in self._simulation.ranks.groups and self._simulation.on:
            with contextlib.suppress(RuntimeError, DeviceError):  # they may be gone
                self.tell()
                self._take_leave()

    def finish(self) -> None:
        """Everything ends, and nobody asks this process for anything any more."""
        groups = self._simulation.ranks.groups
        if self not in groups or not self._simulation.on:
            return
        groups.remove(self)
        atexit.unregister(self.tell_at_exit)
        with self._simulation.books():
            for stream in self._streams.values():
                self._machine.scheduler.wait_for_stream(stream.queue)
        self._take_leave()

    def _take_leave(self) -> None:
        """Wait a while until nobody asks for anything: one of us keeps the store."""
        circle = self._circle
        store, count = circle.store, len(self._members)
        store.set(f"farewell/{self._place}", "")
        until_s = time.monotonic() + _FAREWELL_S
        keys = [f"farewell/{place}" for place in range(count)]
        while not store.check(keys) and time.monotonic() < until_s:
            circle.pause()
            real_pause(_LONGEST_PAUSE_S)


class Ranks:
    """What all groups of a process share.

    Attributes:
        pace: How far this process is, for the others; None before the first group.

        groups: Those that there are.

        calls: The collectives so far.

        roll: Which have been called, and which one is waited for.

        deliveries: What gloo brings.

        host: Which node this process is on.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.pace: Pace | None = None
        self.groups: list[Collectives] = []
        self.calls: list[CollectiveCall] = []
        self.roll = Roll()
        self.deliveries = Deliveries(simulation, self.roll)
        self.host = 0


def _meeting_name(call: GroupCall, pair: tuple[int, int, int] | None) -> str:
    if pair is None:
        return f"all {call.number}"
    return f"{pair[0]} to {pair[1]}, {pair[2]}"


def _placement(gpu: SimulatedGpu, hosts: Sequence[bytes]) -> Placement:
    """How many nodes there are, and how many GPUs of the fullest take part."""
    counts = collections.Counter(hosts)
    return Placement(gpu.model, max(counts.values()), len(counts))
