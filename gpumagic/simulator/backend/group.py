"""A group of processes with simulated GPUs, as torch.distributed calls it.

It is one object for simulated tensors and for those of the CPU, which gloo has. Each
collective is put together here from what it reads, what it writes and what gloo does
with the twins meanwhile; `collectives` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.collectives import Collectives
from gpumagic.simulator.backend.deliveries import Moved, Sent
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.simulation import Simulation


def group_class(simulation: Simulation) -> type:
    """The class of groups of one simulation."""
    base = simulation.torch.distributed.ProcessGroup
    made: type = type("ProcessGroup", (_Group, base), {"_simulation": simulation})
    return made


class _Group:
    """A group of processes, each with a simulated GPU."""

    _simulation: Simulation

    def __init__(self, given: Any, *, on_host: bool) -> None:
        torch = self._simulation.torch
        distributed = torch.distributed
        base: Any = distributed.ProcessGroup
        base.__init__(self, given.group_rank, given.group_size)
        self._c10d = torch._C._distributed_c10d
        self._torch = torch
        self._ops = distributed.ReduceOp
        self._place, self._count = given.group_rank, given.group_size
        self._name = given.group_id
        self._on_host = on_host
        self._gloo = distributed.ProcessGroupGloo(
            distributed.PrefixStore("data", given.store),
            given.group_rank,
            given.group_size,
            timeout=given.timeout,
        )
        self._run = Collectives(self._simulation, given, distributed.PrefixStore)

    # ------------------------------------------------------ what torch asks of it

    def size(self) -> int:
        """How many take part."""
        return int(self._count)

    def rank(self) -> int:
        """Which of them this process is."""
        return int(self._place)

    @property
    def group_name(self) -> str:
        """What torch calls it."""
        return str(self._name)

    @property
    def group_desc(self) -> str:
        """What it is for, as far as known."""
        return "undefined"

    def getBackendName(self) -> str:  # noqa: N802 -- torch's spelling
        """As torch names it on a real GPU."""
        return "nccl"

    @property
    def _device_types(self) -> list[Any]:
        device = self._torch.device
        return [device("cpu"), device(NAME)] if self._on_host else [device(NAME)]

    def _get_backend(self, device: Any) -> Any:
        del device
        return self._gloo

    def shutdown(self) -> None:
        """All that was called ends, on all sides."""
        self._run.finish()

    def abort(self) -> None:
        """Nobody is waited for any more."""

    def set_timeout(self, timeout: Any) -> None:
        """How long the others are waited for."""
        self._run.set_timeout(timeout)

    def _start_coalescing(self, device: Any) -> None:
        del device
        self._run.start_together()

    def _end_coalescing(self, device: Any) -> Any:
        del device
        return self._run.end_together()

    # ------------------------------------------------------------- the collectives

    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Sums up, for everybody."""
        opts = opts or self._c10d.AllreduceOptions()
        if self._are_on_host(tensors):
            return self._gloo.allreduce([*tensors], opts)
        return self._reduced(tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Likewise several tensors at once."""
        opts = opts or self._c10d.AllreduceCoalescedOptions()
        if self._are_on_host(tensors):
            return self._gloo.allreduce_coalesced([*tensors], opts)
        return self._reduced(tensors, opts)

    def _reduced(self, tensors: Sequence[Any], opts: Any) -> Any:
        def move(inputs: list[Any]) -> Moved:
            sums = [self._summing(each, opts.reduceOp) for each in inputs]
            return Moved([work for work, _ in sums], lambda: [f() for _, f in sums])

        return self._run.collective(
            Collective.ALL_REDUCE, tensors, tensors, _nbytes(tensors), move,
            self._word(tensors[0], opts.reduceOp),
        )  # fmt: skip

    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Sends what one has to everybody."""
        opts = opts or self._c10d.BroadcastOptions()
        if self._are_on_host(tensors):
            return self._gloo.broadcast([*tensors], opts)
        root = opts.rootRank == self.rank()

        def move(inputs: list[Any]) -> Moved:
            given = inputs or [self._empty_like(each) for each in tensors]
            works = [self._gloo.broadcast([each], opts) for each in given]
            return Moved(works, lambda: [] if root else given)

        return self._run.collective(
            Collective.BROADCAST, tensors if root else (), () if root else tensors,
            _nbytes(tensors), move,
        )  # fmt: skip

    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        """Sums up, for one."""
        opts = opts or self._c10d.ReduceOptions()
        if self._are_on_host(tensors):
            return self._gloo.reduce([*tensors], opts)
        root = opts.rootRank == self.rank()

        def move(inputs: list[Any]) -> Moved:
            sums = [self._summing(each, opts.reduceOp, opts) for each in inputs]
            works = [work for work, _ in sums]
            return Moved(works, lambda: [f() for _, f in sums] if root else [])

        return self._run.collective(
            Collective.REDUCE, tensors, tensors if root else (), _nbytes(tensors), move,
            self._word(tensors[0], opts.reduceOp),
        )  # fmt: skip

    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """What each has, for everybody."""
        opts = opts or self._c10d.AllgatherOptions()
        if self._are_on_host(inputs):
            return self._gloo.allgather([[*each] for each in outputs], [*inputs], opts)
        flat = [each for parts in outputs for each in parts]

        def move(given: list[Any]) -> Moved:
            made = [[self._empty_like(each) for each in parts] for parts in outputs]
            works = [
                self._gloo.allgather([parts], [each], opts)
                for parts, each in zip(made, given, strict=True)
            ]
            return Moved(works, lambda: [each for parts in made for each in parts])

        return self._run.collective(
            Collective.ALL_GATHER, inputs, flat, _nbytes(flat), move
        )

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise, where `outputs` are lists by rank."""
        if self._are_on_host(inputs):
            return self._gloo.allgather_coalesced(outputs, inputs, opts)
        by_input = [[*parts] for parts in zip(*outputs, strict=True)]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """What each has, behind each other, for everybody."""
        return self.all_gather_single_coalesced([output], [given], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise several tensors at once."""
        opts = opts or self._c10d.AllgatherOptions()
        if self._are_on_host(inputs):
            works = [
                self._gloo._allgather_base(output, given, opts)
                for output, given in zip(outputs, inputs, strict=True)
            ]
            return _last_of(works)

        def move(given: list[Any]) -> Moved:
            made = [
                self._torch.empty(output.numel(), dtype=output.dtype, device="cpu")
                for output in outputs
            ]
            works = [
                self._gloo.allgather(
                    [[*whole.chunk(self._count)]], [each.view(-1)], opts
                )
                for whole, each in zip(made, given, strict=True)
            ]
            return Moved(works, lambda: made)

        return self._run.collective(
            Collective.ALL_GATHER, inputs, outputs, _nbytes(outputs), move
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> Any:
        """Sums up, a part for each."""
        opts = opts or self._c10d.ReduceScatterOptions()
        if self._are_on_host(outputs):
            return self._gloo.reduce_scatter(
                [*outputs], [[*each] for each in inputs], opts
            )
        flat = [each for parts in inputs for each in parts]
        count = self._count

        def move(given: list[Any]) -> Moved:
            wholes = [
                self._torch.cat([each.view(-1) for each in given[first:][:count]])
                for first in range(0, len(given), count)
            ]
            sizes = [[each.numel() for each in parts] for parts in inputs]
            return self._scattered(wholes, sizes, opts)

        return self._run.collective(
            Collective.REDUCE_SCATTER, flat, outputs, _nbytes(flat), move,
            self._word(outputs[0], opts.reduceOp),
        )  # fmt: skip

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Likewise, of one tensor cut into parts."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise several tensors at once."""
        opts = opts or self._c10d.ReduceScatterOptions()
        if self._are_on_host(outputs):
            works = [
                self._gloo._reduce_scatter_base(output, given, opts)
                for output, given in zip(outputs, inputs, strict=True)
            ]
            return _last_of(works)

        def move(given: list[Any]) -> Moved:
            sizes = [[each.numel()] * self._count for each in outputs]
            return self._scattered([each.view(-1) for each in given], sizes, opts)

        return self._run.collective(
            Collective.REDUCE_SCATTER, inputs, outputs, _nbytes(inputs), move,
            self._word(outputs[0], opts.reduceOp),
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scattered(
        self, wholes: Sequence[Any], sizes: Sequence[Sequence[int]], opts: Any
    ) -> Moved:
        sums = [self._summing(each, opts.reduceOp) for each in wholes]

        def parts() -> list[Any]:
            return [
                made().split([*each])[self._place]
                for (_, made), each in zip(sums, sizes, strict=True)
            ]

        return Moved([work for work, _ in sums], parts)

    def all_to_all_single(
        self,
        output: Any,
        given: Any,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        """A part of what each has for each."""
        opts = opts or self._c10d.AllToAllOptions()
        sizes = list(output_sizes or ()), list(input_sizes or ())
        if self._are_on_host([given]):
            return self._gloo.alltoall_base(output, given, *sizes, opts)

        def move(inputs: list[Any]) -> Moved:
            made = self._empty_like(output)
            work = self._gloo.alltoall_base(made, inputs[0], *sizes, opts)
            return Moved([work], lambda: [made])

        return self._run.collective(
            Collective.ALL_TO_ALL, [given], [output], _nbytes([given]), move
        )

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise, each part a tensor."""
        opts = opts or self._c10d.AllToAllOptions()
        if self._are_on_host(inputs):
            flat = self._torch.cat([each.reshape(-1) for each in inputs])
            sizes = [each.numel() for each in outputs]
            made = flat.new_empty(sum(sizes))
            given = [each.numel() for each in inputs]
            self._gloo.alltoall_base(made, flat, sizes, given, opts).wait()
            for output, part in zip(outputs, made.split(sizes), strict=True):
                output.copy_(part.view(output.shape))
            return _done(self._torch, outputs)

        def move(given: list[Any]) -> Moved:
            flat = self._torch.cat([each.view(-1) for each in given])
            sizes = [each.numel() for each in outputs]
            made = flat.new_empty(sum(sizes))
            cut = [each.numel() for each in given]
            work = self._gloo.alltoall_base(made, flat, sizes, cut, opts)
            return Moved([work], lambda: [*made.split(sizes)])

        return self._run.collective(
            Collective.ALL_TO_ALL, inputs, outputs, _nbytes(inputs), move
        )

    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """What each has, for one."""
        opts = opts or self._c10d.GatherOptions()
        if self._are_on_host(inputs):
            return self._gloo.gather([[*each] for each in outputs], [*inputs], opts)
        flat = [each for parts in outputs for each in parts]

        def move(given: list[Any]) -> Moved:
            made = [[self._empty_like(each) for each in parts] for parts in outputs]
            work = self._gloo.gather(made, given, opts)
            return Moved([work], lambda: [each for parts in made for each in parts])

        nbytes = self._count * _nbytes(inputs)
        return self._run.collective(Collective.GATHER, inputs, flat, nbytes, move)

    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> Any:
        """What one has, a part for each."""
        opts = opts or self._c10d.ScatterOptions()
        if self._are_on_host(outputs):
            return self._gloo.scatter([*outputs], [[*each] for each in inputs], opts)
        flat = [each for parts in inputs for each in parts]

        def move(given: list[Any]) -> Moved:
            made = [self._empty_like(each) for each in outputs]
            work = self._gloo.scatter(made, [given] if given else [], opts)
            return Moved([work], lambda: made)

        nbytes = self._count * _nbytes(outputs)
        return self._run.collective(Collective.SCATTER, flat, outputs, nbytes, move)

    def send(self, tensors: Sequence[Any], to: int, tag: int = 0) -> Any:
        """Sends to one; as with NCCL the order counts, and no tag."""
        if self._are_on_host(tensors):
            return self._gloo.send([*tensors], to, tag)
        number = self._run.next_between(self._place, to)

        def move(given: list[Any]) -> Moved:
            return Moved([Sent(self._gloo.send(given, to, number), given)], list)

        return self._run.collective(
            Collective.SEND_RECEIVE, tensors, (), _nbytes(tensors), move,
            pair=(self._place, to, number),
        )  # fmt: skip

    def recv(self, tensors: Sequence[Any], source: int, tag: int = 0) -> Any:
        """Receives from one."""
        if self._are_on_host(tensors):
            return self._gloo.recv([*tensors], source, tag)
        number = self._run.next_between(source, self._place)

        def move(_: list[Any]) -> Moved:
            made = [self._empty_like(each) for each in tensors]
            work = Sent(self._gloo.recv(made, source, number), made)
            return Moved([work], lambda: made)

        return self._run.collective(
            Collective.SEND_RECEIVE, (), tensors, _nbytes(tensors), move,
            pair=(source, self._place, number),
        )  # fmt: skip

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> Any:
        """Receives from whoever sends: gloo can, NCCL cannot."""
        if self._are_on_host(tensors):
            return self._gloo.recv_anysource([*tensors], tag)
        raise not_simulated("receiving from any source, as NCCL has none", "say src=")

    def barrier(self, opts: Any = None) -> Any:
        """Nobody goes on before all have come; the host waits for that."""
        device = getattr(opts, "device", None)
        index = None if device is None or device.type == "cpu" else device.index
        given = getattr(opts, "device_ids", None)
        return self._run.barrier(given[0] if given else index)

    # ---------------------------------------------------------------- its parts

    def _are_on_host(self, tensors: Sequence[Any]) -> bool:
        """Whether gloo does it; nothing mixes with anything."""
        kinds = {each.device.type for each in tensors}
        ours = {NAME, self._simulation.shown_type}
        if kinds <= ours:
            return False
        if kinds == {"cpu"} and self._on_host:
            return True
        raise RuntimeError(
            f"No backend type associated with device type {min(kinds - ours)}"
        )

    def _empty_like(self, tensor: Any) -> Any:
        """A CPU tensor of that shape, in one piece."""
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")

    def _summing(
        self, given: Any, op: Any, reduce: Any = None
    ) -> tuple[Any, Callable[[], Any]]:
        """Begin to reduce a tensor in place; what it comes to, once that is done."""
        ops = self._ops
        mean = op == ops.AVG
        opts = reduce or self._c10d.AllreduceOptions()
        opts.reduceOp = ops.SUM if mean else op
        whole = given
        if given.dtype == self._torch.bool:  # as NCCL: any of them, or all
            whole = given.view(self._torch.uint8)
            either = op == ops.SUM or op == ops.MAX  # noqa: PLR1714 -- no hash of theirs
            opts.reduceOp = ops.MAX if either else ops.MIN
        start = self._gloo.allreduce if reduce is None else self._gloo.reduce
        work = start([whole], opts)

        def made() -> Any:
            if mean:
                whole_numbers = not given.is_floating_point()
                rounding = "trunc" if whole_numbers else None
                given.div_(self._count, rounding_mode=rounding)
            return given

        return work, made

    def _word(self, tensor: Any, op: Any) -> str:
        """How NCCL's kernels name what they reduce."""
        ops = self._ops
        named = {
            "SUM": "Sum",
            "AVG": "Avg",
            "PRODUCT": "Prod",
            "MIN": "Min",
            "MAX": "Max",
        }
        word = next((w for name, w in named.items() if op == getattr(ops, name)), "Sum")
        dtype = str(tensor.dtype).removeprefix("torch.")
        short = {"bfloat16": "bf16", "bool": "u8"}.get(dtype)
        if short is None:
            kind = "f" if dtype.startswith("float") else dtype[0]
            digits = "".join(each for each in dtype.partition("_")[0] if each.isdigit())
            short = f"{kind}{digits}"
        return f"{word}_{short}"


def _nbytes(tensors: Sequence[Any]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _last_of(works: Sequence[Any]) -> Any:
    for work in works[:-1]:
        work.wait()
    return works[-1]


def _done(torch: Any, results: Sequence[Any]) -> Any:
    future = torch.futures.Future()
    future.set_result([*results])
    return torch._C._distributed_c10d._create_work_from_future(future)
