"""Loading with more and more workers, as bars, and why one number was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Meter, Note, Paragraph, Table
from gpumagic.pin_loader.records.workers import Stopped
from gpumagic.pin_loader.sections.phrases import median_of, three_digits, time_text
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.workers import WorkerSearch, WorkerTrial


def worker_parts(search: WorkerSearch) -> Iterator[Part]:
    """The curve as a table of bars; then the choice, and what failed."""
    if search.stopped is Stopped.NOT_ASKED and not search.trials:
        return
    if search.trials:
        yield _table(search)
    if search.problem is not None:
        yield Note("warning", search.problem, search.hint or "")
    for trial in search.trials:
        if trial.problem is not None:
            workers = count_text(trial.workers, "worker")
            yield Note("warning", f"with {workers}: {trial.problem}")
    yield Paragraph(" ".join(_sentences(search)))


def _table(search: WorkerSearch) -> Table:
    speeds = [_speed(trial) for trial in search.trials]
    fastest = max((speed for speed in speeds if speed is not None), default=None)
    rows = (
        _row(trial, speed, fastest, chosen=trial.workers == search.chosen)
        for trial, speed in zip(search.trials, speeds, strict=True)
    )
    return Table(
        "Loading by number of workers (measured)",
        (
            Column("Workers"),
            Column("Batches a second"),
            Column("A batch", number=True),
            Column("First batch after", number=True),
            Column("Memory of their own", number=True),
        ),
        tuple(rows),
    )


def _row(
    trial: WorkerTrial, speed: float | None, fastest: float | None, *, chosen: bool
) -> tuple[Cell, ...]:
    name = f"{trial.workers} (chosen)" if chosen else f"{trial.workers}"
    memory = None if trial.private_bytes is None else bytes_text(trial.private_bytes)
    if trial.workers == 0 and memory is None:
        memory = "-"
    if trial.loading is None:
        return name, "failed", "-", "-", memory
    share = speed / fastest if speed is not None and fastest else None
    return (
        name,
        Meter(share, "" if speed is None else three_digits(speed)),
        time_text(median_of(trial.loading.between)),
        time_text(trial.loading.start_s),
        memory,
    )


def _speed(trial: WorkerTrial) -> float | None:
    batch_s = None if trial.loading is None else median_of(trial.loading.between)
    return 1 / batch_s if batch_s else None


def _sentences(search: WorkerSearch) -> Iterator[str]:
    if search.chosen is None:
        yield "No number of workers was chosen."
    else:
        workers = count_text(search.chosen, "worker")
        yield f"Chosen: {workers}, the fewest within 5 % of the fastest."
    yield f"No more were tried: {search.stopped.value}."
    if search.most is not None:
        yield f"This process may use {count_text(search.most, 'processor')}."
