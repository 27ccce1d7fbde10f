"""Lets ranks come together in the store by which they have met, and compares clocks.

No collective is called: one that a rank does not come to would hang, and would count
among those of the user. Of each clock one rank answers: in the quickest round the
answer was given half way between question and answer, give or take half that round
(Cristian, 1989).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import sys
import time
from pathlib import Path
from typing import Any

_ROUNDS, _IN_ALL, _FEWEST = 20, 320, 4  # of questions; fewer where clocks are many
_ANSWERS_S = 1.0
_LOOK_UP_S = 1.0
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


def distributed_here() -> Any:
    """torch.distributed, where this process has a group; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def common_store(distributed: Any) -> Any:
    """The store by which the ranks of this process's group have met."""
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001


class Meeting:
    """One occasion on which all ranks of a group come together."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._own = own_clock()
        self._place: int | None = None  # among the clocks, of who answers for one
        self._at_s = 0.0

    def begin(self, within_s: float) -> bool:
        """Say which clock this is, and wait for all."""
        if self._rank == 0:
            self.say("clock of rank 0", self._own)
        if self._store.add(f"clock {self._own}", 1) == 1:
            self._place = int(self._store.add("clocks", 1))
            self.say(f"clock no. {self._place}", self._own)
        return self.all_come("begun", within_s)

    def all_come(self, what: str, within_s: float) -> bool:
        """Wait until all have come to this: the last one wakes the others.

        Where that takes long they look up now and then, for Ctrl-C.
        """
        until_s, everybody = time.monotonic() + within_s, f"all {what}"
        came = int(self._store.add(what, 1)) >= self._ranks
        if came:
            self.say(everybody, "")
        while not came and (left_s := until_s - time.monotonic()) > 0:
            came = self._came(everybody, min(left_s, _LOOK_UP_S))
        return came

    def _came(self, key: str, within_s: float) -> bool:
        """Whether something is said in time; a store that is gone raises."""
        try:
            self._store.wait([key], dt.timedelta(seconds=max(within_s, 0.001)))
        except RuntimeError:  # of each version another kind
            return bool(self._store.check([key]))
        return True

    @property
    def has_several_clocks(self) -> bool:
        """Whether the ranks that have come are on several hosts."""
        return int(self._store.add("clocks", 0)) > 1

    def compare(self) -> None:
        """Ask each other clock, or answer for one; all that have come call it."""
        clocks = int(self._store.add("clocks", 0))
        rounds = max(_FEWEST, min(_ROUNDS, _IN_ALL // max(clocks, 1)))
        self._at_s = time.monotonic()
        with contextlib.suppress(RuntimeError):  # whoever does not answer has gone
            if self._rank == 0:
                for place in range(1, clocks + 1):
                    self._ask(place, rounds)
            elif self._place is not None and self._own != self._of_rank_0():
                for turn in range(rounds):
                    self._heard(f"{self._place}, asked {turn}")
                    self.say(f"{self._place}, answered {turn}", str(now_ns()))

    def _ask(self, place: int, rounds: int) -> None:
        clock = self._store.get(f"clock no. {place}").decode()
        if clock == self._own:
            return
        found = []
        for turn in range(rounds):
            asked_ns = now_ns()
            self.say(f"{place}, asked {turn}", "")
            said_ns, heard_ns = int(self._heard(f"{place}, answered {turn}")), now_ns()
            found.append((heard_ns - asked_ns, (asked_ns + heard_ns) // 2 - said_ns))
        took_ns, offset_ns = min(found)
        self.say(f"offset of {clock}", f"{offset_ns} {took_ns // 2 + 1}")

    def _heard(self, key: str) -> str:
        self._store.wait([key], dt.timedelta(seconds=_ANSWERS_S))
        said: bytes = self._store.get(key)
        self._store.delete_key(key)
        return said.decode()

    def _of_rank_0(self) -> str:
        return str(self._store.get("clock of rank 0").decode())

    def offset(self, *, of_s: float | None = None) -> dict[str, int]:
        """What is added to this clock to have that of rank 0, as it travels.

        Clocks may have drifted apart in `of_s`, or from `compare` to now.
        """
        if not self.has_several_clocks or self._own == self._of_rank_0():
            return {"offset_ns": 0, "offset_error_ns": 0}
        key = f"offset of {self._own}"
        if not self._came(key, _ANSWERS_S):
            return {}
        offset_ns, error_ns = map(int, self._store.get(key).split())
        drifts_s = time.monotonic() - self._at_s if of_s is None else of_s
        drift_ns = round(drifts_s * _DRIFT_NS)
        return {"offset_ns": offset_ns, "offset_error_ns": error_ns + drift_ns}

    def say(self, key: str, text: str) -> None:
        """Write something down for the others, on this occasion."""
        self._store.set(key, text)
