"""torch.distributed on simulated GPUs: gloo moves the numbers, a model says how long.

All members tell each other when their GPU comes to a call, and gloo moves the numbers
from twin to twin; the host really waits for both. On the machine's clock the collective
lies on a stream of its own, from the moment when this GPU has come until the last one
has and the time of the model has passed.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import threading
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import DeviceError
from gpumagic.report.events import GroupPlace
from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.backend.refusals import not_simulated, refusing
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import (
    HOST_NS,
    Collective,
    Placement,
    collective_time,
)
from gpumagic.simulator.engines import CollectiveName
from gpumagic.simulator.meetings import CollectiveCall, GroupCall, Roll
from gpumagic.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.engines import Work
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

    _List = list[Any]
    # Given the group, what is read, what to fill on the CPU, and torch's arguments.
    _Move = Callable[["_Group", _List, _List, Any], object]

_OURS = "gpumagic_simulated"  # what torch knows our groups by while it makes one
_NCCL_VERSION = (2, 27, 7)  # whose times the model has
_TIMEOUT = dt.timedelta(minutes=10)  # as NCCL's in torch
_NCCL_WORDS = {
    "SUM": "Sum", "AVG": "Avg", "PRODUCT": "Prod", "MIN": "Min", "MAX": "Max"
}  # fmt: skip
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


# ------------------------------------------------------------------ made by torch


def process_groups(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    torch = simulation.torch
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


class _Come(NamedTuple):
    """A GPU has come to a collective."""

    gpu: SimulatedGpu
    call: GroupCall
    stream: SimulatedStream
    places: tuple[int, ...]  # of those who take part
    called_ns: int
    start_ns: int


class _Group:
    """A group of processes, each with a simulated GPU, as torch asks of it."""

    _simulation: Simulation

    def __init__(self, given: Any, *, on_host: bool) -> None:
        self.torch = torch = self._simulation.torch
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
        self._streams: dict[tuple[int, ...], SimulatedStream] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._called = 0
        self._gpu: SimulatedGpu | None = None  # the first that was used
        base = distributed.Work
        self._handle: Any = type("Work", (_Handle, base), {"_base": base})
        # Making a group waits for all members: so do the clocks of their hosts.
        scheduler = self._simulation.machine.scheduler
        made = self._exchange([scheduler.now_ns, self._simulation.ranks.host])
        scheduler.elapse(max(now_ns for now_ns, _ in made) - scheduler.now_ns)
        self._hosts = [host for _, host in made]

    def size(self) -> int:
        return self.count

    def rank(self) -> int:
        return self.place

    @property
    def group_name(self) -> str:
        return self._group

    @property
    def group_desc(self) -> str:
        return "undefined"

    def getBackendName(self) -> str:  # noqa: N802 -- torch's spelling
        return "nccl"

    @property
    def _device_types(self) -> _List:
        names = ["cpu", NAME] if self._on_host else [NAME]
        return [self.torch.device(name) for name in names]

    def _get_backend(self, _: Any) -> Any:
        return self.gloo

    def shutdown(self) -> None:
        """Nothing is left to do: all that was called has been done."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        self.gloo._set_default_timeout(timeout)
        self._timeout = f"{timeout.total_seconds():g} s"

    # ----------------------------------------------------------------- calls

    def collective(
        self,
        what: Collective,
        inputs: _List,
        outputs: _List,
        move: Callable[[_List, _List], object],
        word: str = "",
    ) -> Any:
        """Run one of all members; answers with torch's handle of it."""
        gpu = self._gpu_of((*inputs, *outputs)[0])
        counted = outputs if what is Collective.ALL_GATHER else inputs or outputs
        nbytes = sum(each.nbytes for each in counted)
        come = self._come(gpu, self._next_call(what.name.lower(), nbytes))
        filled = self._empty_like(outputs)
        with self._waiting(come.call):
            latest_ns = self._meet(come)
            move([self._read(each) for each in inputs], filled)
        self._fill(outputs, filled)
        entered = self._enter(what, come, latest_ns, inputs, outputs, word)
        return self._handle(self, gpu, lambda: entered, outputs)

    def barrier(self, opts: Any = None) -> Any:
        """All members meet, and the host waits for that."""
        given = getattr(opts, "device_ids", None) or [None]
        gpu = self._gpu or self._simulation.gpu(given[0])
        come = self._come(gpu, self._next_call(_BARRIER, 4))
        with self._waiting(come.call):
            latest_ns = self._meet(come)
        what = Collective.ALL_REDUCE
        entered = self._enter(what, come, latest_ns, (), (), "Sum_f32")
        return self._handle(self, gpu, lambda: entered, (), "dist.barrier()")

    def send(self, tensors: _List, to: int, tag: int = 0) -> Any:
        """Send to one; as with NCCL the order counts, and no tag."""
        if self.are_on_host(tensors):
            return self.gloo.send(tensors, to, tag)
        come = self._come_to_one(tensors, self.place, to)
        head = [self.torch.tensor([come.start_ns, come.call.nbytes])]
        numbers = [self._read(each).clone() for each in tensors]
        for part, sent in enumerate((head, numbers), 2 * come.call.number):
            # a thread keeps what is sent, until it has come
            _waited_beside(self.gloo.send(sent, to, part), sent)
        what = Collective.SEND_RECEIVE
        entered = self._enter(what, come, come.start_ns, tensors, ())
        return self._handle(self, come.gpu, lambda: entered, tensors)

    def recv(self, tensors: _List, source: int, tag: int = 0) -> Any:
        """Receive from one: whoever waits for the handle waits for what is sent."""
        if self.are_on_host(tensors):
            return self.gloo.recv(tensors, source, tag)
        come = self._come_to_one(tensors, source, self.place)
        call = come.call

        def receive(filled: _List, part: int) -> None:
            work = self.gloo.recv(filled, source, 2 * call.number + part)
            thread, errors = _waited_beside(work, filled)
            thread.join()
            if errors:
                raise errors[0]

        def enter() -> tuple[Work, Mark]:
            head = self.torch.zeros(2, dtype=int)
            filled = self._empty_like(tensors)
            with self._waiting(call):
                receive([head], 0)
                sent_ns, nbytes = head.tolist()
                if nbytes != call.nbytes:
                    sent = call._replace(name="send", nbytes=nbytes)
                    raise self._not_the_same(source, sent, call)
                receive(filled, 1)
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
        kinds = {each.device.type for each in _tensors_in(given, self.torch.Tensor)}
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

    def _come_to_one(self, tensors: _List, source: int, to: int) -> _Come:
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
            if key not in self._streams:
                self._streams[key] = gpu.own_stream()
            stream = self._streams[key]
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
        given = self.torch.tensor(own, device="cpu")
        found = [self.torch.empty_like(given) for _ in range(self.count)]
        self.wait(self.gloo.allgather([found], [given]))
        return [each.tolist() for each in found]

    def _read(self, tensor: Any) -> Any:
        return self._simulation.tensors.twin_of(tensor).detach().contiguous()

    def _empty_like(self, tensors: _List) -> _List:
        empty = self.torch.empty
        return [empty(each.shape, dtype=each.dtype, device="cpu") for each in tensors]

    def _fill(self, tensors: _List, filled: _List) -> None:
        with self.torch.no_grad():
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
        simulation, call, stream = self._simulation, come.call, come.stream
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
        here = simulation.places.here()
        with simulation.books() as tracker:
            work = simulation.machine.scheduler.occupy(
                stream.queue, end_ns, CollectiveName(name, spot)
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


def _waited_beside(work: Any, kept: _List) -> tuple[threading.Thread, _List]:
    """A thread that waits for gloo, so that Ctrl-C need not; its errors come there."""
    errors: _List = []

    def wait(_: Any = kept) -> None:
        try:
            work.wait()
        except Exception as error:  # noqa: BLE001 -- raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, errors


class _Handle:
    """A handle of a collective that was called, as NCCL's."""

    _base: Any

    def __init__(
        self,
        group: _Group,
        gpu: SimulatedGpu,
        come: Callable[[], tuple[Work, Mark]],
        outputs: Sequence[Any],
        host_waits: str = "",
    ) -> None:
        self._base.__init__(self)
        self._simulation = group._simulation
        self._gpu, self._come, self._host_waits = gpu, come, host_waits
        self._entered: tuple[Work, Mark] | None = None
        self._outputs = [*outputs]

    def _enter(self) -> tuple[Work, Mark]:
        self._entered = self._entered or self._come()
        return self._entered

    def wait(self, _: Any = None) -> bool:
        """Let the current stream wait; the host does for a barrier alone."""
        (work, mark), simulation = self._enter(), self._simulation
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
        (work, _), simulation = self._enter(), self._simulation
        cost_ns = self._gpu.costs.host.query_ns
        with simulation.books():
            done = simulation.machine.scheduler.done
            return simulation.polling.ask(lambda: done(work), cost_ns)

    is_success = is_completed

    def exception(self) -> None:
        """There are none."""

    def result(self) -> _List:
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


# ------------------------------------------------------------- how gloo does each


def _method(gloo_name: str, what: Collective, move: _Move | None) -> Callable[..., Any]:
    """One of torch's methods, called with what is filled, what is read, and options."""
    if move is None:
        name = what.name.lower()
        return refusing(f"{name} among GPUs", "all_gather or broadcast does it")

    def call(self: _Group, *args: Any) -> Any:
        if self.are_on_host(args):
            return getattr(self.gloo, gloo_name)(*args)
        tensor, opts = self.torch.Tensor, args[-1]
        given = [
            [*_tensors_in(each, tensor)]
            for each in args[:2]
            if isinstance(each, (tensor, list, tuple))
        ]
        outputs, inputs = given[0], given[-1]
        if what is Collective.REDUCE and opts.rootRank != self.place:
            outputs = []
        if what is Collective.BROADCAST:
            root = opts.rootRank == self.place
            inputs, outputs = (inputs, []) if root else ([], outputs)
        op = getattr(opts, "reduceOp", None)
        word = "" if op is None else _nccl_word(self, (inputs or outputs)[0], op)
        return self.collective(
            what, inputs, outputs, lambda own, filled: move(self, own, filled, args),
            word,
        )  # fmt: skip

    return call


def _nccl_word(group: _Group, tensor: Any, op: Any) -> str:
    """How NCCL's kernels name what they reduce, such as `Sum_f32`."""
    ops = group.torch.distributed.ReduceOp
    words = (word for name, word in _NCCL_WORDS.items() if op == getattr(ops, name))
    dtype = str(tensor.dtype).removeprefix("torch.")
    digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
    return f"{next(words, 'Sum')}_{'bf' if dtype == 'bfloat16' else dtype[0]}{digits}"


def _sum(group: _Group, own: _List, filled: _List, args: Any) -> None:
    """Reduce tensors with those of the others, as NCCL does."""
    ops, op = group.torch.distributed.ReduceOp, args[-1].reduceOp
    opts = group.torch._C._distributed_c10d.AllreduceOptions()
    opts.reduceOp = ops.SUM if op == ops.AVG else op
    for each, total in zip(own, filled, strict=True):
        total.copy_(each)
        group.wait(group.gloo.allreduce([total], opts))
        if op == ops.AVG:
            rounding = None if total.is_floating_point() else "trunc"
            total.div_(group.count, rounding_mode=rounding)


def _reduce(group: _Group, own: _List, filled: _List, args: Any) -> None:
    sums = filled or [group.torch.empty_like(each) for each in own]
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
        cat = group.torch.cat
        wholes = [cat([each.view(-1) for each in row]) for row in _rows(group, own)]
    totals = [group.torch.empty_like(each) for each in wholes]
    _sum(group, wholes, totals, args)
    for total, part in zip(totals, filled, strict=True):
        part.copy_(total.view(group.count, *part.shape)[group.place])


def _all_to_all(group: _Group, own: _List, filled: _List, args: Any) -> None:
    to, of = [*args[2]], [*args[3]]
    group.wait(group.gloo.alltoall_base(*filled, *own, to, of, args[-1]))


def _rows(group: _Group, flat: _List) -> list[_List]:
    """What belongs to all ranks, one list a tensor."""
    return [flat[at : at + group.count] for at in range(0, len(flat), group.count)]


def _tensors_in(given: Any, tensor: type) -> Iterator[Any]:
    if isinstance(given, tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each, tensor)


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
    (("alltoall",), Collective.ALL_TO_ALL, None),
    (("gather",), Collective.GATHER, None),
    (("scatter",), Collective.SCATTER, None),
)  # fmt: skip
