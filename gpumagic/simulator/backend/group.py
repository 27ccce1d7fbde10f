"""A group of processes with simulated GPUs, as torch.distributed calls it.

It is one object for simulated tensors and for those of the CPU, which gloo has. Each
collective is put together here from what it reads, what it writes and what gloo does
meanwhile; `collectives` runs it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.collectives import Collectives
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

        def move(inputs: list[Any], filled: list[Any]) -> None:
            self._sum(inputs, filled, opts.reduceOp)

        word = self._word(tensors[0], opts.reduceOp)
        return self._run.collective(
            Collective.ALL_REDUCE, tensors, tensors, _nbytes(tensors), move, word
        )

    allreduce_coalesced = allreduce

    @_or_gloo("broadcast")
    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Sends what one has to everybody."""
        root = opts.rootRank == self.rank()

        def move(inputs: list[Any], filled: list[Any]) -> None:
            for each in inputs if root else filled:
                self._run.wait(self._gloo.broadcast([each], opts))

        return self._run.collective(
            Collective.BROADCAST, tensors if root else (), () if root else tensors,
            _nbytes(tensors), move,
        )  # fmt: skip

    @_or_gloo("reduce")
    def reduce(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Sums up, for one."""
        root = opts.rootRank == self.rank()

        def move(inputs: list[Any], filled: list[Any]) -> None:
            sums = filled or [self._torch.empty_like(each) for each in inputs]
            self._sum(inputs, sums, opts.reduceOp)  # all have it, one keeps it

        word = self._word(tensors[0], opts.reduceOp)
        return self._run.collective(
            Collective.REDUCE, tensors, tensors if root else (), _nbytes(tensors),
            move, word,
        )  # fmt: skip

    @_or_gloo("allgather")
    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """What each has, for everybody."""
        del opts
        flat = [each for parts in outputs for each in parts]

        def move(given: list[Any], filled: list[Any]) -> None:
            for place, each in enumerate(given):
                parts = filled[place * self.size() :][: self.size()]
                self._run.wait(self._gloo.allgather([parts], [each]))

        nbytes = _nbytes(flat)
        return self._run.collective(Collective.ALL_GATHER, inputs, flat, nbytes, move)

    @_or_gloo("allgather_coalesced")
    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise, where `outputs` are lists by rank."""
        return self.allgather([*zip(*outputs, strict=True)], inputs, opts)

    @_or_gloo("_allgather_base")
    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """What each has, behind each other, for everybody."""
        return self.all_gather_single_coalesced([output], [given], opts)

    _allgather_base = all_gather_single

    @_or_gloo("allgather_into_tensor_coalesced")
    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> Any:
        """Likewise several tensors at once."""
        del opts

        def move(given: list[Any], filled: list[Any]) -> None:
            for whole, each in zip(filled, given, strict=True):
                parts = [*whole.view(-1).chunk(self.size())]
                self._run.wait(self._gloo.allgather([parts], [each.view(-1)]))

        nbytes = _nbytes(outputs)
        return self._run.collective(
            Collective.ALL_GATHER, inputs, outputs, nbytes, move
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_or_gloo("reduce_scatter")
    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
    ) -> Any:
        """Sums up, a part for each."""
        flat = [each for parts in inputs for each in parts]

        def move(given: list[Any], filled: list[Any]) -> None:
            for place, each in enumerate(filled):
                parts = given[place * self.size() :][: self.size()]
                self._scatter(self._torch.cat([p.view(-1) for p in parts]), each, opts)

        word = self._word(outputs[0], opts.reduceOp)
        return self._run.collective(
            Collective.REDUCE_SCATTER, flat, outputs, _nbytes(flat), move, word
        )

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

        def move(given: list[Any], filled: list[Any]) -> None:
            for whole, each in zip(given, filled, strict=True):
                self._scatter(whole.view(-1), each, opts)

        word = self._word(outputs[0], opts.reduceOp)
        return self._run.collective(
            Collective.REDUCE_SCATTER, inputs, outputs, _nbytes(inputs), move, word
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @_or_gloo("alltoall_base")
    def all_to_all_single(
        self,
        output: Any,
        given: Any,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any,
    ) -> Any:
        """A part of what each has for each."""
        sizes = [*output_sizes], [*input_sizes]

        def move(inputs: list[Any], filled: list[Any]) -> None:
            one_way = self._gloo.alltoall_base(filled[0], inputs[0], *sizes, opts)
            self._run.wait(one_way)

        nbytes = _nbytes([given])
        return self._run.collective(
            Collective.ALL_TO_ALL, [given], [output], nbytes, move
        )

    alltoall_base = all_to_all_single

    @_or_gloo("alltoall")
    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> Any:
        """Likewise, each part a tensor."""

        def move(given: list[Any], filled: list[Any]) -> None:
            sizes = [each.numel() for each in filled]
            flat = self._torch.cat([each.view(-1) for each in given])
            made, cut = flat.new_empty(sum(sizes)), [each.numel() for each in given]
            self._run.wait(self._gloo.alltoall_base(made, flat, sizes, cut, opts))
            for each, part in zip(filled, made.split(sizes), strict=True):
                each.view(-1).copy_(part)

        nbytes = _nbytes(inputs)
        return self._run.collective(
            Collective.ALL_TO_ALL, inputs, outputs, nbytes, move
        )

    @_or_gloo("gather")
    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any
    ) -> Any:
        """What each has, for one."""
        flat = [each for parts in outputs for each in parts]

        def move(given: list[Any], filled: list[Any]) -> None:
            self._run.wait(self._gloo.gather([filled] if filled else [], given, opts))

        nbytes = self.size() * _nbytes(inputs)
        return self._run.collective(Collective.GATHER, inputs, flat, nbytes, move)

    @_or_gloo("scatter")
    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
    ) -> Any:
        """What one has, a part for each."""
        flat = [each for parts in inputs for each in parts]

        def move(given: list[Any], filled: list[Any]) -> None:
            self._run.wait(self._gloo.scatter(filled, [given] if given else [], opts))

        nbytes = self.size() * _nbytes(outputs)
        return self._run.collective(Collective.SCATTER, flat, outputs, nbytes, move)

    @_or_gloo("send")
    def send(self, tensors: Sequence[Any], to: int, tag: int = 0) -> Any:
        """Sends to one; as with NCCL the order counts, and no tag."""
        del tag
        return self._run.send(tensors, to)

    @_or_gloo("recv")
    def recv(self, tensors: Sequence[Any], source: int, tag: int = 0) -> Any:
        """Receives from one."""
        del tag
        return self._run.receive(tensors, source)

    @_or_gloo("recv_anysource")
    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> Any:
        """Receives from whoever sends: gloo can, NCCL cannot."""
        del tensors, tag
        raise not_simulated("receiving from any source, as NCCL has none", "say src=")

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

    def _sum(self, given: Sequence[Any], filled: Sequence[Any], op: Any) -> None:
        """Reduce tensors with those of the others, as NCCL does."""
        ops, uint8 = self._ops, self._torch.uint8
        for each, total in zip(given, filled, strict=True):
            total.copy_(each)
            opts = self._torch._C._distributed_c10d.AllreduceOptions()
            opts.reduceOp = ops.SUM if op == ops.AVG else op
            whole = total
            if total.dtype == self._torch.bool:  # any of them, or all
                whole = total.view(uint8)
                either = op == ops.SUM or op == ops.MAX  # noqa: PLR1714 -- no hash
                opts.reduceOp = ops.MAX if either else ops.MIN
            self._run.wait(self._gloo.allreduce([whole], opts))
            if op == ops.AVG:
                rounding = None if total.is_floating_point() else "trunc"
                total.div_(self.size(), rounding_mode=rounding)

    def _scatter(self, whole: Any, part: Any, opts: Any) -> None:
        total = self._torch.empty_like(whole)
        self._sum([whole], [total], opts.reduceOp)
        own = total.view(self.size(), -1)[self.rank()]
        part.copy_(own.view(part.shape))

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


def _nbytes(tensors: Sequence[Any]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _tensors_in(given: Any, tensor: type) -> Iterator[Any]:
    if isinstance(given, tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each, tensor)
