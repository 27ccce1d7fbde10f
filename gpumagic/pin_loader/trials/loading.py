"""How fast a loader gives batches while nobody does anything with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.records.rates import Loading
from gpumagic.pin_loader.records.samples import Samples
from gpumagic.pin_loader.trials.arrivals import Arrivals, Raised, number_of
from gpumagic.pin_loader.trials.loader_failure import (
    LoaderFailed,
    failure_of,
    is_death_of_worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0  # for one batch, where nothing else is said


def measure(  # noqa: PLR0913 - each is a word of its own
    loader: Any,
    *,
    batches: int = 20,
    budget_s: float = 2.0,
    patience_s: float = PATIENCE_S,
    nbytes: int | None = None,
    look: Callable[[tuple[int, ...]], object] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Loading:
    """Iterate a loader and time its batches, one of which is alive at a time.

    What workers have prepared ahead does not count: as many batches as may be under
    way, and one for each worker more. Workers that take equally long hand over in
    bursts, so that most batches follow the one before at once; a sample is therefore
    the time of one round, a batch from each worker, divided by the workers.

    A loader without workers whose epoch is short is iterated again and again.

    Args:
        loader: A clone of the user's.

        batches: How many to time; with workers, five rounds at least.

        budget_s: How long it may take after the first batch; one round is timed in
            any case.

        patience_s: How long workers may take for one batch.

        nbytes: Of a batch, if that is known.

        look: Called with the workers' process numbers, after the first batch and
            again at the end, when those of a short epoch are gone already.

        progress: Called between batches with the share of the budget that is spent.

    Raises:
        LoaderFailed: The loader has raised, or has no batches.
    """
    workers = number_of(getattr(loader, "num_workers", 0))
    arrivals = Arrivals(loader, workers, batches, budget_s, progress)
    failure: LoaderFailed | None = None
    try:
        ended_early = arrivals.take(patience_s, look)
    except Raised as raised:
        failure = failure_of(raised.error, raised.batch)
    except RuntimeError as error:
        # The death of a worker is raised wherever the main thread happens to be.
        if not is_death_of_worker(error):
            raise
        failure = failure_of(error, len(arrivals.seconds))
    if failure is not None:
        raise failure  # outside, so that it does not hold the frames of the error
    return Loading(
        between=Samples(tuple(arrivals.samples())),
        workers=workers,
        start_s=arrivals.seconds[0],
        nbytes=nbytes,
        ended_early=ended_early,
    )
