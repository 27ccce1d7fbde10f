"""torch.distributed on simulated GPUs: gloo moves the numbers, a model says how long.

All members tell each other when their GPU comes to a call, and gloo moves the numbers
from twin to twin; the host really waits for both. On the machine's clock the collective
lies on a stream of its own, from the moment when this GPU has come until the last one
has and the time of the model has passed.
"""

from __future__ import annotations

import datetime as dt
import threading
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.call import tensors_in
from gpumagic.simulator.backend.refusals import refusing
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.backend.tensors import operand_of
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    CollectiveCall,
    GroupCall,
    collective_time,
)
from gpumagic.simulator.scheduler import WorkName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream

    _List = list[Any]

_OURS = "GPUMAGIC_SIMULATED"  # what torch knows our groups by while it makes one
_NCCL_VERSION = (2, 27, 7)  # whose times the model has
_TIMEOUT = dt.timedelta(minutes=10)  # as NCCL's in torch
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3
_BARRIER, _BARRIER_BYTES = "barrier", 4
_NAMES = (*(each.name.lower() for each in Collective), _BARRIER)
_NO_TASK = -1  # outside of any backward pass
# What gloo calls each, and what versions of torch call the same.
_METHODS = {
    Collective.ALL_REDUCE: "allreduce allreduce_coalesced",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
    Collective.ALL_GATHER: "allgather _allgather_base all_gather_single"
    " allgather_into_tensor_coalesced all_gather_single_coalesced",
    Collective.REDUCE_SCATTER: "reduce_scatter _reduce_scatter_base"
    " reduce_scatter_single reduce_scatter_tensor_coalesced"
    " reduce_scatter_single_coalesced",
    Collective.ALL_TO_ALL: "alltoall_base all_to_all_single",
}
_NONE_OF_NCCL = [(None, e) for e in ("alltoall", "gather", "scatter", "send", "recv")]


def process_groups(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    groups, known = dist.distributed_c10d, dist.Backend
    ours = known._BackendPlugin(lambda given, _: _Group(simulation, given), True)
    make, placed = groups._new_process_group_helper, groups._get_object_coll_device

    def new_process_group(
        size: int, rank: int, ranks: Any, backend: Any, *args: Any, **options: Any
    ) -> Any:
        """A group of ours where NCCL is meant."""
        asked = str(backend).lower()
        undecided = asked == groups.Backend.UNDEFINED
        if "nccl" not in asked and not undecided:
            return make(size, rank, ranks, backend, *args, **options)
        options.pop("backend_options", None)
        known._plugins[_OURS] = ours
        try:
            made = make(size, rank, ranks, f"{NAME}:{_OURS}", *args, **options)
        finally:
            known._plugins.pop(_OURS, None)
        group, of_group = made
        if isinstance(group, _Group):  # and not what torch has for those outside
            if undecided or "gloo" in asked:
                group.backends["cpu"] = "gloo"
            group.bound_device_id = options.get("device_id")
            world, backends = groups._world, group.backends.items()
            world.pg_map[group] = (groups.Backend(asked), of_group)
            world.pg_backend_config[group] = ",".join(map(":".join, backends))
        return group, of_group

    def device_of_objects(group: Any = None) -> str:
        """Where pickled objects go: the current GPU, which `.to("sim")` is not."""
        found: str = placed(group)
        if found not in {NAME, simulation.shown_type}:
            return found
        return f"{simulation.shown_type}:{simulation.gpu().index}"

    yield groups, "_new_process_group_helper", new_process_group
    yield groups, "_get_object_coll_device", device_of_objects
    yield groups, "default_pg_nccl_timeout", _TIMEOUT
    yield dist, "is_nccl_available", lambda: True
    yield torch.cuda.nccl, "version", lambda: _NCCL_VERSION
    # What programs set of NCCL; nothing here depends on it.
    nccl = type("ProcessGroupNCCL", (), {"Options": types.SimpleNamespace})
    for module in (dist, groups):
        yield module, "ProcessGroupNCCL", nccl


class _Group(dist.ProcessGroup):
    """A group of processes, each with a simulated GPU, as torch asks of it."""

    def __init__(self, simulation: Simulation, given: Any) -> None:
        super().__init__(given.group_rank, given.group_size)
        self._simulation, self._name = simulation, str(given.group_id)
        self.place, self.count = int(given.group_rank), int(given.group_size)
        members = [*given.global_ranks_in_group] or range(self.count)
        self._members = tuple(map(int, members))
        self.backends = {NAME: "nccl"}  # by the kind of device
        self.gloo = dist.ProcessGroupGloo(
            given.store, self.place, self.count, timeout=given.timeout
        )
        self._within = f"within {given.timeout.total_seconds():g} s"
        # how many collectives each has called
        self._came = dist.PrefixStore("came", given.store)
        self._streams: dict[SimulatedGpu, SimulatedStream] = {}
        self._called = 0
        self._gpu: SimulatedGpu | None = None  # the one that was used last
        # Making a group waits for all members: so do the clocks of their hosts.
        scheduler = simulation.machine.scheduler
        made = self._exchange([scheduler.now_ns])
        scheduler.elapse(max(now_ns for (now_ns,) in made) - scheduler.now_ns)

    def size(self) -> int:
        return self.count

    def rank(self) -> int:
        return self.place

    def getBackendName(self) -> str:  # noqa: N802 -- torch's spelling
        return "nccl"

    def _get_backend(self, _: Any) -> Any:
        return self.gloo

    def abort(self) -> None:
        """Nothing is left to do: all that was called has been done."""

    shutdown = abort
    group_name = property(lambda self: self._name)
    _device_types = property(lambda self: [*map(torch.device, self.backends)])

    def barrier(self, opts: Any = None) -> Any:
        """All members meet, and the host waits for that."""
        given = getattr(opts, "device_ids", None) or [None]
        gpu = self._gpu or self._simulation.gpu(given[0])
        handle = self._run(_BARRIER, Collective.ALL_REDUCE, gpu, _BARRIER_BYTES)
        handle.host_waits = "dist.barrier()"
        return handle

    def collective(
        self, what: Collective, inputs: _List, outputs: _List, args: Any
    ) -> Any:
        """Run one of all members; answers with torch's handle of it."""
        self._gpu = self._simulation.tensors.claimed((*inputs, *outputs)[0]).gpu
        counted = inputs or outputs
        if what is Collective.ALL_GATHER:
            counted = outputs
        about = self._gpu, sum(each.nbytes for each in counted)
        return self._run(what.name.lower(), what, *about, inputs, outputs, args)

    def _run(
        self, called: str, what: Collective, gpu: SimulatedGpu, nbytes: int,
        inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), args: Any = (),
    ) -> _Handle:  # fmt: skip
        """All meet, gloo moves the numbers, and it lies on a stream until its end."""
        simulation, machine = self._simulation, self._simulation.machine
        claimed, twin_of = simulation.tensors.claimed, simulation.tensors.twin_of
        empty = torch.empty
        filled = [empty(e.shape, dtype=e.dtype, device="cpu") for e in outputs]
        read = [twin_of(each).detach().contiguous() for each in inputs]
        current, here = simulation.stream(gpu), simulation.places.here()
        with simulation.books():
            gpu.start()
            if gpu not in self._streams:
                self._streams[gpu] = gpu.own_stream()
            stream = self._streams[gpu]
            called_ns = machine.scheduler.now_ns
            machine.wait(stream, current)
            came_ns = machine.scheduler.come_to(stream.queue, HOST_NS)
        call = GroupCall(self._name, self._called, called, nbytes)
        self._called += 1
        self._came.set(str(self.place), str(self._called))
        simulation.roll.called(call)
        try:
            with simulation.roll.waiting(call):
                latest_ns = self._meet(call, came_ns)
                _move(self, what, read, filled, args)
        except RuntimeError as error:
            problem = f"{call} failed: {str(error).partition(chr(10))[0]}"
            if missing := self._missing(call):
                problem = f"rank {missing} did not come to {call} {self._within}"
            raise DeviceError(
                problem,
                "all ranks of the group have to call it, within the timeout= of "
                "init_process_group; in a notebook %gpu_ranks where tells more",
            ) from None
        took_ns, way = collective_time(what, nbytes, gpu.model, self.count)
        end_ns = latest_ns + took_ns
        name = f"ncclDevKernel_{what.value}_{way}"
        spot = GroupPlace(self._name, call.number, what.value, self._members, nbytes)
        reads, writes = (
            [operand_of(each, claimed(each))[0] for each in tensors]
            for tensors in (inputs, outputs)
        )
        with simulation.books() as tracker:
            kernel = WorkName(name, place=spot)
            work = machine.scheduler.occupy(stream.queue, end_ns, kernel)
            races = tracker.operate(stream.order, reads, writes, here)
            mark = tracker.record(stream.order)
        if races:
            simulation.tell(races)
        when_ns = end_ns - work.duration_ns, end_ns
        about = call.number, name, nbytes, called_ns, self._members, *when_ns
        simulation.roll.calls.append(CollectiveCall(self._name, *about))
        with torch.no_grad():
            for each, given in zip(outputs, filled, strict=True):
                twin_of(each).copy_(given)
        return _Handle(simulation, gpu, work, mark, [*outputs])

    def _missing(self, call: GroupCall) -> str:
        """The members that have called fewer collectives than this one."""

        def came(place: str) -> bool:
            there = self._came.check([place])
            return there and int(self._came.get(place)) > call.number

        members = enumerate(map(str, self._members))
        return ", ".join(rank for place, rank in members if not came(str(place)))

    def wait(self, work: Any) -> None:
        """Wait for gloo, so that Ctrl-C need not."""
        pause_s, pause = _SHORTEST_PAUSE_S, threading.Event()
        while not work.is_completed():
            pause.wait(pause_s)  # `time.sleep` would move the clock of the machine
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        work.wait()

    def are_on_host(self, given: Any) -> bool:
        """Whether gloo does it; nothing mixes with anything."""
        kinds = {each.device.type for each in tensors_in(given)}
        ours = {NAME, self._simulation.shown_type}
        if kinds <= ours:
            return False
        if kinds == {"cpu"} <= {*self.backends}:
            return True
        raise RuntimeError(
            f"No backend type associated with device type {min(kinds - ours)}"
        )

    def _meet(self, call: GroupCall, came_ns: int) -> int:
        """When the last of the members comes, if all mean the same.

        To be asked before anything else is sent: what has the wrong size ends gloo,
        and its process.
        """
        met = self._exchange([came_ns, _NAMES.index(call.name), call.nbytes])
        for place, (_, name, nbytes) in enumerate(met):
            theirs = call._replace(name=_NAMES[name], nbytes=nbytes)
            if theirs != call:
                raise DeviceError(
                    f"rank {self._members[place]} calls {theirs}, this rank {call}, as "
                    "the same collective",
                    "all ranks of a group have to call the same ones in the same order",
                )
        return max(each_ns for each_ns, *_ in met)

    def _exchange(self, own: Sequence[int]) -> list[list[int]]:
        """A few numbers of each member, for all."""
        given = torch.tensor(own, device="cpu")
        found = [torch.empty_like(given) for _ in range(self.count)]
        self.wait(self.gloo.allgather([found], [given]))
        return [each.tolist() for each in found]


class _Handle(dist.Work):
    """A handle of a collective that was called, as NCCL's."""

    host_waits = ""  # what the host waits in, for a barrier alone

    def __init__(self, simulation: Simulation, gpu: SimulatedGpu, *about: Any) -> None:
        super().__init__()
        self._simulation, self._gpu = simulation, gpu
        self._work, self._mark, self._outputs = about

    def wait(self, _: Any = None) -> bool:
        """Let the current stream wait."""
        work, mark, simulation = self._work, self._mark, self._simulation
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
        simulation, work = self._simulation, self._work
        done, cost_ns = simulation.machine.scheduler.done, self._gpu.costs.host.query_ns
        with simulation.books():
            return simulation.polling.ask(lambda: done(work), cost_ns)

    is_success = is_completed

    def get_future(self) -> Any:
        """A future of those; whoever waits for it lets the current stream wait."""
        if torch._C._current_graph_task_id() != _NO_TASK:
            # DDP's reducer waits in C++, at the end of the backward pass.
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        future = _Future()
        future.handle = self
        future.set_result(self._outputs)
        return future


class _Future(torch.futures.Future):
    """What a collective gives, to be waited for on the device."""

    handle: _Handle

    def wait(self) -> Any:
        self.handle.wait()
        return super().wait()

    def then(self, callback: Any) -> Any:
        self.handle.wait()
        return super().then(callback)


# ------------------------------------------------------------- how gloo does each


def _method(gloo_name: str, what: Collective | None) -> Callable[..., Any]:
    """One of torch's methods, called with what is filled, what is read, and options."""
    refuse = refusing(f"{gloo_name} among GPUs", "all_gather or broadcast does it")

    def call(self: _Group, *args: Any) -> Any:
        if self.are_on_host(args[:2]):
            return getattr(self.gloo, gloo_name)(*args)
        if what is None:
            return refuse()
        given = [*filter(None, map(tensors_in, args[:2]))]
        outputs, inputs = given[0], given[-1]
        is_root = getattr(args[-1], "rootRank", self.place) == self.place
        if what is Collective.BROADCAST and not is_root:
            inputs = []
        elif what is Collective.BROADCAST or not is_root:
            outputs = []
        return self.collective(what, inputs, outputs, args)

    return call


for _what, _names in (*_METHODS.items(), *_NONE_OF_NCCL):
    for _name in _names.split():
        setattr(_Group, _name, _method(_names.partition(" ")[0], _what))


def _move(
    group: _Group, what: Collective, own: _List, filled: _List, args: Any
) -> None:
    """Let gloo do with what is read what NCCL does, into what is filled."""
    gloo, count = group.gloo, group.count
    if what is Collective.BROADCAST:
        for each in own or filled:
            group.wait(gloo.broadcast([each], args[-1]))
    elif what is Collective.ALL_TO_ALL:
        to, of = [*args[2]], [*args[3]]
        group.wait(gloo.alltoall_base(*filled, *own, to, of, args[-1]))
    elif what is Collective.ALL_GATHER:
        for each, parts in zip(own, _by_rank(filled, len(own), count), strict=True):
            group.wait(gloo.allgather([parts], [each.view(-1)]))
    elif what is Collective.REDUCE_SCATTER:
        for each, parts in zip(filled, _by_rank(own, len(filled), count), strict=True):
            total = _sum(group, torch.cat(parts), args[-1].reduceOp)
            each.copy_(total.view(count, *each.shape)[group.place])
    else:
        totals = [_sum(group, each.clone(), args[-1].reduceOp) for each in own]
        for each, total in zip(filled, totals, strict=False):  # one keeps what is
            each.copy_(total)  # reduced, the others have no outputs


def _sum(group: _Group, total: Any, op: Any) -> Any:
    """A tensor, reduced with those of the others in its own memory."""
    ops, opts = dist.ReduceOp, torch._C._distributed_c10d.AllreduceOptions()
    opts.reduceOp = ops.SUM if op == ops.AVG else op
    group.wait(group.gloo.allreduce([total], opts))
    if op == ops.AVG:
        rounding = None if total.is_floating_point() else "trunc"
        total.div_(group.count, rounding_mode=rounding)
    return total


def _by_rank(wholes: _List, count: int, ranks: int) -> list[_List]:
    """The parts of all ranks, one list a tensor, each tensor whole or in its parts."""
    if len(wholes) == count:
        return [[*each.view(-1).chunk(ranks)] for each in wholes]
    flat = [each.view(-1) for each in wholes]
    return [flat[at : at + ranks] for at in range(0, len(flat), ranks)]
