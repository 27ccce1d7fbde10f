"""A training loop that is run for some steps at a time, with its loader kept open.

Starting workers takes longer than many steps. So both loops that are compared stay
open, each with its workers, and take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.pace.pace import PacedLoader
from gpumagic.pin_loader.trials.trial import batches_of
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.trials.trial import Trial

_FEWEST_AHEAD, _MOST_AHEAD = 3, 64
_DEFAULT_PREFETCH = 2
_WARM_STEPS = 2


def ahead_of(loader: Any) -> int:
    """How many batches of a loader may be ready before anybody asks.

    Whoever measures lets them go first: they come faster than it can load.
    """
    workers = getattr(loader, "num_workers", 0) or 0
    each = getattr(loader, "prefetch_factor", None) or _DEFAULT_PREFETCH
    depth = getattr(loader, "depth", 0) or 0
    return min(max(workers * each + workers + depth, _FEWEST_AHEAD), _MOST_AHEAD)


class Loop:
    """One loop: a batch, then what is done with it.

    Args:
        loader: Is iterated, again and again.

        use: What is done with each batch.

        runtime: Whose devices are waited for, and whose clock is read.
    """

    def __init__(
        self, loader: Any, use: Callable[[Any], object], runtime: Runtime
    ) -> None:
        self._loader, self._use, self._runtime = loader, use, runtime
        self._open: Trial | None = None
        self._taken = 0  # in this epoch
        self._length = _length_of(loader)
        self._waits_s: list[float] = []
        self.ahead = ahead_of(loader)
        # Workers hand over in bursts, one batch each: only whole rounds are compared.
        self.round = max(getattr(loader, "num_workers", 0) or 0, 1)
        inner = getattr(loader, "loader", loader)
        self.is_modelled = isinstance(inner, PacedLoader)

    def run(
        self,
        steps: int,
        *,
        begin: Callable[[], object] | None = None,
        end: Callable[[], object] | None = None,
    ) -> float:
        """Run some steps, after a few batches that are dropped; from idle to idle.

        Those were prepared while nobody took any. The step is run with the last few, so
        that the device is in its stride.

        Args:
            steps: How many.

            begin: Called when the devices are idle, before the first that counts.

            end: Called when they are idle again.

        Returns:
            Seconds for one step.
        """
        if self._length is not None and self._taken + self.ahead + steps > self._length:
            self.close()  # better now than while it is timed
        synchronize, now_ns = self._runtime.synchronize, self._runtime.now_ns
        for left in reversed(range(self.ahead)):
            batch = self._next()
            if left < _WARM_STEPS:
                self._use(batch)
            del batch
        synchronize()
        if begin is not None:
            begin()
        waited_ns, began_ns = 0, now_ns()
        for _ in range(steps):
            asked_ns = now_ns()
            batch = self._next()
            waited_ns += now_ns() - asked_ns
            self._use(batch)
            del batch
        synchronize()
        took_ns = now_ns() - began_ns
        if end is not None:
            end()
        self._waits_s.append(waited_ns / 1e9 / steps)
        return took_ns / 1e9 / steps

    def wait_s(self) -> float:
        """How long a step waited for its batch, in the middle of all runs."""
        return robust.median(self._waits_s)

    def is_short(self, steps: int) -> bool:
        """Whether a run does not fit into an epoch."""
        return self._length is not None and self.ahead + steps > self._length

    def close(self) -> None:
        """End the iteration, and its workers with it."""
        trial, self._open = self._open, None
        self._taken = 0
        if trial is not None:
            trial.__exit__(None, None, None)

    def _next(self) -> Any:
        for _ in range(2):
            if self._open is None:
                self._open = batches_of(self._loader)
                self._open.__enter__()
            for batch in self._open:
                self._taken += 1
                return batch
            self.close()
        raise no_batches()


def no_batches() -> GpuMagicError:
    """What is told of a loader that ends at once."""
    return GpuMagicError(
        "the loader gives no batches: its dataset, or its sampler, is empty",
        "look at len() of it",
    )


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable dataset without a length
        return None
