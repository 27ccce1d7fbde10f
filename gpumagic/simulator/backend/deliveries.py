"""Brings what other processes send into the twins, when somebody looks at these.

Until then a host goes on, as after a launch: the real processes wait for each other
only where one of them needs another's numbers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.simulator.backend.tensors import Memory
from gpumagic.simulator.meetings import real_pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.meetings import GroupCall, Roll

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3


class Moved(NamedTuple):
    """What gloo is doing, and what there is for each output once it is done."""

    works: Sequence[Any]
    made: Callable[[], Sequence[Any]]


class Sent:
    """What gloo sends or receives: it is done when somebody has waited for it.

    A thread does, which Ctrl-C has not to wait for, and which keeps the numbers.
    """

    def __init__(self, work: Any, numbers: Any) -> None:
        self._work = work
        self._numbers = numbers
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def is_completed(self) -> bool:
        """Whether it has come, or will not come."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for it."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        try:
            self._work.wait()
        except Exception as error:  # noqa: BLE001 -- raised where it is waited for
            self._error = error


class Delivery:
    """What gloo brings for some tensors."""

    __slots__ = ("call", "come_to", "done", "moved", "targets")

    def __init__(
        self,
        moved: Moved,
        targets: list[tuple[Memory, Any]],
        come_to: Callable[[], object],
        call: GroupCall,
    ) -> None:
        self.call = call
        self.moved = moved
        self.come_to = come_to  # lets the others know when this process comes
        self.targets = targets  # whose memory, and what of its twin
        self.done = False


class Deliveries:
    """Brings what others have sent, to whoever looks at a twin that waits for it.

    As long as something is on its way, the memory is of a class of its own, whose
    twin is there once that has come: looking at any other memory costs nothing more.
    """

    def __init__(self, simulation: Simulation, roll: Roll) -> None:
        self._simulation = simulation
        self._roll = roll
        self._expected: dict[int, list[Delivery]] = {}  # by the identity of the memory
        self._twin: Any = vars(Memory)["twin"]
        twin = property(self._bring_all, self._twin.__set__)
        self._awaiting: Any = type(
            "AwaitingMemory", (Memory,), {"__slots__": (), "twin": twin}
        )

    def add(
        self,
        moved: Moved,
        outputs: Sequence[Any],
        come_to: Callable[[], object],
        call: GroupCall,
    ) -> None:
        """Something is on its way to these tensors."""
        targets = []
        for each in outputs:
            memory = self._simulation.tensors.claimed(each)
            whole = self._twin.__get__(memory)
            view = self._simulation.tensors.view_of_twin(each, whole)
            targets.append((memory, view.detach()))
        delivery = Delivery(moved, targets, come_to, call)
        for memory, _ in targets:
            expected = self._expected.setdefault(id(memory), [])
            if delivery not in expected:
                expected.append(delivery)
            memory.__class__ = self._awaiting

    def bring(self, delivery: Delivery) -> None:
        """Put it where it belongs, and before that what was called before it."""
        if delivery.done:
            return
        for memory, _ in delivery.targets:
            for each in tuple(self._expected.get(id(memory), ())):
                if each is delivery:
                    break
                self.bring(each)
        with self._roll.waiting(delivery.call):
            for work in delivery.moved.works:
                self._wait(work)
        delivery.done = True
        made = delivery.moved.made()
        with self._simulation.torch.no_grad():
            for (_, view), given in zip(delivery.targets, made, strict=True):
                view.copy_(given.view(view.shape))
        for memory, _ in delivery.targets:
            self._no_longer(memory, delivery)

    def _no_longer(self, memory: Memory, delivery: Delivery) -> None:
        expected = self._expected.get(id(memory), [])
        if delivery in expected:
            expected.remove(delivery)
        if not expected:
            self._expected.pop(id(memory), None)
            memory.__class__ = Memory

    def _bring_all(self, memory: Memory) -> Any:
        """The twin, with all that is on its way to it.

        Others may wait for this process before they send: to be told when it comes.
        That it tells here each time, however fast they are, so that times are the same.
        """
        expected = tuple(self._expected.get(id(memory), ()))
        if expected:
            expected[-1].come_to()
        for each in expected:
            self.bring(each)
        return self._twin.__get__(memory)

    def _wait(self, work: Any) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while not work.is_completed():
            self._simulation.interrupts.run_asked()
            real_pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        work.wait()
