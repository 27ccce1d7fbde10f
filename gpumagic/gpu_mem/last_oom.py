"""The last out-of-memory error of a notebook, as facts that keep nothing alive.

An error that ends a cell is met at the end of that cell, before a later error takes
its place. One that the code has caught leaves no trace in Python, and its birth cannot
be watched without cost. But the allocators count them: a number that has risen with no
error to show for it tells that there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box
from gpumagic.gpu_mem.counters import read
from gpumagic.gpu_mem.error_holders import errors_in_variables, held_errors
from gpumagic.gpu_mem.oom_errors import facts_of, oom_within
from gpumagic.gpu_mem.records.requests import CaughtOoms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.gpu_mem.records.counters import Counters
    from gpumagic.gpu_mem.records.requests import OomFacts


class Seen(NamedTuple):
    """What is known: `facts` are of the last error, `caught` came since or instead."""

    facts: OomFacts | None
    caught: CaughtOoms | None


class LastOom:
    """Remembers what is known of the last one, also when the error itself is gone.

    Args:
        shell: The IPython shell, which holds the last error; None where there is none.

        look: Reads the counters of the devices in use.
    """

    def __init__(
        self,
        shell: Any | None,
        look: Callable[[], Iterable[Counters]] | None = None,
    ) -> None:
        self._shell = shell
        self._look = look or _of_every_device
        self._seen = Seen(None, None)
        self._known: set[tuple[int, str]] = set()
        self._count = _Count()
        self._looked_in: int | None = None

    def seen(self, cell: int | None = None) -> Seen:
        """What is known by now.

        Args:
            cell: The cell that asks.
        """
        self._note(self._risen(), None, None)
        self._looked_in = cell
        return self._seen

    def cell_ended(
        self,
        cell: int | None,
        error: BaseException | None = None,
        *,
        watched: bool = True,
    ) -> None:
        """Remember what has come of a cell, if anything has.

        Args:
            cell: Its number.

            error: What it has raised, where the shell does not hold that yet.

            watched: Whether nothing else has run since the look before.
        """
        more = self._risen()
        if error is not None or any(more.values()):
            self._note(more, error, cell if watched else None)
        self._looked_in = cell

    def _risen(self) -> dict[int, int]:
        if self._count.begin_anew():
            self._seen = Seen(None, None)  # of a machine that is not there any more
        return self._count.risen(self._look())

    def _note(
        self, more: dict[int, int], error: BaseException | None, watched: int | None
    ) -> None:
        if any(more.values()):
            self._forget(error)
        new = self._new_errors(error)
        facts = [facts_of(each) for each in new]
        for each in facts:
            _take_one(more, each.device)
        times, device = max(((n, d) for d, n in more.items()), default=(0, 0))
        if times > 0:
            since = None if watched is not None else self._looked_in
            caught = CaughtOoms(device, times, watched, since)
            # The words of an older error would be taken for those of the last one.
            self._seen = Seen(facts[0] if facts else None, caught)
        elif facts:
            self._seen = Seen(facts[0], None)

    def _forget(self, error: BaseException | None) -> None:
        """Take an error for a new one: it can have the place of one that is gone."""
        found = oom_within(error)
        if found is not None:
            self._known.discard(_key(found))

    def _new_errors(self, error: BaseException | None) -> list[BaseException]:
        """Those that nobody had seen before, the last one first."""
        kept = [error, *(held.error for held in held_errors(self._shell))]
        for errors in errors_in_variables(self._shell).values():
            kept += reversed(errors)
        found = (oom_within(e) for e in kept if isinstance(e, BaseException))
        held = {_key(each): each for each in found if each is not None}
        new = [each for key, each in held.items() if key not in self._known]
        self._known = set(held)
        return new


class _Count:
    """How many the allocators have counted, of the machine that is on."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._machine: Any = None

    def begin_anew(self) -> bool:
        """Forget what was counted on another machine; whether there was one."""
        if simulated_box() is self._machine:
            return False
        self._known, self._machine = {}, simulated_box()
        return True

    def risen(self, counters: Iterable[Counters]) -> dict[int, int]:
        """By how much more, device by device, since this was last asked."""
        more = {}
        for each in counters:
            now, then = each.ooms or 0, self._known.get(each.device, 0)
            # Fewer than before: reset in between, and counted anew since.
            more[each.device] = now if now < then else now - then
            self._known[each.device] = now
        return more


def _of_every_device() -> Iterator[Counters]:
    """The counters of each device: one that has given back all is not in use."""
    runtime = runtime_now()
    count = runtime.device_count() if runtime.started() else 0
    return (read(runtime, device) for device in range(count or 0))


def _key(error: BaseException) -> tuple[int, str]:
    return id(error), str(error)


def _take_one(more: dict[int, int], device: int | None) -> None:
    """An error with words is one of those that were counted."""
    if device is None:
        device = next((each for each, times in more.items() if times), None)
    if device in more:
        more[device] -= 1
