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

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        """Write a value down where there is the expected one; what is there then."""

    def delete_key(self, key: str) -> bool:
        """Forget a value."""


class GroupCall(NamedTuple):
    """A collective that this process has called."""

    group: str  # what torch calls the group
    number: int  # how many the group had called before, and this one
    name: str  # as torch's function is called
    nbytes: int  # what it moves
    # whether only two have to do with it: then its number is one of theirs, and says
    # nothing of the order that all of the group have
    of_two: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {self.nbytes} bytes"


class Wait(NamedTuple):
    """What the host waits in, and since when by `time.monotonic`."""

    call: GroupCall
    since_s: float


class Roll:
    """Which collectives this process has called, and which its host waits in.

    Other threads look at it while the host waits, and with the books held: so nothing
    here locks, and whatever is looked at was put there at once.

    Attributes:
        last: The last call, by group.

        wait: The collective that the host waits in just now; None for none.

        broken_off: What it has last waited in, if that has ended by Ctrl-C, and nothing
            has been called since.

        interrupted: How often such a wait has ended by Ctrl-C. What had been called by
            then is not waited for any more: work that stands behind it could not even
            be measured else, nor could the group be left.
    """

    def __init__(self) -> None:
        self.last: dict[str, GroupCall] = {}
        self.wait: Wait | None = None
        self.broken_off: GroupCall | None = None
        self.interrupted = 0
        self._before: Wait | None = None

    def called(self, call: GroupCall) -> None:
        """A collective is called; all members do so in the same order."""
        self.last[call.group] = call
        self.broken_off = self._before = None

    @contextlib.contextmanager
    def waiting(self, call: GroupCall | None) -> Iterator[None]:
        """The host waits in a collective during the block; None for what is none.

        One that it comes back to was waited for all the time: nothing else went on.
        """
        outer, before = self.wait, self._before
        if call is not None:
            again = before is not None and before.call == call
            self.wait = before if again else Wait(call, time.monotonic())
            self._before = self.wait
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted += 1
            self.broken_off = call
            raise
        finally:
            self.wait = outer


@dataclass
class Pace:
    """How far the machine of this process has come, for the other ones."""

    store: Store  # shared by all processes
    rank: int  # which process this is, among all
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
    """Those who meet again and again, in the same order."""

    store: Store  # what they write down for each other
    members: tuple[int, ...]  # their ranks among all processes
    place: int  # which of them this process is
    pace: Pace  # how far all of them are
    timeout_s: float  # how long one is waited for, in real time
    pause: Callable[[], object]  # called while it waits; may raise
    # where it is written down what this process waits in
    roll: Roll = field(default_factory=Roll)

    def agree(self, name: str, what: str) -> None:
        """Make sure that all mean the same by a name; who says it first decides.

        To be called before anything is sent to the others: what has the wrong size
        ends gloo, and its process.
        """
        own = self.members[self.place]
        first = self.store.compare_set(f"{name}/what", "", f"{own} {what}")
        rank, _, said = bytes(first).decode().partition(" ")
        if said != what:
            raise _not_the_same(f"rank {rank}", said, what)

    def next_meeting(
        self,
        name: str,
        what: str,
        took_ns: int,
        previous: Peers | None = None,
        call: GroupCall | None = None,
    ) -> Peers:
        """The others at the next meeting."""
        return Peers(self, name, what, took_ns, previous, call)

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

    def __init__(  # noqa: PLR0913, PLR0917 -- what a meeting has
        self,
        circle: Circle,
        name: str,
        what: str,
        took_ns: int,
        previous: Peers | None = None,
        call: GroupCall | None = None,
    ) -> None:
        self._previous = previous
        self._call = call
        self._circle = circle
        self._name = name
        self._what = what
        self._took_ns = took_ns
        self._start_ns = 0
        self._given_up = False
        self._interrupted = circle.roll.interrupted
        self._known: dict[int, int] = {}  # when members came

    def arrived(self, start_ns: int) -> None:
        """Tell them when this process has come."""
        circle = self._circle
        self._start_ns = start_ns
        self._known[circle.members[circle.place]] = start_ns
        circle.store.set(self._key(circle.place), f"{start_ns} {self._what}")

    def forget(self) -> None:
        """All have come to a later meeting: nobody will ask for this one."""
        circle = self._circle
        circle.store.delete_key(self._key(circle.place))
        if circle.place == 0:
            circle.store.delete_key(f"{self._name}/what")

    def end(self, bound_ns: int, promise_ns: int) -> tuple[int, bool]:
        """When the meeting ends, or a later bound; see `engines.Peers`."""
        roll = self._circle.roll
        missing = [] if self._given_up else self._look()
        if missing and self._interrupted < roll.interrupted:
            self._given_up = True
        if self._given_up:
            return max(bound_ns, *self._known.values()) + self._took_ns, True
        if missing:
            with roll.waiting(self._call):
                later_ns = self._later(missing, bound_ns, promise_ns)
            if later_ns is not None:
                return later_ns, False
        if self._previous is not None:
            self._previous.forget()
            self._previous = None
        return max(self._known.values()) + self._took_ns, True

    # ---------------------------------------------------------------- its parts

    def _later(
        self, missing: Sequence[int], bound_ns: int, promise_ns: int
    ) -> int | None:
        """Wait for a later bound; None once nobody is missing any more."""
        circle = self._circle
        began_s, pause_s = time.monotonic(), _SHORTEST_S
        while missing:
            circle.pace.promise(promise_ns)
            so_far = [*self._known.values(), *circle.pace.of(missing)]
            later_ns = max(so_far) + self._took_ns
            if later_ns > bound_ns:
                return later_ns
            if time.monotonic() - began_s > circle.timeout_s:
                self._given_up = True
                raise self._nobody_came(missing)
            circle.pause()
            real_pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
            missing = self._look()
        return None

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
                raise _not_the_same(f"rank {rank}", what, self._what)
            self._known[rank] = int(start)
        return [rank for _, rank in away_now]

    def _nobody_came(self, missing: Sequence[int]) -> DeviceError:
        listed = ", ".join(map(str, missing))
        return DeviceError(
            f"rank {listed} did not come to {self._what} within "
            f"{self._circle.timeout_s:g} s",
            "all ranks of the group have to call it; timeout= of init_process_group",
        )


def _not_the_same(who: str, calls: str, this_one: str) -> DeviceError:
    return DeviceError(
        f"{who} calls {calls}, this rank {this_one}, as the same collective",
        "all ranks of a group have to call the same ones in the same order",
    )


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, as this process took part in it."""

    group: str  # the name that torch has for the group
    number: int  # how many the group had called before, and this one
    name: str  # of the kernel
    nbytes: int  # what it moved: the tensor that is reduced or sent, or all parts
    called_ns: int  # when the host called it
    ranks: tuple[int, ...]
    algorithm: str  # which way it went
    _meeting: Meeting

    @property
    def start_ns(self) -> int | None:
        """When this GPU came to it; None as long as that is not decided."""
        return self._meeting.start_ns

    @property
    def end_ns(self) -> int | None:
        """When it ended for all."""
        return self._meeting.end_ns
