"""A group of processes with simulated GPUs, as torch.distributed calls it.

It is one object for simulated tensors and for those of the CPU, which gloo has. A table
says of each of torch's methods how gloo moves its numbers; `collectives` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.collectives import Collectives
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.collective_times import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation

    _List = list[Any]
    # Given the group, what is read, what to fill on the CPU, and torch's arguments.
    Move = Callable[["_Group", _List, _List, Any], object]

_NCCL_WORDS = {
    "SUM": "Sum", "AVG": "Avg", "PRODUCT": "Prod", "MIN": "Min", "MAX": "Max"
}  # fmt: skip
_OF_ONE = (Collective.BROADCAST, Collective.REDUCE)


def group_class(simulation: Simulation) -> type:
    """The class of groups of one simulation."""
    base = simulation.torch.distributed.ProcessGroup
    methods = {
        name: _method(names[0], what, move)
        for names, what, move in _METHODS
        for name in names
    }
    return type("ProcessGroup", (_Group, base), {"_simulation": simulation, **methods})


class _Group:
    """A group of processes, each with a simulated GPU."""

    _simulation: Simulation

    def __init__(self, given: Any, *, on_host: bool) -> None:
        self.torch = torch = self._simulation.torch
        distributed = torch.distributed
        base: Any = distributed.ProcessGroup
        base.__init__(self, given.group_rank, given.group_size)
        self._ops = distributed.ReduceOp
        self._name = given.group_id
        self._on_host = on_host
        self.gloo = distributed.ProcessGroupGloo(
            distributed.PrefixStore("data", given.store),
            given.group_rank,
            given.group_size,
            timeout=given.timeout,
        )
        self.run = Collectives(self._simulation, self.gloo, given)

    # ------------------------------------------------------ what torch asks of it

    def size(self) -> int:
        """How many take part."""
        return self.run.count

    def rank(self) -> int:
        """Which of them this process is."""
        return self.run.place

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
        names = ["cpu", NAME] if self._on_host else [NAME]
        return [self.torch.device(name) for name in names]

    def _get_backend(self, device: Any) -> Any:
        del device
        return self.gloo

    def shutdown(self) -> None:
        """Nothing is left to do: all that was called has been done."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """How long the others are waited for."""
        self.gloo._set_default_timeout(timeout)
        self.run.timeout = f"{timeout.total_seconds():g} s"

    # ------------------------------------------------- beside those of the table

    def send(self, tensors: Sequence[Any], to: int, tag: int = 0) -> Any:
        """Sends to one; as with NCCL the order counts, and no tag."""
        if self.are_on_host(tensors):
            return self.gloo.send(tensors, to, tag)
        return self.run.send(tensors, to)

    def recv(self, tensors: Sequence[Any], source: int, tag: int = 0) -> Any:
        """Receives from one."""
        if self.are_on_host(tensors):
            return self.gloo.recv(tensors, source, tag)
        return self.run.receive(tensors, source)

    def barrier(self, opts: Any = None) -> Any:
        """Nobody goes on before all have come; the host waits for that."""
        device = getattr(opts, "device", None)
        index = None if device is None or device.type == "cpu" else device.index
        given = getattr(opts, "device_ids", None)
        return self.run.barrier(given[0] if given else index)

    # ---------------------------------------------------------------- its parts

    def are_on_host(self, given: Sequence[Any]) -> bool:
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

    def bytes_of(
        self, what: Collective, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> int:
        """What a collective moves: the tensor that is reduced or sent, or all parts."""
        counted = outputs if what is Collective.ALL_GATHER else inputs or outputs
        if what in (Collective.GATHER, Collective.SCATTER):
            parts = inputs if what is Collective.GATHER else outputs
            counted = [parts[0]] * self.size()
        return sum(each.numel() * each.element_size() for each in counted)

    def rows(self, flat: Sequence[Any]) -> list[list[Any]]:
        """What belongs to all ranks, one list a tensor."""
        size = self.size()
        return [[*flat[at : at + size]] for at in range(0, len(flat), size)]

    def joined(self, parts: Sequence[Any]) -> Any:
        """In one piece."""
        return self.torch.cat([each.view(-1) for each in parts])

    def sum(self, given: Sequence[Any], filled: Sequence[Any], asked: Any) -> None:
        """Reduce tensors with those of the others, as NCCL does."""
        ops, op = self._ops, asked.reduceOp
        for each, total in zip(given, filled, strict=True):
            total.copy_(each)
            opts = self.torch._C._distributed_c10d.AllreduceOptions()
            opts.reduceOp = ops.SUM if op == ops.AVG else op
            whole = total
            if total.dtype == self.torch.bool:  # any of them, or all
                whole = total.view(self.torch.uint8)
                either = op == ops.SUM or op == ops.MAX  # noqa: PLR1714 -- no hash
                opts.reduceOp = ops.MAX if either else ops.MIN
            self.run.wait(self.gloo.allreduce([whole], opts))
            if op == ops.AVG:
                rounding = None if total.is_floating_point() else "trunc"
                total.div_(self.size(), rounding_mode=rounding)

    def word(self, tensor: Any, op: Any) -> str:
        """How NCCL's kernels name what they reduce."""
        words = _NCCL_WORDS.items()
        word = next((w for name, w in words if op == getattr(self._ops, name)), "Sum")
        dtype = str(tensor.dtype).removeprefix("torch.")
        short = {"bfloat16": "bf16", "bool": "u8"}.get(dtype)
        if short is None:
            digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
            short = f"{dtype[0]}{digits}"
        return f"{word}_{short}"


# ------------------------------------------------------------------ the collectives


def _method(gloo_name: str, what: Collective, move: Move) -> Callable[..., Any]:
    """One of torch's methods, called with what is filled, what is read, and options."""

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
        if what in _OF_ONE:
            root = opts.rootRank == self.rank()
            if what is Collective.REDUCE:
                outputs = outputs if root else []
            else:
                inputs, outputs = (inputs, []) if root else ([], outputs)
        reduced = getattr(opts, "reduceOp", None)
        return self.run.collective(
            what,
            inputs,
            outputs,
            self.bytes_of(what, inputs, outputs),
            lambda own, filled: move(self, own, filled, args),
            "" if reduced is None else self.word((inputs or outputs)[0], reduced),
        )

    return call


def _all_reduce(group: _Group, own: _List, filled: _List, args: Any) -> None:
    group.sum(own, filled, args[-1])


def _broadcast(group: _Group, own: _List, filled: _List, args: Any) -> None:
    for each in own or filled:
        group.run.wait(group.gloo.broadcast([each], args[-1]))


def _reduce(group: _Group, own: _List, filled: _List, args: Any) -> None:
    sums = filled or [group.torch.empty_like(each) for each in own]
    group.sum(own, sums, args[-1])  # all have it, one keeps it


def _all_gather(group: _Group, own: _List, filled: _List, args: Any) -> None:
    del args
    rows = group.rows(filled)
    if len(filled) == len(own):  # each in one piece
        rows = [[*each.view(-1).chunk(group.size())] for each in filled]
    for each, parts in zip(own, rows, strict=True):
        flat = [part.view(-1) for part in parts]
        group.run.wait(group.gloo.allgather([flat], [each.view(-1)]))


def _reduce_scatter(group: _Group, own: _List, filled: _List, args: Any) -> None:
    wholes = own
    if len(filled) < len(own):
        wholes = [group.joined(parts) for parts in group.rows(own)]
    totals = [group.torch.empty_like(each) for each in wholes]
    group.sum(wholes, totals, args[-1])
    for total, part in zip(totals, filled, strict=True):
        part.copy_(total.view(group.size(), *part.shape)[group.rank()])


def _all_to_all_single(group: _Group, own: _List, filled: _List, args: Any) -> None:
    to, of = [*args[2]], [*args[3]]
    group.run.wait(group.gloo.alltoall_base(*filled, *own, to, of, args[-1]))


def _all_to_all(group: _Group, own: _List, filled: _List, args: Any) -> None:
    to, of = ([each.numel() for each in some] for some in (filled, own))
    made = group.joined(filled)
    work = group.gloo.alltoall_base(made, group.joined(own), to, of, args[-1])
    group.run.wait(work)
    for each, part in zip(filled, made.split(to), strict=True):
        each.view(-1).copy_(part)


def _gather(group: _Group, own: _List, filled: _List, args: Any) -> None:
    group.run.wait(group.gloo.gather(group.rows(filled), own, args[-1]))


def _scatter(group: _Group, own: _List, filled: _List, args: Any) -> None:
    group.run.wait(group.gloo.scatter(filled, group.rows(own), args[-1]))


def _tensors_in(given: Any, tensor: type) -> Iterator[Any]:
    if isinstance(given, tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors_in(each, tensor)


# The names that versions of torch have for a method, as gloo's is called first.
_METHODS: tuple[tuple[tuple[str, ...], Collective, Move], ...] = (
    (("allreduce", "allreduce_coalesced"), Collective.ALL_REDUCE, _all_reduce),
    (("broadcast",), Collective.BROADCAST, _broadcast),
    (("reduce",), Collective.REDUCE, _reduce),
    (("allgather",), Collective.ALL_GATHER, _all_gather),
    (
        ("_allgather_base", "all_gather_single",
         "allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        Collective.ALL_GATHER, _all_gather,
    ),
    (("reduce_scatter",), Collective.REDUCE_SCATTER, _reduce_scatter),
    (
        ("_reduce_scatter_base", "reduce_scatter_single",
         "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        Collective.REDUCE_SCATTER, _reduce_scatter,
    ),
    (("alltoall_base", "all_to_all_single"), Collective.ALL_TO_ALL, _all_to_all_single),
    (("alltoall",), Collective.ALL_TO_ALL, _all_to_all),
    (("gather",), Collective.GATHER, _gather),
    (("scatter",), Collective.SCATTER, _scatter),
)  # fmt: skip
