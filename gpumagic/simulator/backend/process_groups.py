"""torch.distributed on simulated GPUs: gloo moves the numbers, a model says how long.

All members tell each other when their GPU comes to a call, and gloo moves the numbers
from twin to twin; the host really waits for both. On the machine's clock the collective
lies on a stream of its own, from the moment when this GPU has come until the last one
has and the time of the model has passed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.refusals import not_simulated, refusing
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.backend.tensors import operand_of
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    CollectiveCall,
    GroupCall,
    collective_time,
)
from gpumagic.simulator.scheduler import Scheduler, WorkName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream
    from gpumagic.simulator.scheduler import Work

    _List = list[Any]

_OURS = "gpumagic_simulated"  # what torch knows our groups by while it makes one
_NCCL_VERSION = (2, 27, 7)  # whose times the model has
_TIMEOUT = dt.timedelta(minutes=10)  # as NCCL's in torch
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3
_MOST_CALLS = 100_000
_BARRIER = "barrier"
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
    None: "alltoall gather scatter send recv",  # no collective of NCCL's own
}


def process_groups(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    groups = dist.distributed_c10d
    yield groups, "_new_process_group_helper", _making(simulation, groups)
    yield dist, "is_nccl_available", lambda: True
    yield torch.cuda.nccl, "version", lambda: _NCCL_VERSION
    yield groups, "default_pg_nccl_timeout", _TIMEOUT
    placed = groups._get_object_coll_device

    def device_of_objects(group: Any = None) -> str:
        """Where pickled objects go: the current GPU, which `.to("sim")` is not."""
        found: str = placed(group)
        if found not in {NAME, simulation.shown_type}:
            return found
        return f"{simulation.shown_type}:{simulation.gpu().index}"

    yield groups, "_get_object_coll_device", device_of_objects
    # What programs set of NCCL; nothing here depends on it.
    nccl = type("ProcessGroupNCCL", (), {"Options": types.SimpleNamespace})
    for module in (dist, groups):
        yield module, "ProcessGroupNCCL", nccl


def _making(simulation: Simulation, groups: Any) -> Callable[..., Any]:
    """Makes groups, ours where NCCL is meant."""
    make = groups._new_process_group_helper

    def new_process_group(
        size: int, rank: int, ranks: Any, backend: Any, *args: Any, **options: Any
    ) -> Any:
        said = str(backend).lower()
        undecided = said == groups.Backend.UNDEFINED
        if "nccl" not in said and not undecided:
            return make(size, rank, ranks, backend, *args, **options)
        options.pop("backend_options", None)
        on_host = undecided or "gloo" in said
        with _known_to_torch(
            groups.Backend, lambda given, _: _Group(simulation, given, on_host=on_host)
        ):
            group, of_group = make(size, rank, ranks, _OURS, *args, **options)
        if isinstance(group, _Group):
            group.bound_device_id = options.get("device_id")
            world = groups._world
            world.pg_map[group] = (groups.Backend(said), of_group)
            known = f"cpu:gloo,{NAME}:nccl" if on_host else f"{NAME}:nccl"
            world.pg_backend_config[group] = known
        return group, of_group

    return new_process_group


@contextlib.contextmanager
def _known_to_torch(backend: Any, create: Callable[..., Any]) -> Iterator[None]:
    """Let torch make our groups, for as long as it makes one."""
    defaults = dict(backend.default_device_backend_map)
    backend.register_backend(_OURS, create, extended_api=True, devices=["cpu", NAME])
    try:
        yield
    finally:
        delattr(backend, _OURS.upper())
        backend.backend_list.remove(_OURS)
        backend._plugins.pop(_OURS.upper(), None)
        for table in (backend.backend_capability, backend.backend_type_map):
            table.pop(_OURS, None)
        backend.default_device_backend_map.clear()
        backend.default_device_backend_map.update(defaults)


class _Group(dist.ProcessGroup):
    """A group of processes, each with a simulated GPU, as torch asks of it."""

    def __init__(self, simulation: Simulation, given: Any, *, on_host: bool) -> None:
        super().__init__(given.group_rank, given.group_size)
        self._simulation, self._on_host = simulation, on_host
        self._name = str(given.group_id)
        self.place, self.count = int(given.group_rank), int(given.group_size)
        members = [*given.global_ranks_in_group] or range(self.count)
        self._members = tuple(map(int, members))
        data = dist.PrefixStore("data", given.store)
        timeout = given.timeout
        self.gloo = dist.ProcessGroupGloo(data, self.place, self.count, timeout=timeout)
        # how many collectives each has called
        self._came = dist.PrefixStore("came", given.store)
        self._timeout = f"{timeout.total_seconds():g} s"
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

    def shutdown(self) -> None:
        """Nothing is left to do: all that was called has been done."""

    abort = shutdown
    group_name = property(lambda self: self._name)
    _device_types = property(
        lambda self: [torch.device(NAME), *[torch.device("cpu")] * self._on_host]
    )

    def barrier(self, opts: Any = None) -> Any:
        """All members meet, and the host waits for that."""
        given = getattr(opts, "device_ids", None) or [None]
        gpu = self._gpu or self._simulation.gpu(given[0])
        return self.collective(Collective.ALL_REDUCE, (), (), barrier_of=gpu)

    def collective(
        self,
        what: Collective,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        args: Any = (),
        *,
        barrier_of: SimulatedGpu | None = None,
    ) -> Any:
        """Run one of all members; answers with torch's handle of it.

        They meet, gloo moves the numbers, and it lies on a stream until its end.
        """
        simulation, machine = self._simulation, self._simulation.machine
        claimed, twin_of = simulation.tensors.claimed, simulation.tensors.twin_of
        gpu = self._gpu = barrier_of or claimed((*inputs, *outputs)[0]).gpu
        counted = outputs if what is Collective.ALL_GATHER else inputs or outputs
        nbytes = 4 if barrier_of else sum(each.nbytes for each in counted)
        call = self._next_call(_BARRIER if barrier_of else what.name.lower(), nbytes)
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
        with self._waiting(call):
            latest_ns = self._meet(call, came_ns)
            if not barrier_of:
                _move(self, what, read, filled, args)
        told = collective_time(what, nbytes, gpu.model, self.count)
        end_ns = latest_ns + told.ns
        name = f"ncclDevKernel_{what.value}_{told.algorithm}_{told.protocol}"
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
        if len(simulation.roll.calls) < _MOST_CALLS:
            simulation.roll.calls.append(
                CollectiveCall(
                    self._name, call.number, name, nbytes, called_ns, self._members,
                    end_ns - work.duration_ns, end_ns,
                )
            )  # fmt: skip
        with torch.no_grad():
            for each, given in zip(outputs, filled, strict=True):
                twin_of(each).copy_(given)
        host_waits = "dist.barrier()" if barrier_of else ""
        return _Handle(simulation, gpu, work, mark, [*outputs], host_waits)

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
        with self._simulation.roll.waiting(call):
            try:
                yield
            except RuntimeError as error:
                missing = ", ".join(map(str, self._missing(call)))
                said = f"rank {missing} did not come to {call} within {self._timeout}"
                if not missing:
                    said = f"{call} failed: {str(error).partition(chr(10))[0]}"
                raise DeviceError(
                    said,
                    "all ranks of the group have to call it; timeout= of "
                    "init_process_group",
                ) from None

    def _missing(self, call: GroupCall) -> _List:
        """The members that have called fewer collectives than this one."""

        def came(place: int) -> bool:
            there = self._came.check([str(place)])
            return there and int(self._came.get(str(place))) >= call.number

        return [rank for place, rank in enumerate(self._members) if not came(place)]

    def are_on_host(self, given: Any) -> bool:
        """Whether gloo does it; nothing mixes with anything."""
        kinds = {each.device.type for each in _tensors_in(given)}
        ours = {NAME, self._simulation.shown_type}
        if kinds <= ours:
            return False
        if kinds == {"cpu"} and self._on_host:
            return True
        raise RuntimeError(
            f"No backend type associated with device type {min(kinds - ours)}"
        )

    def _next_call(self, name: str, nbytes: int) -> GroupCall:
        if not isinstance(self._simulation.machine.scheduler, Scheduler):
            raise not_simulated("collectives in a graph", "capture what is around them")
        call = GroupCall(self._name, self._called, name, nbytes)
        self._called += 1
        self._simulation.roll.called(call)
        self._came.set(str(self.place), str(call.number))
        return call

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

    def __init__(
        self,
        simulation: Simulation,
        gpu: SimulatedGpu,
        work: Work,
        mark: Mark,
        outputs: _List,
        host_waits: str,
    ) -> None:
        super().__init__()
        self._simulation, self._gpu, self._outputs = simulation, gpu, outputs
        self._work, self._mark, self._host_waits = work, mark, host_waits

    def wait(self, _: Any = None) -> bool:
        """Let the current stream wait; the host does for a barrier alone."""
        work, mark, simulation = self._work, self._mark, self._simulation
        stream, scheduler = simulation.stream(self._gpu), simulation.machine.scheduler
        with simulation.books() as tracker:
            scheduler.wait(stream.queue, work, self._gpu.costs.host.wait_stream_ns)
            tracker.wait(stream.order, mark)
            if self._host_waits:
                began_ns = scheduler.now_ns
                scheduler.wait_for(work)
                tracker.host_waits_for_mark(mark)
                scheduler.host_waited(self._host_waits, began_ns)
        return True

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        """Whether it has ended by now, on the machine's clock."""
        simulation, work = self._simulation, self._work
        done, cost_ns = simulation.machine.scheduler.done, self._gpu.costs.host.query_ns
        with simulation.books():
            return simulation.polling.ask(lambda: done(work), cost_ns)

    is_success = is_completed

    def result(self) -> _List:
        return self._outputs

    def get_future(self) -> Any:
        """A future of those; whoever waits for it lets the current stream wait."""
        if torch._C._current_graph_task_id() != _NO_TASK:
            # DDP's reducer waits in C++, at the end of the backward pass.
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        base = torch.futures.Future

        def waiting(name: str) -> Any:
            def call(future: Any, *args: Any) -> Any:
                self.wait()
                return getattr(base, name)(future, *args)

            return call

        methods = {name: waiting(name) for name in ("wait", "value", "then")}
        future = type("Future", (base,), methods)()
        future.set_result(self._outputs)
        return future


# ------------------------------------------------------------- how gloo does each


def _method(gloo_name: str, what: Collective | None) -> Callable[..., Any]:
    """One of torch's methods, called with what is filled, what is read, and options."""
    refuse = refusing(f"{gloo_name} among GPUs", "all_gather or broadcast does it")

    def call(self: _Group, *args: Any) -> Any:
        if self.are_on_host(args[:2]):
            return getattr(self.gloo, gloo_name)(*args)
        if what is None:
            return refuse()
        given = [
            [*_tensors_in(each)]
            for each in args[:2]
            if isinstance(each, (torch.Tensor, list, tuple))
        ]
        outputs, inputs = given[0], given[-1]
        if what in {Collective.REDUCE, Collective.BROADCAST}:
            is_root = args[-1].rootRank == self.place
            if what is Collective.BROADCAST:
                inputs, outputs = (inputs, []) if is_root else ([], outputs)
            elif not is_root:
                outputs = []
        return self.collective(what, inputs, outputs, args)

    return call


for _what, _names in _METHODS.items():
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


def _tensors_in(given: Any) -> Iterator[Any]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each)
