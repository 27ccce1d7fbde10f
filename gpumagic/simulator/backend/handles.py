"""What torch hands out for a collective that was called: works, and their futures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.simulator.backend.collectives import Collectives
    from gpumagic.simulator.engines import Meeting
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.simulated_gpu import SimulatedGpu

_NO_TASK = -1  # outside of any backward pass


def work_class(torch: Any) -> Any:
    """The class of handles, which torch's C++ has to know as one of its own."""
    base = torch.distributed.Work
    made: Any = type("Work", (_Work, base), {"_torch": torch, "_base": base})
    return made


class _Work:
    """A handle of a collective that was called, as NCCL's."""

    _torch: Any
    _base: Any

    def __init__(
        self, owner: Collectives, gpu: SimulatedGpu, meeting: Meeting, mark: Mark
    ) -> None:
        self._base.__init__(self)
        self._owner = owner
        self._gpu = gpu
        self._meeting = meeting
        self._mark = mark
        self.keep: Any = None
        self.outputs: list[Any] = []
        self.others: Sequence[_Work] = ()
        self.host_waits = ""

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait; the host does for a barrier alone."""
        del timeout
        for each in self.others:
            each.wait()
        self._owner.current_stream_waits(self._gpu, self._meeting, self._mark)
        if self.host_waits:
            self._owner.host_waits(self.host_waits, self._meeting, self._mark)
        self.keep = None
        return True

    def come_to(self) -> None:
        """Let the others know when this GPU comes to it."""
        self._owner.come_to(self._meeting)

    def synchronize(self) -> None:
        """Likewise."""
        self.wait()

    def block_current_stream(self) -> None:
        """Likewise."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended by now, on the machine's clock."""
        return self._owner.done(self._gpu, self._meeting)

    def is_success(self) -> bool:
        """Whether it has ended without an error: there are none."""
        return self.is_completed()

    def exception(self) -> None:
        """There are none."""

    def result(self) -> list[Any]:
        """The tensors that it writes."""
        return self.outputs

    def get_future(self) -> Any:
        """A future of those; whoever waits for it lets the current stream wait."""
        torch = self._torch
        if torch._C._current_graph_task_id() != _NO_TASK:
            # DDP's reducer waits in C++, at the end of the backward pass.
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        future = _future_class(torch)()
        future.work = self
        future.set_result(self.outputs)
        return future


def _future_class(torch: Any) -> Any:
    base = torch.futures.Future

    def wait(self: Any) -> Any:
        self.work.wait()
        return base.wait(self)

    def value(self: Any) -> Any:
        self.work.wait()
        return base.value(self)

    def then(self: Any, callback: Any) -> Any:
        self.work.wait()
        return base.then(self, callback)

    return type("Future", (base,), {"wait": wait, "value": value, "then": then})
