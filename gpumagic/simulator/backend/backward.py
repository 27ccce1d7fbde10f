"""On which stream the operations of a backward pass run.

A node runs where its forward operation ran, and waits for those before it: that
stream is the current one in it, for its hooks and for whatever a custom function does.
What belongs to a leaf, its hooks and the sum of its gradients, runs where the leaf was
first used.
When the pass is over, the caller's streams wait for all that took part, and are the
current ones again. So a whole backward pass orders with its surroundings like one
operation.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_REMEMBERED = 1 << 16  # forward operations; a graph that is older lost its streams
_OF_A_LEAF = (1 << 64) - 1  # the number of every node that sums a leaf's gradients


class _Pass:
    """A backward pass that a thread is in.

    Attributes:
        callers: The current streams of whoever began it.

        roots: What it began at.

        first_uses: The number of the first node that used each leaf, by the leaf's
            identity; None as long as nobody has asked.

        node: The number of the node that it is in, or the leaf and that number.

        entered: The GPUs that this node has used.

        last: The stream of the node before.

        used: The streams of all nodes so far.
    """

    __slots__ = (
        "callers",
        "entered",
        "first_uses",
        "last",
        "node",
        "roots",
        "used",
    )

    def __init__(
        self, callers: dict[SimulatedGpu, SimulatedStream], roots: Sequence[Any]
    ) -> None:
        self.callers = callers
        self.roots = roots
        self.first_uses: dict[int, int] | None = None
        self.node: int | tuple[int, int] | None = None
        self.entered: set[SimulatedGpu] = set()
        self.last: SimulatedStream | None = None
        self.used: dict[SimulatedStream, None] = {}


class _Thread(threading.local):
    """The pass that a thread is in, and how many nodes it had made when last asked."""

    inside: _Pass | None = None
    numbered = 0


class BackwardStreams:
    """Remembers the streams of forward operations; in use once there are several."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._core = simulation.torch._C
        self._count = simulation.torch._C._autograd._get_sequence_nr
        self._forward: dict[int, SimulatedStream] = {}  # by the number of the node
        self._thread = _Thread()

    def stream_for(self, gpu: SimulatedGpu) -> SimulatedStream:
        """Where work on a GPU goes, in this thread and now."""
        here, thread = self._simulation.here, self._thread
        if thread.inside is not None:
            node = self._core._current_autograd_node()
            if node is not None:
                self._enter(thread.inside, node, gpu)
        current = here.streams.get(gpu, gpu.default_stream)
        if self._count() != thread.numbered:
            self._remember(current)
        return current

    def start(self, roots: Sequence[Any]) -> _Pass | None:
        """A pass begins at these tensors; answers with the one that it is part of."""
        outer = self._thread.inside
        self._thread.inside = _Pass(dict(self._simulation.here.streams), roots)
        return outer

    def finish(self, outer: _Pass | None) -> None:
        """It is over: its caller's streams are current again, and wait for it."""
        here, inside = self._simulation.here, self._thread.inside
        self._thread.inside = outer
        if inside is None or not inside.used:
            return
        here.streams.clear()
        here.streams.update(inside.callers)
        for stream in inside.used:
            self._wait(here.streams.get(stream.gpu, stream.gpu.default_stream), stream)

    def _remember(self, stream: SimulatedStream) -> None:
        """The nodes made since this thread was last looked at are of this stream."""
        count, forward = self._count(), self._forward
        first, self._thread.numbered = self._thread.numbered, count
        if stream is stream.gpu.default_stream:
            return
        for number in range(max(first, count - _REMEMBERED), count):
            forward[number] = stream
        for _ in range(len(forward) - _REMEMBERED):
            del forward[next(iter(forward))]

    def _enter(self, inside: _Pass, node: Any, gpu: SimulatedGpu) -> None:
        """Make the stream of a node's forward operation the current one in it."""
        streams = self._simulation.here.streams
        number: int = node._sequence_nr()
        which: int | tuple[int, int] = number
        if number == _OF_A_LEAF and self._forward:
            leaf = _leaf_of(node)
            number = self._first_use(inside, leaf)
            which = leaf, number
        if inside.node != which:
            inside.node = which
            inside.entered.clear()
            streams.clear()
            stream = self._forward.get(number)
            if stream is not None:
                streams[stream.gpu] = stream
        if gpu not in inside.entered:
            inside.entered.add(gpu)
            stream = streams.get(gpu, gpu.default_stream)
            callers = inside.callers.get(gpu, gpu.default_stream)
            self._wait(stream, inside.last or callers)
            inside.last = stream
            inside.used[stream] = None

    def _first_use(self, inside: _Pass, leaf: int) -> int:
        if inside.first_uses is None:
            inside.first_uses = _first_uses(inside.roots)
        return inside.first_uses.get(leaf, _OF_A_LEAF)

    def _wait(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        if stream is not other:
            with self._simulation.books():
                self._simulation.machine.wait(stream, other)


def _first_uses(roots: Sequence[Any]) -> dict[int, int]:
    """The number of the first node that used each leaf, by the leaf's identity."""
    found: dict[int, int] = {}
    nodes = (getattr(each, "node", None) or each.grad_fn for each in roots)
    seen = {each for each in nodes if each is not None}
    left = [*seen]
    while left:
        node = left.pop()
        number = node._sequence_nr()
        for each, _ in node.next_functions:
            if each is None:
                continue
            if each._sequence_nr() == _OF_A_LEAF:
                leaf = _leaf_of(each)
                found[leaf] = min(found.get(leaf, number), number)
            elif each not in seen:
                seen.add(each)
                left.append(each)
    return found


def _leaf_of(node: Any) -> int:
    return id(getattr(node, "variable", None))


def finishing(run_backward: Any, simulation: Simulation) -> Any:
    """A backward pass that ends by ordering its streams with the caller's."""
    import functools

    @functools.wraps(run_backward)
    def run(roots: Any, *arguments: Any, **options: Any) -> Any:
        outer = simulation.backward.start(roots)
        try:
            return run_backward(roots, *arguments, **options)
        except RuntimeError as error:
            error.args = (*_in_words_of(simulation, error.args),)
            raise
        finally:
            simulation.backward.finish(outer)

    return run


def _in_words_of(simulation: Simulation, said: Iterable[Any]) -> Iterator[Any]:
    """What torch's engine says of devices, with the name that the user knows."""
    for each in said:
        known = isinstance(each, str)
        yield each.replace(f"{NAME}:", f"{simulation.word}:") if known else each
