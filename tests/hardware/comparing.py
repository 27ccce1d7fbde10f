"""How long the workloads take on a real GPU, and on the simulated one of its name.

`python -m tests.hardware.comparing MODEL` prints what each takes on a simulated GPU,
as JSON. Every time is in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpumagic
from tests.hardware.workloads import Workload, workloads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Took:
    """Seconds for one action, by both clocks."""

    events: float
    host: float


def measure(  # noqa: PLR0913 -- each of them is a word of its own
    workload: Workload,
    torch: Any,
    device: str,
    now: Callable[[], float],
    *,
    warmups: int,
    samples: int,
) -> Took:
    """The median of what one action of a workload takes."""
    module = getattr(torch, device)
    action = workload.prepare(torch, device)
    rounds = [
        _round(module, action, workload.times, now) for _ in range(warmups + samples)
    ][warmups:]
    return Took(
        statistics.median(each.events for each in rounds),
        statistics.median(each.host for each in rounds),
    )


def measure_simulated(model: str, chosen: Sequence[Workload]) -> dict[str, Took]:
    """What each takes on a simulated GPU, by the clock of the simulation.

    Every run of it gives the same, so one sample after two warm-ups is enough.
    """
    import torch

    with gpumagic.simulate(model) as box:
        return {
            each.name: measure(
                each, torch, "sim", lambda: box.time_s, warmups=2, samples=1
            )
            for each in chosen
        }


def _round(
    module: Any, action: Callable[[], object], times: int, now: Callable[[], float]
) -> Took:
    start, end = (module.Event(enable_timing=True) for _ in range(2))
    module.synchronize()
    begin = now()
    start.record()
    for _ in range(times):
        action()
    end.record()
    module.synchronize()
    host = now() - begin
    return Took(start.elapsed_time(end) / 1000 / times, host / times)


def main() -> None:
    """Print the times of all workloads on the simulated GPU that is named."""
    took = measure_simulated(sys.argv[1], workloads())
    json.dump({name: vars(each) for name, each in took.items()}, sys.stdout)


if __name__ == "__main__":
    main()
