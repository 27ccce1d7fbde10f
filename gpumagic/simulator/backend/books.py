"""The books of one simulation: which operation ran where, which memory is whose.

All entries that belong together are made while the books are held: no other thread
comes in between, and no interrupt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.backend.refusals import NO_SPARSE, not_simulated
from gpumagic.simulator.hazards import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.tensors import Life
    from gpumagic.simulator.costs import Amount
    from gpumagic.simulator.hazards import Operand, Race, Tracker
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream
    from gpumagic.simulator.operators import Rule

    Launch = Callable[..., tuple[list[Any], Sequence[Race]]]

_OUR_FRAMES = 2  # at least: this module's, the kernel's, and what they call
_NO_TASK = -1  # outside of any backward pass
_IN_WORDS = {
    "index": "indexing with a mask",
    "unsafe_index": "indexing with a mask",
    "index_put": "assignment with a mask",
    "index_put_impl": "assignment with a mask",
}


class Books:
    """Enters what happens."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.lock = threading.RLock()
        self.take, self.tensor_of = _memory(simulation)
        self.launch = _make_launch(simulation, self)

    @contextlib.contextmanager
    def open(self) -> Iterator[Tracker]:
        """Hold the books for several entries; interrupts wait outside."""
        simulation = self._simulation
        with self.lock:
            interrupts = simulation.interrupts
            outer, interrupts.held = interrupts.held, True
            try:
                if simulation.tensors.freed:
                    self.return_memory()
                yield simulation.machine.tracker
            finally:
                if not outer:
                    interrupts.deliver()

    def return_memory(self) -> None:
        """Give the memory of storages that have died back; the books are held."""
        tensors = self._simulation.tensors
        while tensors.freed:
            life = tensors.freed.popleft()
            del tensors.lives[id(life)]
            return_block(self._simulation.machine.tracker, life)

    def place(self, twin: Any, gpu: SimulatedGpu, *, made: bool = False) -> Any:
        """A tensor with a block of its own, without a kernel."""
        __tracebackhide__ = True
        with self.open():
            simulation, host = self._simulation, gpu.costs.host
            if made:
                took_ns = host.view_ns + host.allocator_hit_ns
                simulation.machine.scheduler.elapse(took_ns)
            return self.tensor_of(twin, gpu, simulation.stream(gpu))[0]


def _in_words(operator: str) -> str:
    """An operator that waits, as its user knows it; `aten::_unique2` is `unique`."""
    base = operator.removeprefix("aten::").partition(".")[0].strip("_0123456789")
    return _IN_WORDS.get(base, base)


def _memory(simulation: Simulation) -> tuple[Callable[..., Any], ...]:
    """What takes memory, and makes tensors in it; the books are held.

    All that they need is within reach.
    """
    tracker, births = simulation.machine.tracker, simulation.births
    wrap = simulation.tensors.wrap
    nbytes_of = torch._C.StorageBase.nbytes  # none of these is resized

    def take(
        nbytes: int, gpu: SimulatedGpu, stream: SimulatedStream
    ) -> tuple[Any, Accesses]:
        """Memory from the allocator."""
        __tracebackhide__ = True
        if not gpu.started:  # the context takes its share of the memory first
            gpu.start()
        try:
            block: Any = gpu.allocator.allocate(nbytes, stream.number)
        except OutOfSimulatedMemory as full:
            raise simulation.out_of_memory(full) from None
        if tracker.former:
            return block, tracker.reused(block.address, nbytes, stream.order)
        return block, Accesses(nbytes)

    def tensor_of(
        twin: Any, gpu: SimulatedGpu, stream: SimulatedStream
    ) -> tuple[Any, Operand]:
        """A CPU tensor as a simulated one, with memory, and all of that as operand."""
        __tracebackhide__ = True
        try:
            nbytes = nbytes_of(twin.untyped_storage())
        except NotImplementedError:
            raise not_simulated(*NO_SPARSE) from None
        if not nbytes:
            nothing = Accesses(0), 0, 0, None
            return wrap(twin, stream, None, nothing), nothing
        block, accesses = take(nbytes, gpu, stream)
        whole = accesses, 0, nbytes, None
        tensor = wrap(twin, stream, block, whole)
        if births:
            for tell in tuple(births):
                tell(tensor, block)
        return tensor, whole

    return take, tensor_of


def return_block(tracker: Tracker, life: Life) -> None:
    """Give the block of a storage back, if it has one; the books are held."""
    block, stream, accesses = life.block, life.stream, life.accesses
    if not block:
        return
    if accesses.stream != stream.order:  # else nothing else can be using it
        tracker.released(
            accesses, block.address, block.size, stream.order, life.recorded
        )
    stream.gpu.allocator.free(block)


def _make_launch(simulation: Simulation, books: Books) -> Launch:  # noqa: C901, PLR0915
    """The entry of an operation, with all that it needs within reach.

    Every operation comes this way, so that a look into an object less counts.
    """
    lock, tensor_of, return_memory = books.lock, books.tensor_of, books.return_memory
    interrupts, freed = simulation.interrupts, simulation.tensors.freed
    # What `open` does, without the calls.
    waiting = interrupts.asked
    here, users = simulation.places.here, simulation.places.users
    getframe = sys._getframe
    operate = simulation.machine.tracker.operate
    synchronize_stream = simulation.machine.synchronize_stream
    observers = simulation.machine.wait_observers
    task = torch._C._current_graph_task_id
    dtype_words = simulation.dtype_words
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    machine, clock = simulation.machine, simulation.machine.scheduler  # no capture's

    def launch(  # noqa: C901
        gpu: SimulatedGpu,
        operation: Operation,
        twins: Iterable[Any],
        reads: Sequence[Operand],
        writes: list[Operand],
        read_bytes: int,
        written_bytes: int = 0,
        work: Amount = 0.0,
        dtype: Any = None,
        rule: Rule | None = None,
        recorded: bool = False,
    ) -> tuple[list[Any], Sequence[Race]]:
        """Enter one operation into the books; its outputs become tensors."""
        __tracebackhide__ = True
        frame = getframe(_OUR_FRAMES)
        code = frame.f_code
        place: Any = code, frame.f_lasti
        if not users.get(code.co_filename):  # mostly it is the user's own line
            place = here(_OUR_FRAMES + 1)
        stream = (
            simulation.stream(gpu) if simulation.side_streams else gpu.default_stream
        )
        rule = rule or operation.rule
        word = dtype_words.get(dtype, "fp32")
        if operation.rounds and word == "fp32" and simulation.may_round(rule.kind):
            word = "tf32"
        extra_ns = 0
        if task() != _NO_TASK:
            extra_ns = gpu.costs.host.autograd_backward_ns
        elif recorded:
            extra_ns = gpu.costs.host.autograd_forward_ns
        outputs: list[Any] = []
        races: Sequence[Race] = ()
        with lock:
            interrupts.held = True
            try:
                if freed:
                    return_memory()
                for twin in twins:
                    tensor, whole = tensor_of(twin, gpu, stream)
                    written_bytes += whole[2]
                    writes.append(whole)
                    outputs.append(tensor)
                if rule.library:
                    gpu.need(rule.library, stream)
                (gpu.launch if operation.launches else gpu.only_call)(
                    stream,
                    operation.name,
                    rule,
                    word,
                    work,
                    read_bytes,
                    written_bytes,
                    extra_ns,
                )
                races = operate(stream.order, reads, writes, place)
                if blocking and operation.launches and machine.scheduler is clock:
                    synchronize_stream(stream, "")
                elif rule.waits:
                    what = _in_words(operation.name) if observers else ""
                    synchronize_stream(stream, what)
            finally:
                interrupts.held = False
                if waiting:
                    interrupts.deliver()
        if races:
            simulation.tell(races)
        return outputs, races

    return launch
