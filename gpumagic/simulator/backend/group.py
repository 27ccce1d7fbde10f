"""A group of processes with simulated GPUs, as torch.distributed calls it.

It is one object for simulated tensors and for those of the CPU, which gloo has. Each
collective is put together here from what it reads, what it writes and what gloo does
meanwhile; `collectives` runs it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.collectives import Collectives
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.collectives import Move
    from gpumagic.simulator.backend.simulation import Simulation

_NCCL_WORDS = {
    "SUM": "Sum",
    "AVG": "Avg",
    "PRODUCT": "Prod",
    "MIN": "Min",
    "MAX": "Max",
}


def group_class(simulation: Simulation) -> type:
    """The class of groups of one simulation."""
    base = simulation.torch.distributed.ProcessGroup
    made: type = type("ProcessGroup", (_Group, base), {"_simulation": simulation})
    return made


def _or_gloo(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What gloo does, under a name of its own, if the tensors are the host's."""

    def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any) -> Any:
            if self._are_on_host(args):
                return getattr(self._gloo, name)(*args)
            return method(self, *args)

        return call

    return decorated


class _Group:
    """A group of processes, each with a simulated GPU."""

    _simulation: Simulation

    def __init__(self, given: Any, *, on_host: bool) -> None:
        torch = self._simulation.torch
        distributed = torch.distributed
        base: Any = distributed.ProcessGroup
        base.__init__(self, given.group_rank, given.group_size)
        self._torch = torch
        self._ops = distributed.ReduceOp
        self._name = given.group_id
        self._on_host = on_host
        self._gloo = distributed.ProcessGroupGloo(
            distributed.PrefixStore("data", given.store),
            given.group_rank,
            given.group_size,
            timeout=given.timeout,
        )
        self._run = Collectives(self._simulation, self._gloo, given)

    # ------------------------------------------------------ what torch asks of it

    def size(self) -> int:
        """How many take part."""
        return self._run.count

    def rank(self) -> int:
        """Which of them this process is."""
        return self._run.place

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
        """Nothing is left to do: all that was called has been done."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """How long the others are waited for."""
        self._gloo._set_default_timeout(timeout)

    def _start_coalescing(self, device: Any) -> None:
        del device
        self._run.start_together()

    def _end_coalescing(self, device: Any) -> Any:
        del device
        return self._run.end_together()

    # ------------------------------------------------------------- the collectives

    @_or_gloo("allreduce")
    def allreduce(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Sums up, for everybody."""
        return self._do(
            Collective.ALL_REDUCE, tensors, tensors,
            lambda given, filled: self._sum(given, filled, opts), opts,
        )  # fmt: skip

    allreduce_coalesced = allreduce

    @_or_gloo("broadcast")
    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Sends what one has to everybody."""
        root = opts.rootRank == self.rank()

        def move(given: list[Any], filled: list[Any]) -> None:
            for each in given if root else filled:
                self._run.wait(self._gloo.broadcast([each], opts))

        read, written = (tensors, ()) if root else ((), tensors)
        return self._do(Collective.BROADCAST, read, written, move)

    @_or_gloo("reduce")
    def reduce(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Sums up, for one."""

        def move(given: list[Any], filled: list[Any]) -> None:
            sums = filled or [self._torch.empty_like(each) for each in given]
            self._sum(given, sums, opts)  # all have it, one keeps it

        written = tensors if opts.rootRank == self.rank() else ()
        return self._do(Collective.REDUCE, tensors, written, move, opts)

    @_or_gloo("allgather")
    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], _: Any = None
    ) -> Any:
        """What each has, for everybody."""

        def move(given: list[Any], filled: list[Any]) -> None:
            for each, parts in zip(given, self._rows(filled), strict=True):
                self._run.wait(self._gloo.allgather([parts], [each]))

        return self._do(Collective.ALL_GATHER, inputs, _flat(outputs), move)

    @_or_gloo("_allgather_base")
    def all_gather_single(self, output: Any, given: Any, _: Any = None) -> Any:
        """What each has, behind each other, for everybody."""
        return self.all_gather_single_coalesced([output], [given])

    _allgather_base = all_gather_single

    @_or_gloo("allgather_into_tensor_coalesced")
    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], _: Any = None
    ) -> Any:
        """Likewise several tensors at once."""

        def move(given: list[Any], filled: list[Any]) -> None:
            for whole, each in zip(filled, given, strict=True):
                parts = [*whole.view(-1).chunk(self.size())]
                self._run.wait(self._gloo.allgather([parts], [each.view(-1)]))

        return self._do(Collective.ALL_GATHER, inputs, outputs, move)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_or_gloo("reduce_scatter")
    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
    ) -> Any:
        """Sums up, a part for each."""

        def move(given: list[Any], filled: list[Any]) -> None:
            wholes = [self._joined(parts) for parts in self._rows(given)]
            self._scatter(wholes, filled, opts)

        return self._do(Collective.REDUCE_SCATTER, _flat(inputs), outputs, move, opts)

    @_or_gloo("_reduce_scatter_base")
    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Any:
        """Likewise, of one tensor cut into parts."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    @_or_gloo("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any
    ) -> Any:
        """Likewise several tensors at once."""
        return self._do(
            Collective.REDUCE_SCATTER, inputs, outputs,
            lambda given, filled: self._scatter(given, filled, opts), opts,
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @_or_gloo("alltoall_base")
    def all_to_all_single(
        self, output: Any, given: Any, to: Sequence[int], of: Sequence[int], opts: Any
    ) -> Any:
        """A part of what each has for each."""

        def move(own: list[Any], filled: list[Any]) -> None:
            sizes = [*to], [*of]
            self._run.wait(self._gloo.alltoall_base(*filled, *own, *sizes, opts))

        return self._do(Collective.ALL_TO_ALL, [given], [output], move)

    alltoall_base = all_to_all_single

    @_or_gloo("alltoall")
    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> Any:
        """Likewise, each part a tensor."""

        def move(given: list[Any], filled: list[Any]) -> None:
            to, of = ([each.numel() for each in some] for some in (filled, given))
            made, flat = self._joined(filled), self._joined(given)
            self._run.wait(self._gloo.alltoall_base(made, flat, to, of, opts))
            for each, part in zip(filled, made.split(to), strict=True):
                each.view(-1).copy_(part)

        return self._do(Collective.ALL_TO_ALL, inputs, outputs, move)

    @_or_gloo("gather")
    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any
    ) -> Any:
        """What each has, for one."""

        def move(given: list[Any], filled: list[Any]) -> None:
            self._run.wait(self._gloo.gather(self._rows(filled), given, opts))

        return self._do(Collective.GATHER, inputs, _flat(outputs), move)

    @_or_gloo("scatter")
    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
    ) -> Any:
        """What one has, a part for each."""

        def move(given: list[Any], filled: list[Any]) -> None:
            self._run.wait(self._gloo.scatter(filled, self._rows(given), opts))

        return self._do(Collective.SCATTER, _flat(inputs), outputs, move)

    @_or_gloo("send")
    def send(self, tensors: Sequence[Any], to: int, _: int = 0) -> Any:
        """Sends to one; as with NCCL the order counts, and no tag."""
        return self._run.send(tensors, to)

    @_or_gloo("recv")
    def recv(self, tensors: Sequence[Any], source: int, _: int = 0) -> Any:
        """Receives from one."""
        return self._run.receive(tensors, source)

    def barrier(self, opts: Any = None) -> Any:
        """Nobody goes on before all have come; the host waits for that."""
        device = getattr(opts, "device", None)
        index = None if device is None or device.type == "cpu" else device.index
        given = getattr(opts, "device_ids", None)
        return self._run.barrier(given[0] if given else index)

    # ---------------------------------------------------------------- its parts

    def _are_on_host(self, given: Sequence[Any]) -> bool:
        """Whether gloo does it; nothing mixes with anything."""
        kinds = {each.device.type for each in _tensors_in(given, self._torch.Tensor)}
        ours = {NAME, self._simulation.shown_type}
        if kinds <= ours:
            return False
        if kinds == {"cpu"} and self._on_host:
            return True
        raise RuntimeError(
            f"No backend type associated with device type {min(kinds - ours)}"
        )

    def _do(
        self,
        what: Collective,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        move: Move,
        reduces: Any = None,
    ) -> Any:
        counted = outputs if what is Collective.ALL_GATHER else inputs or outputs
        nbytes = sum(each.numel() * each.element_size() for each in counted)
        if what in (Collective.GATHER, Collective.SCATTER):
            parts = inputs if what is Collective.GATHER else outputs
            nbytes = self.size() * parts[0].numel() * parts[0].element_size()
        word = "" if reduces is None else self._word(counted[0], reduces.reduceOp)
        return self._run.collective(what, inputs, outputs, nbytes, move, word)

    def _rows(self, flat: Sequence[Any]) -> list[list[Any]]:
        """What belongs to all ranks, one list a tensor."""
        return [
            [*flat[at : at + self.size()]] for at in range(0, len(flat), self.size())
        ]

    def _joined(self, parts: Sequence[Any]) -> Any:
        return self._torch.cat([each.view(-1) for each in parts])

    def _sum(self, given: Sequence[Any], filled: Sequence[Any], asked: Any) -> None:
        """Reduce tensors with those of the others, as NCCL does."""
        ops, op = self._ops, asked.reduceOp
        for each, total in zip(given, filled, strict=True):
            total.copy_(each)
            opts = self._torch._C._distributed_c10d.AllreduceOptions()
            opts.reduceOp = ops.SUM if op == ops.AVG else op
            whole = total
            if total.dtype == self._torch.bool:  # any of them, or all
                whole = total.view(self._torch.uint8)
                either = op == ops.SUM or op == ops.MAX  # noqa: PLR1714 -- no hash
                opts.reduceOp = ops.MAX if either else ops.MIN
            self._run.wait(self._gloo.allreduce([whole], opts))
            if op == ops.AVG:
                rounding = None if total.is_floating_point() else "trunc"
                total.div_(self.size(), rounding_mode=rounding)

    def _scatter(self, wholes: Sequence[Any], filled: Sequence[Any], opts: Any) -> None:
        totals = [self._torch.empty_like(each) for each in wholes]
        self._sum(wholes, totals, opts)
        for total, part in zip(totals, filled, strict=True):
            part.copy_(total.view(self.size(), *part.shape)[self.rank()])

    def _word(self, tensor: Any, op: Any) -> str:
        """How NCCL's kernels name what they reduce."""
        words = _NCCL_WORDS.items()
        word = next((w for name, w in words if op == getattr(self._ops, name)), "Sum")
        dtype = str(tensor.dtype).removeprefix("torch.")
        short = {"bfloat16": "bf16", "bool": "u8"}.get(dtype)
        if short is None:
            digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
            short = f"{dtype[0]}{digits}"
        return f"{word}_{short}"


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [each for parts in rows for each in parts]


def _tensors_in(given: Any, tensor: type) -> Iterator[Any]:
    if isinstance(given, tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each, tensor)
