"""Loading with more and more workers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.rates import Loading


class Stopped(enum.Enum):
    """Why no more workers were tried."""

    SLOWER = "the last ones gained less than 5 %"
    FAST_ENOUGH = "loading takes less than 80 % of the step"
    MOST = "this process may use no more processors"
    BUDGET = "the time was spent"
    GUARD = "more would not fit"
    REFUSED = "workers cannot be used with this loader"
    NOT_ASKED = "not asked for"


@dataclass(frozen=True)
class WorkerTrial(Record):
    """Loading with one number of workers.

    Attributes:
        loading: What was measured; None if it failed.

        private_bytes: Memory that the workers do not share, all together.

        problem: Why it failed.
    """

    workers: int
    loading: Loading | None
    private_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class WorkerSearch(Record):
    """Loading with more and more workers.

    Attributes:
        trials: In the order of trying.

        chosen: The fewest within 5 % of the best; None if nothing was found out.

        most: The processors that this process may use.

        problem: Why there was nothing to search, if so.
    """

    trials: tuple[WorkerTrial, ...]
    chosen: int | None
    stopped: Stopped
    most: int | None = None
    problem: str | None = None
    hint: str | None = None
