"""Runs the collectives of one group: gloo moves numbers, the model says how long.

A call is settled at once. All members tell each other when their GPU comes to it, and
gloo moves the numbers from twin to twin; the host really waits for both. On the
machine's clock it goes on: the collective lies on a stream of its own, from the moment
when this GPU has come until the last one has and the time of the model has passed.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    Placement,
    collective_time,
)
from gpumagic.simulator.engines import WorkName
from gpumagic.simulator.meetings import CollectiveCall, GroupCall, Roll
from gpumagic.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.engines import Work
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

    Move = Callable[[list[Any], list[Any]], object]

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3
_MOST_CALLS = 100_000
_BARRIER = "barrier"
_NAMES = (*(each.name.lower() for each in Collective), _BARRIER)
_NO_TASK = -1  # outside of any backward pass


class Ranks:
    """What all groups of a process share."""

    def __init__(self) -> None:
        self.calls: list[CollectiveCall] = []
        self.roll = Roll()
        self.host = 0  # which node this process is on


class _Come(NamedTuple):
    """A GPU has come to a collective."""

    gpu: SimulatedGpu
    call: GroupCall
    stream: SimulatedStream
    places: tuple[int, ...]  # of those who take part
    called_ns: int
    start_ns: int


class Collectives:
    """The collectives of this process in one group."""

    def __init__(self, simulation: Simulation, gloo: Any, given: Any) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        self._gloo = gloo
        self._group = str(given.group_id)
        self.place = int(given.group_rank)
        self.count = int(given.group_size)
        members = [*given.global_ranks_in_group] or range(self.count)
        self._members = tuple(map(int, members))
        self._streams: dict[tuple[int, ...], SimulatedStream] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._called = 0
        self._gpu: SimulatedGpu | None = None  # the first that was used
        # how many collectives each has called
        self._came = simulation.torch.distributed.PrefixStore("came", given.store)
        self.timeout = f"{given.timeout.total_seconds():g} s"
        work = simulation.torch.distributed.Work
        self._handle: Any = type("Work", (_Work, work), {"_base": work})
        # Making a group waits for all members: so do the clocks of their hosts.
        scheduler = simulation.machine.scheduler
        made = self._exchange([scheduler.now_ns, simulation.ranks.host])
        scheduler.elapse(max(now_ns for now_ns, _ in made) - scheduler.now_ns)
        self._hosts = [host for _, host in made]

    # ----------------------------------------------------------------- a call

    def collective(
        self,
        what: Collective,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        nbytes: int,
        move: Move,
        word: str = "",
    ) -> Any:
        """Run one of all members; answers with torch's handle of it.

        `move` is given what is read, in one piece, and what to fill on the CPU.
        """
        gpu = self._gpu_of((*inputs, *outputs)[0])
        come = self._come(gpu, self._next_call(what.name.lower(), nbytes))
        filled = self._empty_like(outputs)
        with self._waiting(come.call):
            latest_ns = self._meet(come)
            move([self._read(each) for each in inputs], filled)
        self._fill(outputs, filled)
        entered = self._enter(what, come, latest_ns, inputs, outputs, word)
        return self._handle(self, gpu, lambda: entered, outputs)

    def barrier(self, index: int | None) -> Any:
        """All members meet, and the host waits for that."""
        gpu = self._gpu
        if index is not None or gpu is None:
            visible = len(self._simulation.latch.visible())
            here = self._members[self.place] % visible
            gpu = self._simulation.gpu(here if index is None else index)
        come = self._come(gpu, self._next_call(_BARRIER, 4))
        with self._waiting(come.call):
            latest_ns = self._meet(come)
        what = Collective.ALL_REDUCE
        entered = self._enter(what, come, latest_ns, (), (), "Sum_f32")
        handle = self._handle(self, gpu, lambda: entered, ())
        handle.host_waits = "dist.barrier()"
        return handle

    def send(self, tensors: Sequence[Any], to: int) -> Any:
        """Send to one, which is not waited for."""
        come = self._come_to_one(tensors, self.place, to)
        head = self._torch.tensor([come.start_ns, come.call.nbytes])
        numbers = [self._read(each).clone() for each in tensors]
        for tag, sent in enumerate(([head], numbers), 2 * come.call.number):
            # a thread keeps what is sent, until it has come
            wait = _waiting(self._gloo.send(sent, to, tag), sent, [])
            threading.Thread(target=wait, daemon=True).start()
        what = Collective.SEND_RECEIVE
        entered = self._enter(what, come, come.start_ns, tensors, ())
        return self._handle(self, come.gpu, lambda: entered, tensors)

    def receive(self, tensors: Sequence[Any], source: int) -> Any:
        """Receive from one: whoever waits for the handle waits for what is sent."""
        come = self._come_to_one(tensors, source, self.place)
        call = come.call

        def enter() -> tuple[Work, Mark]:
            head, filled = self._torch.zeros(2, dtype=int), self._empty_like(tensors)
            with self._waiting(call):
                self._receive([head], source, 2 * call.number)
                sent_ns, nbytes = head.tolist()
                if nbytes != call.nbytes:
                    sent = call._replace(name="send", nbytes=nbytes)
                    raise self._not_the_same(source, sent, call)
                self._receive(filled, source, 2 * call.number + 1)
            self._fill(tensors, filled)
            latest_ns = max(come.start_ns, sent_ns)
            return self._enter(Collective.SEND_RECEIVE, come, latest_ns, (), tensors)

        return self._handle(self, come.gpu, enter, tensors)

    def wait(self, work: Any) -> None:
        """Wait for gloo, so that Ctrl-C need not."""
        pause_s, pause = _SHORTEST_PAUSE_S, threading.Event()
        while not work.is_completed():
            pause.wait(pause_s)  # `time.sleep` would move the clock of the machine
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        work.wait()

    @contextlib.contextmanager
    def _waiting(self, call: GroupCall) -> Iterator[None]:
        """The host waits in a collective, during a block."""
        with self._simulation.ranks.roll.waiting(call):
            try:
                yield
            except RuntimeError as error:
                missing = self._who_is_missing(call)
                said = f"rank {missing} did not come to {call} within {self.timeout}"
                if not missing:
                    said = f"{call} failed: {str(error).partition(chr(10))[0]}"
                raise DeviceError(
                    said,
                    "all ranks of the group have to call it; timeout= of "
                    "init_process_group",
                ) from None

    def _who_is_missing(self, call: GroupCall) -> str:
        """The members that have called fewer collectives than this one."""
        places = range(self.count)
        came = [
            self._came.check([str(place)])
            and int(self._came.get(str(place))) >= call.number
            for place in places
        ]
        away = [self._members[place] for place in places if not came[place]]
        return ", ".join(map(str, away))

    # -------------------------------------------------------------- its parts

    def _next_call(self, name: str, nbytes: int) -> GroupCall:
        if not isinstance(self._simulation.machine.scheduler, Scheduler):
            raise not_simulated("collectives in a graph", "capture what is around them")
        self._called += 1
        call = GroupCall(self._group, self._called - 1, name, nbytes)
        self._simulation.ranks.roll.called(call)
        self._came.set(str(self.place), str(call.number))
        return call

    def _come_to_one(self, tensors: Sequence[Any], source: int, to: int) -> _Come:
        """As with NCCL the order between two counts, and no tag."""
        pair = source, to
        number = self._numbers.get(pair, 0)
        self._numbers[pair] = number + 1
        nbytes = sum(each.nbytes for each in tensors)
        name = "send" if source == self.place else "recv"
        call = GroupCall(self._group, number, name, nbytes, of_two=True)
        return self._come(self._gpu_of(tensors[0]), call, pair)

    def _gpu_of(self, tensor: Any) -> SimulatedGpu:
        gpu: SimulatedGpu = self._simulation.tensors.claimed(tensor).gpu
        self._gpu = self._gpu or gpu
        return gpu

    def _come(
        self, gpu: SimulatedGpu, call: GroupCall, pair: tuple[int, ...] = ()
    ) -> _Come:
        """The GPU comes to a collective, on the stream of such calls."""
        machine, key = self._simulation.machine, (gpu.number, *pair)
        current = self._simulation.stream(gpu)
        with self._simulation.books():
            gpu.start()
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = gpu.own_stream()
            called_ns = machine.scheduler.now_ns
            machine.wait(stream, current)
            start_ns = machine.scheduler.come_to(stream.queue, HOST_NS)
        places = pair or (*range(self.count),)
        return _Come(gpu, call, stream, places, called_ns, start_ns)

    def _meet(self, come: _Come) -> int:
        """When the last of the members comes, if all mean the same.

        To be asked before anything else is sent: what has the wrong size ends gloo,
        and its process.
        """
        call = come.call
        met = self._exchange([come.start_ns, _NAMES.index(call.name), call.nbytes])
        for place, (_, name, nbytes) in enumerate(met):
            theirs = call._replace(name=_NAMES[name], nbytes=nbytes)
            if theirs != call:
                raise self._not_the_same(place, theirs, call)
        return max(start_ns for start_ns, *_ in met)

    def _exchange(self, own: Sequence[int]) -> list[list[int]]:
        """A few numbers of each member, for all."""
        given = self._torch.tensor(own, device="cpu")
        found = [self._torch.empty_like(given) for _ in range(self.count)]
        self.wait(self._gloo.allgather([found], [given]))
        return [each.tolist() for each in found]

    def _receive(self, filled: list[Any], source: int, tag: int) -> None:
        error: list[BaseException] = []
        wait = _waiting(self._gloo.recv(filled, source, tag), filled, error)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join()
        if error:
            raise error[0]

    def _read(self, tensor: Any) -> Any:
        return self._simulation.tensors.twin_of(tensor).detach().contiguous()

    def _empty_like(self, tensors: Sequence[Any]) -> list[Any]:
        empty = self._torch.empty
        return [empty(each.shape, dtype=each.dtype, device="cpu") for each in tensors]

    def _fill(self, tensors: Sequence[Any], filled: list[Any]) -> None:
        with self._torch.no_grad():
            for each, given in zip(tensors, filled, strict=True):
                self._simulation.tensors.twin_of(each).copy_(given)

    def _enter(
        self,
        what: Collective,
        come: _Come,
        latest_ns: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        word: str = "",
    ) -> tuple[Work, Mark]:
        """Put it on its stream, until its end."""
        simulation, call = self._simulation, come.call
        members = tuple(self._members[place] for place in come.places)
        nodes = collections.Counter(self._hosts[place] for place in come.places)
        placement = Placement(come.gpu.model, max(nodes.values()), len(nodes))
        told = collective_time(what, call.nbytes, placement)
        end_ns = latest_ns + told.ns
        parts = "ncclDevKernel", what.value, word, told.algorithm, told.protocol
        name = "_".join(filter(None, parts))
        spot = GroupPlace(self._group, call.number, what.value, members, call.nbytes)
        reads, writes = (
            [operand_of(each, simulation.tensors.claimed(each))[0] for each in tensors]
            for tensors in (inputs, outputs)
        )
        stream, here = come.stream, simulation.places.here()
        with simulation.books() as tracker:
            work = simulation.machine.scheduler.occupy(
                stream.queue, end_ns, WorkName(name, place=spot)
            )
            races = tracker.operate(stream.order, reads, writes, here)
            mark = tracker.record(stream.order)
        if races and simulation.tracking:
            simulation.tell(races)
        if len(simulation.ranks.calls) < _MOST_CALLS:
            simulation.ranks.calls.append(
                CollectiveCall(
                    self._group, call.number, name, call.nbytes, come.called_ns,
                    members, told.algorithm, end_ns - work.duration_ns, end_ns,
                )
            )  # fmt: skip
        return work, mark

    def _not_the_same(
        self, place: int, theirs: GroupCall, own: GroupCall
    ) -> DeviceError:
        return DeviceError(
            f"rank {self._members[place]} calls {theirs}, this rank {own}, as the same "
            "collective",
            "all ranks of a group have to call the same ones in the same order",
        )


def _waiting(work: Any, kept: Any, error: list[BaseException]) -> Callable[[], None]:
    """What a thread does that waits for gloo: Ctrl-C need not, and `kept` stays."""

    def wait(_: Any = kept) -> None:
        try:
            work.wait()
        except Exception as raised:  # noqa: BLE001 -- raised where it is waited for
            error.append(raised)

    return wait


class _Work:
    """A handle of a collective that was called, as NCCL's."""

    _base: Any
    host_waits = ""

    def __init__(
        self,
        owner: Collectives,
        gpu: SimulatedGpu,
        come: Callable[[], tuple[Work, Mark]],
        outputs: Sequence[Any],
    ) -> None:
        self._base.__init__(self)
        self._simulation = owner._simulation
        self._gpu = gpu
        self._come = come
        self._entered: tuple[Work, Mark] | None = None
        self._outputs = [*outputs]

    def _enter(self) -> tuple[Work, Mark]:
        if self._entered is None:
            self._entered = self._come()
        return self._entered

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait; the host does for a barrier alone."""
        del timeout
        (work, mark), simulation = self._enter(), self._simulation
        stream, scheduler = simulation.stream(self._gpu), simulation.machine.scheduler
        with simulation.books() as tracker:
            scheduler.wait(stream.queue, work, self._gpu.costs.host.wait_stream_ns)
            tracker.wait(stream.order, mark)
            if self.host_waits:
                began_ns = scheduler.now_ns
                scheduler.wait_for(work)
                tracker.host_waits_for_mark(mark)
                scheduler.host_waited(self.host_waits, began_ns)
        return True

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        """Whether it has ended by now, on the machine's clock."""
        (work, _), simulation = self._enter(), self._simulation
        with simulation.books():
            done = simulation.machine.scheduler.done
            return simulation.polling.ask(
                lambda: done(work), self._gpu.costs.host.query_ns
            )

    is_success = is_completed

    def exception(self) -> None:
        """There are none."""

    def result(self) -> list[Any]:
        """The tensors that it writes."""
        return self._outputs

    def get_future(self) -> Any:
        """A future of those; whoever waits for it lets the current stream wait."""
        torch = self._simulation.torch
        if torch._C._current_graph_task_id() != _NO_TASK:
            # DDP's reducer waits in C++, at the end of the backward pass.
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        base = torch.futures.Future

        def waiting(method: Any) -> Any:
            def call(future: Any, *args: Any) -> Any:
                self.wait()
                return method(future, *args)

            return call

        names = ("wait", "value", "then")
        methods = {name: waiting(getattr(base, name)) for name in names}
        future = type("Future", (base,), methods)()
        future.set_result(self._outputs)
        return future
