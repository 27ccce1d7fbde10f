"""How the machines of several processes agree on when a collective ends.

Each process has a machine, with a clock of its own. When a stream comes to a
collective, its process writes the moment down for all; the last moment and the time
of the collective are its end, so that all of them find the same one, whoever asks
when and however long the real processes take.

A process that cannot go on before it knows an end might be waited for elsewhere: by
another group, at a collective that it has not come to. So it writes down how far its
own clock has come as well, and the others may go on as far as that allows.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.engines import Meeting

_SHORTEST_S, _LONGEST_S = 50e-6, 5e-3  # between two looks


def real_pause(seconds: float) -> None:
    """Let real time pass: `time.sleep` moves the clock of the machine that is on."""
    threading.Event().wait(seconds)


class Store(Protocol):
    """What processes write down for each other, as torch's stores do it."""

    def set(self, key: str, value: str) -> None:
        """Write a value down."""

    def check(self, keys: list[str]) -> bool:
        """Whether there is a value for each of these."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values, once there are all."""

    def delete_key(self, key: str) -> bool:
        """Forget a value."""


@dataclass
class Pace:
    """How far the machine of this process has come, for the other ones.

    Args:
        store: Shared by all processes.

        rank: Which process this is, among all.
    """

    store: Store
    rank: int
    told_ns: int = 0

    def __post_init__(self) -> None:
        self.store.set(str(self.rank), "0")

    def promise(self, promise_ns: int) -> None:
        """No meeting that was not told of starts before."""
        if promise_ns > self.told_ns:
            self.told_ns = promise_ns
            self.store.set(str(self.rank), str(promise_ns))

    def of(self, ranks: Sequence[int]) -> list[int]:
        """What others have promised."""
        return [*map(int, self.store.multi_get([str(each) for each in ranks]))]


@dataclass(frozen=True)
class Circle:
    """Those who meet again and again, in the same order.

    Attributes:
        store: What they write down for each other.

        members: Their ranks among all processes.

        place: Which of them this process is.

        pace: How far all of them are.

        timeout_s: How long one is waited for, in real time.

        pause: Called while it waits; may raise.
    """

    store: Store
    members: tuple[int, ...]
    place: int
    pace: Pace
    timeout_s: float
    pause: Callable[[], object]

    def next_meeting(
        self, name: str, what: str, took_ns: int, previous: Peers | None = None
    ) -> Peers:
        """The others at the next meeting.

        Args:
            name: Nobody else's, and the same for all members.

            what: What is done there, which has to be the same for all.

            took_ns: How long it takes once all have come.

            previous: The one before it, of which nobody asks once all are here.
        """
        return Peers(self, name, what, took_ns, previous)

    def agree_on_latest(self, name: str, moment_ns: int) -> int:
        """The latest of a moment of each member; all of them wait for all."""
        peers = Peers(self, name, "", 0)
        peers.arrived(moment_ns)
        known = False
        while not known:
            moment_ns, known = peers.end(moment_ns, 0)
        return moment_ns


class Peers:
    """The others at one meeting, for the engine."""

    def __init__(
        self,
        circle: Circle,
        name: str,
        what: str,
        took_ns: int,
        previous: Peers | None = None,
    ) -> None:
        self._previous = previous
        self._circle = circle
        self._name = name
        self._what = what
        self._took_ns = took_ns
        self._start_ns = 0
        self._given_up = False
        self._known: dict[int, int] = {}  # when members came

    def arrived(self, start_ns: int) -> None:
        """Tell them when this process has come."""
        circle = self._circle
        self._start_ns = start_ns
        self._known[circle.members[circle.place]] = start_ns
        circle.store.set(self._key(circle.place), f"{start_ns} {self._what}")

    def forget(self) -> None:
        """All have come to a later meeting: nobody will ask for this one."""
        self._circle.store.delete_key(self._key(self._circle.place))

    def end(self, bound_ns: int, promise_ns: int) -> tuple[int, bool]:
        """When the meeting ends, or a later bound; see `engines.Peers`.

        Raises:
            DeviceError: Somebody did not come in time. It is told once; from then on
                the meeting is over, as NCCL's watchdog ends one, so that the machine
                can be used again.
        """
        circle = self._circle
        if self._given_up:
            return max(bound_ns, *self._known.values()) + self._took_ns, True
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        while True:
            missing = self._look()
            if not missing:
                if self._previous is not None:
                    self._previous.forget()
                    self._previous = None
                return max(self._known.values()) + self._took_ns, True
            circle.pace.promise(promise_ns)
            so_far = [*self._known.values(), *circle.pace.of(missing)]
            later_ns = max(so_far) + self._took_ns
            if later_ns > bound_ns:
                return later_ns, False
            if time.monotonic() - began_s > circle.timeout_s:
                self._given_up = True
                raise self._nobody_came(missing)
            circle.pause()
            real_pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)

    # ---------------------------------------------------------------- its parts

    def _key(self, place: int) -> str:
        return f"{self._name}/{place}"

    def _look(self) -> list[int]:
        """Note who has come since; answer with those who have not."""
        circle = self._circle
        away = [
            (place, rank)
            for place, rank in enumerate(circle.members)
            if rank not in self._known
        ]
        if not circle.store.check([self._key(place) for place, _ in away]):
            away_now = [
                each for each in away if not circle.store.check([self._key(each[0])])
            ]
        else:
            away_now = []
        here = [each for each in away if each not in away_now]
        values = circle.store.multi_get([self._key(place) for place, _ in here])
        for (_, rank), value in zip(here, values, strict=True):
            start, _, what = bytes(value).decode().partition(" ")
            if what != self._what:
                raise self._not_the_same(rank, what)
            self._known[rank] = int(start)
        return [rank for _, rank in away_now]

    def _not_the_same(self, rank: int, what: str) -> DeviceError:
        return DeviceError(
            f"rank {rank} calls {what}, this rank {self._what}, as the same collective",
            "all ranks of a group have to call the same ones in the same order",
        )

    def _nobody_came(self, missing: Sequence[int]) -> DeviceError:
        listed = ", ".join(map(str, missing))
        return DeviceError(
            f"rank {listed} did not come to {self._what} within "
            f"{self._circle.timeout_s:g} s",
            "all ranks of the group have to call it; timeout= of init_process_group",
        )


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, as this process took part in it.

    Attributes:
        group: The name that torch has for the group.

        number: How many the group had called before, and this one.

        name: Of the kernel.

        nbytes: What it moved: the tensor that is reduced or sent, or all parts.

        called_ns: When the host called it.

        algorithm: Which way it went.
    """

    group: str
    number: int
    name: str
    nbytes: int
    called_ns: int
    ranks: tuple[int, ...]
    algorithm: str
    _meeting: Meeting

    @property
    def start_ns(self) -> int | None:
        """When this GPU came to it; None as long as that is not decided."""
        return self._meeting.start_ns

    @property
    def end_ns(self) -> int | None:
        """When it ended for all."""
        return self._meeting.end_ns
