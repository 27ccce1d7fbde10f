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

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.backend.refusals import not_simulated, refusing
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    CollectiveCall,
    GroupCall,
    Roll,
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
    # Given the group, what is read, what to fill on the CPU, and torch's arguments.
    _Move = Callable[["_Group", _List, _List, Any], object]

_OURS = "gpumagic_simulated"  # what torch knows our groups by while it makes one
_NCCL_VERSION = (2, 27, 7)  # whose times the model has
_TIMEOUT = dt.timedelta(minutes=10)  # as NCCL's in torch
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


# ------------------------------------------------------------------ made by torch


def process_groups(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    groups = distributed.distributed_c10d
    methods = {
        name: _method(names[0], what, move)
        for names, what, move in _METHODS
        for name in names
    }
    of_simulation = {"_simulation": simulation, **methods}
    kind = type("ProcessGroup", (_Group, distributed.ProcessGroup), of_simulation)
    make = groups._new_process_group_helper
    yield groups, "_new_process_group_helper", _making(groups, make, kind)
    yield distributed, "is_nccl_available", lambda: True
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
    options = type("Options", (types.SimpleNamespace,), {})
    nccl = type("ProcessGroupNCCL", (), {"Options": options})
    for module in (distributed, groups):
        yield module, "ProcessGroupNCCL", nccl


def _making(groups: Any, make: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    """Makes groups, ours where NCCL is meant."""

    def new_process_group(
        size: int, rank: int, ranks: Any, backend: Any, store: Any, *args: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        said = str(backend).lower()
        undecided = said == groups.Backend.UNDEFINED
        if "nccl" not in said and not undecided:
            return make(size, rank, ranks, backend, store, *args, **options)
        options.pop("backend_options", None)
        on_host = undecided or "gloo" in said
        with _known_to_torch(groups, lambda given, _: kind(given, on_host=on_host)):
            group, of_group = make(size, rank, ranks, _OURS, store, *args, **options)
        if isinstance(group, kind):
            bound: Any = group
            bound.bound_device_id = options.get("device_id")
            world = groups._world
            world.pg_map[group] = (groups.Backend(said), of_group)
            known = f"cpu:gloo,{NAME}:nccl" if on_host else f"{NAME}:nccl"
            world.pg_backend_config[group] = known
        return group, of_group

    return new_process_group


@contextlib.contextmanager
def _known_to_torch(groups: Any, create: Callable[..., Any]) -> Iterator[None]:
    """Let torch make our groups, for as long as it makes one."""
    backend = groups.Backend
    defaults = dict(backend.default_device_backend_map)
    backend.register_backend(_OURS, create, extended_api=True, devices=["cpu", NAME])
    try:
        yield
    finally:
        delattr(backend, _OURS.upper())
        backend._plugins.pop(_OURS.upper(), None)
        backend.backend_list.remove(_OURS)
        backend.backend_capability.pop(_OURS, None)
        backend.backend_type_map.pop(_OURS, None)
        backend.default_device_backend_map.clear()
        backend.default_device_backend_map.update(defaults)


# ---------------------------------------------------------------------- one group


class _Group:
    """A group of processes, each with a simulated GPU, as torch asks of it."""

    _simulation: Simulation

    def __init__(self, given: Any, *, on_host: bool) -> None:
        distributed = torch.distributed
        distributed.ProcessGroup.__init__(self, given.group_rank, given.group_size)
        self._group = str(given.group_id)
        self.place, self.count = int(given.group_rank), int(given.group_size)
        members = [*given.global_ranks_in_group] or range(self.count)
        self._members = tuple(map(int, members))
        self._on_host = on_host
        self.gloo = distributed.ProcessGroupGloo(
            distributed.PrefixStore("data", given.store),
            self.place,
            self.count,
            timeout=given.timeout,
        )
        # how many collectives each has called
        self._came = distributed.PrefixStore("came", given.store)
        self._timeout = f"{given.timeout.total_seconds():g} s"
        self._streams: dict[SimulatedGpu, SimulatedStream] = {}
        self._called = 0
        self._gpu: SimulatedGpu | None = None  # the first that was used
        base = distributed.Work
        self._handle: Any = type("Work", (_Handle, base), {"_base": base})
        # Making a group waits for all members: so do the clocks of their hosts.
        scheduler = self._simulation.machine.scheduler
        made = self._exchange([scheduler.now_ns])
        scheduler.elapse(max(now_ns for (now_ns,) in made) - scheduler.now_ns)

    def size(self) -> int:
        return self.count

    def rank(self) -> int:
        return self.place

    @property
    def group_name(self) -> str:
        return self._group

    def getBackendName(self) -> str:  # noqa: N802 -- torch's spelling
        return "nccl"

    @property
    def _device_types(self) -> _List:
        names = ["cpu", NAME] if self._on_host else [NAME]
        return [torch.device(name) for name in names]

    def _get_backend(self, _: Any) -> Any:
        return self.gloo

    def shutdown(self) -> None:
        """Nothing is left to do: all that was called has been done."""

    abort = shutdown

    # ----------------------------------------------------------------- calls

    def collective(
        self,
        what: Collective,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        move: Callable[[_List, _List], object] = lambda *_: None,
        *,
        barrier_of: SimulatedGpu | None = None,
    ) -> Any:
        """Run one of all members; answers with torch's handle of it.

        They meet, gloo moves the numbers, and it lies on a stream until its end.
        """
        simulation, machine = self._simulation, self._simulation.machine
        claimed, twin_of = simulation.tensors.claimed, simulation.tensors.twin_of
        gpu = barrier_of or claimed((*inputs, *outputs)[0]).gpu
        self._gpu = self._gpu or gpu
        if barrier_of:
            call = self._next_call(_BARRIER, 4)
        else:
            counted = outputs if what is Collective.ALL_GATHER else inputs or outputs
            nbytes = sum(each.nbytes for each in counted)
            call = self._next_call(what.name.lower(), nbytes)
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
            move(read, filled)
        told = collective_time(what, call.nbytes, gpu.model, self.count)
        end_ns = latest_ns + told.ns
        name = f"ncclDevKernel_{what.value}_{told.algorithm}_{told.protocol}"
        ranks = self._members
        spot = GroupPlace(self._group, call.number, what.value, ranks, call.nbytes)
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
        if len(simulation.ranks.calls) < _MOST_CALLS:
            simulation.ranks.calls.append(
                CollectiveCall(
                    self._group, call.number, name, call.nbytes, called_ns, ranks,
                    end_ns - work.duration_ns, end_ns,
                )
            )  # fmt: skip
        with torch.no_grad():
            for each, given in zip(outputs, filled, strict=True):
                twin_of(each).copy_(given)
        host_waits = "dist.barrier()" if barrier_of else ""
        return self._handle(simulation, gpu, work, mark, outputs, host_waits)

    def barrier(self, opts: Any = None) -> Any:
        """All members meet, and the host waits for that."""
        given = getattr(opts, "device_ids", None) or [None]
        gpu = self._gpu or self._simulation.gpu(given[0])
        return self.collective(Collective.ALL_REDUCE, barrier_of=gpu)

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

    # -------------------------------------------------------------- its parts

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
        self._called += 1
        call = GroupCall(self._group, self._called - 1, name, nbytes)
        self._simulation.ranks.roll.called(call)
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


class _Handle:
    """A handle of a collective that was called, as NCCL's."""

    _base: Any

    def __init__(
        self,
        simulation: Simulation,
        gpu: SimulatedGpu,
        work: Work,
        mark: Mark,
        outputs: Sequence[Any],
        host_waits: str,
    ) -> None:
        self._base.__init__(self)
        self._simulation, self._gpu = simulation, gpu
        self._work, self._mark = work, mark
        self._outputs, self._host_waits = [*outputs], host_waits

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
        simulation = self._simulation
        cost_ns = self._gpu.costs.host.query_ns
        with simulation.books():
            done = simulation.machine.scheduler.done
            return simulation.polling.ask(lambda: done(self._work), cost_ns)

    is_success = is_completed

    def result(self) -> _List:
        return self._outputs

    def get_future(self) -> Any:
        """A future of those; whoever waits for it lets the current stream wait."""
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


# ------------------------------------------------------------- how gloo does each


def _method(gloo_name: str, what: Collective, move: _Move | None) -> Callable[..., Any]:
    """One of torch's methods, called with what is filled, what is read, and options."""
    refuse = refusing(f"{gloo_name} among GPUs", "all_gather or broadcast does it")

    def call(self: _Group, *args: Any) -> Any:
        if self.are_on_host(args[:2]):
            return getattr(self.gloo, gloo_name)(*args)
        if move is None:
            return refuse()
        opts = args[-1]
        given = [
            [*_tensors_in(each)]
            for each in args[:2]
            if isinstance(each, (torch.Tensor, list, tuple))
        ]
        outputs, inputs = given[0], given[-1]
        if what is Collective.REDUCE and opts.rootRank != self.place:
            outputs = []
        if what is Collective.BROADCAST:
            root = opts.rootRank == self.place
            inputs, outputs = (inputs, []) if root else ([], outputs)
        return self.collective(
            what, inputs, outputs, lambda own, filled: move(self, own, filled, args)
        )

    return call


def _sum(group: _Group, own: _List, filled: _List, args: Any) -> None:
    """Reduce tensors with those of the others, as NCCL does."""
    ops, op = torch.distributed.ReduceOp, args[-1].reduceOp
    opts = torch._C._distributed_c10d.AllreduceOptions()
    opts.reduceOp = ops.SUM if op == ops.AVG else op
    for each, total in zip(own, filled, strict=True):
        total.copy_(each)
        group.wait(group.gloo.allreduce([total], opts))
        if op == ops.AVG:
            rounding = None if total.is_floating_point() else "trunc"
            total.div_(group.count, rounding_mode=rounding)


def _reduce(group: _Group, own: _List, filled: _List, args: Any) -> None:
    sums = filled or [torch.empty_like(each) for each in own]
    _sum(group, own, sums, args)  # all have it, one keeps it


def _broadcast(group: _Group, own: _List, filled: _List, args: Any) -> None:
    for each in own or filled:
        group.wait(group.gloo.broadcast([each], args[-1]))


def _all_gather(group: _Group, own: _List, filled: _List, _: Any) -> None:
    rows = _rows(group, filled)
    if len(filled) == len(own):  # each in one piece
        rows = [[*each.view(-1).chunk(group.count)] for each in filled]
    for each, parts in zip(own, rows, strict=True):
        flat = [part.view(-1) for part in parts]
        group.wait(group.gloo.allgather([flat], [each.view(-1)]))


def _reduce_scatter(group: _Group, own: _List, filled: _List, args: Any) -> None:
    wholes = own
    if len(filled) < len(own):
        cat = torch.cat
        wholes = [cat([each.view(-1) for each in row]) for row in _rows(group, own)]
    totals = [torch.empty_like(each) for each in wholes]
    _sum(group, wholes, totals, args)
    for total, part in zip(totals, filled, strict=True):
        part.copy_(total.view(group.count, *part.shape)[group.place])


def _all_to_all(group: _Group, own: _List, filled: _List, args: Any) -> None:
    to, of = [*args[2]], [*args[3]]
    group.wait(group.gloo.alltoall_base(*filled, *own, to, of, args[-1]))


def _rows(group: _Group, flat: _List) -> list[_List]:
    """What belongs to all ranks, one list a tensor."""
    return [flat[at : at + group.count] for at in range(0, len(flat), group.count)]


def _tensors_in(given: Any) -> Iterator[Any]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each)


# The names that versions of torch have for a method, as gloo's is called first.
_METHODS: tuple[tuple[tuple[str, ...], Collective, _Move | None], ...] = (
    (("allreduce", "allreduce_coalesced"), Collective.ALL_REDUCE, _sum),
    (("broadcast",), Collective.BROADCAST, _broadcast),
    (("reduce",), Collective.REDUCE, _reduce),
    (("allgather",), Collective.ALL_GATHER, _all_gather),
    (("_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced",
      "all_gather_single_coalesced"), Collective.ALL_GATHER, _all_gather),
    (("reduce_scatter",), Collective.REDUCE_SCATTER, _reduce_scatter),
    (("_reduce_scatter_base", "reduce_scatter_single",
      "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
     Collective.REDUCE_SCATTER, _reduce_scatter),
    (("alltoall_base", "all_to_all_single"), Collective.ALL_TO_ALL, _all_to_all),
    *(((name,), Collective.ALL_TO_ALL, None)  # refused: no collective of NCCL's own
      for name in ("alltoall", "gather", "scatter", "send", "recv")),
)  # fmt: skip
