"""How code is to be sampled, and what the budget leaves for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.records.samples import Mode

FEWEST_SAMPLES = 10

# The budget counts from the end of the first run, which may compile for minutes.
# Half of it is for warming up, which ends much earlier if all is steady soon.
_WARMUP_SHARE = 0.5
_LONGEST_WARMUP_S = 1.0


@dataclass(frozen=True)
class Plan:
    """How code is to be sampled.

    Attributes:
        samples: How many; None until the interval is narrow or the budget is spent.

        calls: Calls in each sample; None as many as the clock needs.

        budget_s: How long all of it may take, after the first run; longer where a run
            alone is, or where the values of a simulated device take this machine long.

        mode: What a sample is; None throughput for short calls, latency for others.

        cold: Whether the caches of the devices are flushed before each sample.

        before: Called before each sample, untimed and waited for.
    """

    samples: int | None = None
    calls: int | None = None
    budget_s: float = 1.0
    mode: Mode | None = None
    cold: bool = False
    before: Callable[[], object] | None = None

    @property
    def longest_warmup_s(self) -> float:
        """When warming up ends even if it has not become steady."""
        return min(_LONGEST_WARMUP_S, _WARMUP_SHARE * self.budget_s)

    @property
    def longest_sample_s(self) -> float:
        """What leaves room for the fewest samples in the rest of the budget."""
        return (1 - _WARMUP_SHARE) * self.budget_s / FEWEST_SAMPLES
