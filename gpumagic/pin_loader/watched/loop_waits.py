"""What loops waited for, by loader and line, under the names of the notebook."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.records.samples import Samples
from gpumagic.pin_loader.records.watched import DataWait
from gpumagic.report.places import code_line
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.pin_loader.watched.seen_loaders import SeenLoader, Wait
    from gpumagic.report.events import CodeLine

_WORTH_SAYING = 0.1  # of the time
_LEAST_S = 0.01


def loop_waits(
    loaders: Iterable[SeenLoader], names: Mapping[str, object]
) -> tuple[DataWait, ...]:
    """One for each loop, in the order in which they began.

    Args:
        loaders: What was seen.

        names: What the notebook calls its objects.
    """
    return tuple(
        DataWait(
            loader=name_of(loader, names) or loader.title,
            line=line,
            waits=Samples(tuple(wait.wait_s for wait in waits)),
            workers=loader.workers,
            pin_memory=loader.pin_memory,
        )
        for loader in loaders
        for line, waits in _by_line(loader.waits).items()
    )


def name_of(loader: SeenLoader, names: Mapping[str, object]) -> str | None:
    """What the notebook calls a loader, or else what it calls something round it."""
    found = loader.loader()
    known = {name: value for name, value in names.items() if not name.startswith("_")}
    if found is not None:
        for name, value in known.items():
            if value is found:
                return name
        for name, value in known.items():
            if is_round(value, found):
                return name
    dataset = loader.dataset()
    if dataset is None:
        return None
    for name, value in known.items():
        if _attributes(value).get("dataset") is dataset:
            return name
    return None


def is_round(thing: object, loader: object) -> bool:
    """Whether something that gives batches has this loader as an attribute."""
    if not hasattr(type(thing), "__iter__"):
        return False
    return any(each is loader for each in _attributes(thing).values())


def wait_remarks(
    loaders: Iterable[SeenLoader], names: Mapping[str, object], *, host_s: float
) -> tuple[Remark, ...]:
    """Which loaders held the loop up, and what to try.

    Args:
        loaders: What was seen.

        names: What the notebook calls its objects.

        host_s: How long the whole took on the clock of the waits.
    """
    found = (
        about(loader, name_of(loader, names), host_s)
        for loader in loaders
        for about in (_waited, _started_again)
    )
    return tuple(remark for remark in found if remark is not None)


def _waited(loader: SeenLoader, name: str | None, host_s: float) -> Remark | None:
    """A loader that is too slow; the start of its workers is another matter."""
    steady = [
        wait.wait_s
        for wait in loader.waits
        if not loader.workers or wait.start_s is None
    ]
    if not _is_much(sum(steady), host_s):
        return None
    return Remark(
        f"{seconds_text(sum(steady))} of {seconds_text(host_s)} "
        f"({share_text(sum(steady) / host_s)}) were spent waiting for "
        f"{name or loader.title}, which has {count_text(loader.workers, 'worker')}",
        f"%pin_loader {name or 'NAME'} --workers auto finds out how many pay",
    )


def _started_again(
    loader: SeenLoader, name: str | None, host_s: float
) -> Remark | None:
    """Workers that are started anew for each epoch, where that is what takes long."""
    firsts = [wait.wait_s for wait in loader.waits if wait.start_s is not None]
    again = firsts[1:]
    if not loader.workers or loader.persistent or not _is_much(sum(again), host_s):
        return None
    return Remark(
        f"{seconds_text(sum(again))} were spent waiting for the first batches of "
        f"{count_text(len(again), 'later epoch')} of {name or loader.title}: its "
        "workers are started for each epoch anew",
        "DataLoader(..., persistent_workers=True) keeps them",
    )


def _is_much(waited_s: float, host_s: float) -> bool:
    return waited_s >= max(host_s * _WORTH_SAYING, _LEAST_S)


def _by_line(waits: Iterable[Wait]) -> dict[CodeLine | None, list[Wait]]:
    lines: dict[Any, CodeLine | None] = {}
    by_line: dict[CodeLine | None, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.mark not in lines:
            lines[wait.mark] = code_line(wait.mark)
        by_line[lines[wait.mark]].append(wait)
    return by_line


def _attributes(thing: object) -> dict[str, Any]:
    """What an object has of its own; nothing of it is run."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
