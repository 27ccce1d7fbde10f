"""Puts the clocks of several machines together, by messages back and forth.

Rank 0 asks one rank of each other clock for its time, again and again. In the quickest
round the answer was given half way between question and answer, give or take half that
round (Cristian, 1989). What the clocks drift apart from the beginning of a block to its
end is part of the error.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.report.collectives import Offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROUNDS = 20
_IN_ALL_S = 1.0  # of all rounds; each clock is asked once in any case
_IN_ALL, _FEWEST = 320, 4  # of rounds, where there are many clocks
_ANSWERS = dt.timedelta(seconds=1)
_DRIFT_NS = 100_000  # a second: two clocks of quartz that nobody sets
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def now_ns() -> int:
    """The moment, by the clock by which torch's recorders write."""
    return time.time_ns()


def own_clock() -> str:
    """The same for all processes that share a clock, also in several containers."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def compare(
    clocks: Sequence[str], group: Any, rank: int, *, rounds: int = ROUNDS
) -> dict[str, Offset]:
    """How the clocks stand to that of rank 0; all ranks call this together.

    However many there are, it takes about a second at most, and one round for each.
    """
    others = [clock for clock in dict.fromkeys(clocks) if clock != clocks[0]]
    if rank != 0:
        if clocks[rank] in others and clocks.index(clocks[rank]) == rank:
            _answer(group)
        return {}
    found = {clocks[0]: Offset(0, 0)}
    began_s = time.monotonic()
    for place, clock in enumerate(others, 1):
        until_s = began_s + _IN_ALL_S * place / len(others)
        found[clock] = _ask(clocks.index(clock), group, rounds, until_s)
    return found


def _ask(rank: int, group: Any, rounds: int, until_s: float) -> Offset:
    import torch

    found: list[tuple[int, int]] = []
    is_last = False
    while not is_last:
        is_last = len(found) + 1 >= rounds or time.monotonic() >= until_s
        slot = torch.tensor([is_last], dtype=torch.int64)
        asked_ns = now_ns()
        group.send([slot], rank, 0).wait()
        group.recv([slot], rank, 0).wait()
        found.append(_round(asked_ns, int(slot.item()), now_ns()))
    took_ns, offset_ns = min(found)
    return Offset(offset_ns, took_ns // 2 + 1)


def _answer(group: Any) -> None:
    """Until it is asked for the last time."""
    import torch

    slot = torch.zeros(1, dtype=torch.int64)
    is_last = False
    while not is_last:
        group.recv([slot], 0, 0).wait()
        is_last = bool(slot.item())
        slot[0] = now_ns()
        group.send([slot], 0, 0).wait()


class ByStore:
    """The clocks of one group's hosts, compared over the store by which it has met.

    No collective is called: one that a rank does not come to would hang, and would
    count among those of the user. One rank of each clock answers for all that have it.

    Args:
        store: Of torch.

        key: For each occasion another one.

        rank: This one.
    """

    def __init__(self, store: Any, key: str, rank: int) -> None:
        self._store, self._key, self._rank = store, f"{key}, clocks", rank
        self._own = own_clock()
        self._place: int | None = None  # among the clocks, of who answers for one
        self._is_other = True  # than that of rank 0, as far as is known

    def tell(self) -> None:
        """Say which clock this is, before all have met."""
        if self._rank == 0:
            self._store.set(f"{self._key}: of rank 0", self._own)
        if self._store.add(f"{self._key}: {self._own}", 1) == 1:
            self._place = self._store.add(f"{self._key}: how many", 1)
            self._store.set(f"{self._key}: {self._place}", self._own)

    def compare(self) -> bool:
        """Ask each other clock, or answer for one; once all have told theirs."""
        clocks = self._store.add(f"{self._key}: how many", 0)
        if clocks < 2:
            self._is_other = False
            return False
        rounds = max(_FEWEST, min(ROUNDS, _IN_ALL // clocks))
        of_rank_0 = self._store.get(f"{self._key}: of rank 0").decode()
        self._is_other = self._own != of_rank_0
        with contextlib.suppress(RuntimeError):  # whoever does not answer has gone
            if self._rank == 0:
                for place in range(1, clocks + 1):
                    self._ask(place, rounds)
            elif self._place is not None and self._is_other:
                for turn in range(rounds):
                    self._heard(f"{self._place}, asked {turn}")
                    self._say(f"{self._place}, answered {turn}", str(now_ns()))
        return True

    def _ask(self, place: int, rounds: int) -> None:
        clock = self._store.get(f"{self._key}: {place}").decode()
        if clock == self._own:
            return
        found = []
        for turn in range(rounds):
            asked_ns = now_ns()
            self._say(f"{place}, asked {turn}", "")
            said_ns = int(self._heard(f"{place}, answered {turn}"))
            found.append(_round(asked_ns, said_ns, now_ns()))
        took_ns, offset_ns = min(found)
        self._store.set(
            f"{self._key}: offset of {clock}", f"{offset_ns} {took_ns // 2 + 1}"
        )

    def _say(self, what: str, text: str) -> None:
        self._store.set(f"{self._key}: {what}", text)

    def _heard(self, what: str) -> str:
        key = f"{self._key}: {what}"
        self._store.wait([key], _ANSWERS)
        said: bytes = self._store.get(key)
        self._store.delete_key(key)
        return said.decode()

    def offset(self, *, since_s: float) -> Offset | None:
        """What is added to this clock to have that of rank 0; None if it is not known.

        The store is asked by other hosts alone: a cell may have ended the group, and
        torch's C++ writes a page about each answer that does not come.
        """
        if not self._is_other:
            return Offset(0, 0)
        key = f"{self._key}: offset of {self._own}"
        if not self._store.check([key]):
            return None
        offset_ns, error_ns = map(int, self._store.get(key).split())
        return Offset(offset_ns, error_ns + round(since_s * _DRIFT_NS))


def _round(asked_ns: int, said_ns: int, heard_ns: int) -> tuple[int, int]:
    """How long a question took, and how far the clocks are then apart."""
    return heard_ns - asked_ns, (asked_ns + heard_ns) // 2 - said_ns


def between(
    first: Mapping[str, Offset], last: Mapping[str, Offset]
) -> dict[str, Offset]:
    """What is right in the middle of a block, from its beginning and its end."""
    return {clock: _middle(each, last.get(clock)) for clock, each in first.items()}


def _middle(first: Offset, last: Offset | None) -> Offset:
    if last is None:
        return first
    drifted_ns = abs(last.ns - first.ns)
    error_ns = max(first.error_ns or 0, last.error_ns or 0) + drifted_ns // 2
    return Offset((first.ns + last.ns) // 2, error_ns)
