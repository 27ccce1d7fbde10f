"""What is spent of the time that sampling may take, and what has spent it.

Two clocks run. Where a device is simulated, the measured one is the model's, and this
machine, which works its values out, is slower: people wait for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.stopwatch import Elapsed

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.plan import Plan
    from gpumagic.devices.protocols import Runtime

_FEWEST_FOR_AN_INTERVAL = 6  # of 95 % confidence
_PATIENCE = 10  # budgets, where it is this machine that simulates slowly


class Budget:
    """The time of a plan, which runs from now on.

    Args:
        plan: How long all of it may take.

        runtime: Whose clock is the measured one.
    """

    def __init__(self, plan: Plan, runtime: Runtime) -> None:
        self._plan, self._runtime = plan, runtime
        self._passed = Elapsed(runtime)

    @property
    def passed_s(self) -> float:
        """How long it has been running, on the clock that says more."""
        return self._passed.seconds

    @property
    def spent(self) -> bool:
        """Whether all of it is."""
        return self.passed_s >= self._plan.budget_s

    def has_to_end(self, count: int) -> bool:
        """Whether so many samples have to do, as the budget is spent.

        A model's times are few before its values have cost this machine the budget.
        So that they say anything at all, its patience is longer then.
        """
        if not self.spent or count < 1:
            return False
        waits = self._is_spent_on_values and self._passed.here_s < self._patience_s
        return count >= _FEWEST_FOR_AN_INTERVAL or not waits

    def out_of_time(self) -> Flag:
        """What has spent the budget, for those who wanted more samples."""
        if self._is_spent_on_values:
            return Flag(FlagKind.VALUES_TOOK, amount=self._passed.here_s)
        return Flag(FlagKind.OUT_OF_TIME)

    def share_done(self, rounds: float) -> float:
        """How much of all that has to be done before the last sample is done.

        Args:
            rounds: How many samples of each code there are.
        """
        plan = self._plan
        if plan.samples is not None:
            return min(rounds / plan.samples, 1.0)
        share = self.passed_s / plan.budget_s
        if self._runtime.simulated:
            enough = rounds / _FEWEST_FOR_AN_INTERVAL
            patience = self._passed.here_s / self._patience_s
            by_values = min(share, max(enough, patience))
            share = max(self._passed.measured_s / plan.budget_s, by_values)
        return min(share, 1.0)

    @property
    def _patience_s(self) -> float:
        return _PATIENCE * self._plan.budget_s

    @property
    def _is_spent_on_values(self) -> bool:
        """Whether it is this machine, computing simulated values, that has spent it."""
        return (
            self._runtime.simulated
            and self.spent
            and self._passed.measured_s < self._plan.budget_s
        )
