"""Brings what ranks say to rank 0, beside a job that may hang, fail or die.

What is said goes through the store by which torch's processes have met: it needs no
port, answers while a collective hangs, and outlives ranks. A thread of each rank notes
there now and then that it lives, and where it is once it has called nothing for long;
that of rank 0 tells who is missing. The group beside the job's own is for clocks, for
beginning together, and for the sums of very many ranks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import analysis, clocks, networks, reducing
from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.gpu_ranks.collectives_seen import last_numbers
from gpumagic.gpu_ranks.flight_recorder import flight, simulated_wait_s
from gpumagic.gpu_ranks.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Driver
    from gpumagic.gpu_ranks.records import Waiting
    from gpumagic.report.collectives import Offset

THREAD = "gpumagic-watch"
_BEAT_S = 1.0
_DEAD_S = 6.0  # without a sign of life
_PAUSE_S = 0.02
_AT_ONCE = 32  # hosts
_BEAT, _CLOCK, _NEWS, _WAY = "beat", "clock", "news", "way"
_PLACE, _LOST, _TRIED = "place", "lost", "tried"
_ANSWER, _ERROR, _TAKEN = "answer", "error", "taken"
_DIED, _SILENT = WHYS = "died", "silent"  # what becomes of a rank that gives no answer


@dataclass
class Ranks:
    """The ranks of a job, as seen by one of them."""

    rank: int  # this one
    size: int  # how many there are
    store: Any = None  # what they write down for each other; None for one rank alone
    group: Any = None  # of gloo, beside the job's own; None where it could not be made
    clocks: Sequence[str] = ()  # by rank, what tells whether clocks are the same
    # on rank 0, how each clock stood to its own at the beginning
    offsets: Mapping[str, Offset] | None = None

    @property
    def beside(self) -> str | None:
        """Whether there is a group to reduce in."""
        return None if self.group is None else "watch"

    def group_beside(self, word: str) -> Any:
        """That group; all ranks have made it at the beginning of the block."""
        del word
        return self.group

    @property
    def several_clocks(self) -> bool:
        """Whether they have to be put together."""
        return len(set(self.clocks)) > 1

    def say(self, kind: str, said: object) -> None:
        """Write something down for rank 0."""
        text = json.dumps(said, separators=(",", ":"), default=str)
        self.store.set(f"{kind}/{self.rank}", zlib.compress(text.encode(), 1))

    def heard(self, kind: str, rank: int) -> Any:
        """What a rank has written down; None for nothing."""
        key = f"{kind}/{rank}"
        if not self.store.check([key]):
            return None
        return json.loads(zlib.decompress(self.store.get(key)))


def meet(patience_s: float) -> Ranks:
    """Meet the other ranks of the job, and compare clocks; all ranks call it."""
    distributed = _group()
    if distributed is None or distributed.get_world_size() == 1:
        return Ranks(0, 1)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    ranks = Ranks(rank, size, _store(distributed, rank))
    ranks.say(_WAY, networks.seen_from_here(_meeting_place(distributed)))
    ranks.say(_CLOCK, clocks.own_clock())
    everyone = [f"{_CLOCK}/{each}" for each in range(size)]
    patience = dt.timedelta(seconds=patience_s)
    # Who does not come is told at the end; those who have come go on without a group.
    with contextlib.suppress(Exception):
        ranks.store.wait(everyone, patience)
        ranks.clocks = [str(ranks.heard(_CLOCK, each)) for each in range(size)]
        with networks.gloo_uses(_network(ranks)):
            if not _all_get_through(ranks, patience):
                if rank == 0:
                    tell("gloo does not get from host to host: no clock is common")
                return ranks
            ranks.group = reducing.bare_group(ranks.store, rank, size, patience)
        ranks.offsets = clocks.compare(ranks.clocks, ranks.group, rank)
        start_together(ranks)  # recorders know of nobody before the first call
    return ranks


def _network(ranks: Ranks) -> str | None:
    """The one that leads to where they have met; None if all are on one host.

    The host of that place knows it by a name of its own, and asks the others.
    """
    if not ranks.several_clocks:
        return None
    ways = (ranks.heard(_WAY, each) for each in range(ranks.size))
    return next((networks.interface(each) for each in ways if each), None)


def _all_get_through(ranks: Ranks, patience: dt.timedelta) -> bool:
    """Whether each rank reaches each host where gloo will wait; the same on all.

    To begin a group without would keep some of them for as long as the store waits.
    """
    if not ranks.several_clocks:
        return True
    hosts = [ranks.clocks.index(each) for each in dict.fromkeys(ranks.clocks)]
    with networks.open_to_all() as place:
        if ranks.rank in hosts:
            ranks.say(_PLACE, place)
        ranks.store.wait([f"{_PLACE}/{host}" for host in hosts], patience)
        places = [ranks.heard(_PLACE, host) for host in hosts]
        with ThreadPoolExecutor(max_workers=min(len(places), _AT_ONCE)) as tries:
            got = all(tries.map(lambda each: each and networks.answers(*each), places))
        ranks.store.add(_LOST, 0 if got else 1)
        all_tried = _all_tried(ranks, patience)  # with the doors open until then
    return all_tried and bool(ranks.store.add(_LOST, 0) == 0)


def _all_tried(ranks: Ranks, patience: dt.timedelta) -> bool:
    """Wait until all have tried, if they do in time."""
    until_s = time.monotonic() + patience.total_seconds()
    pause, came = threading.Event(), ranks.store.add(_TRIED, 1)
    while came < ranks.size and time.monotonic() < until_s:
        pause.wait(_PAUSE_S)
        came = ranks.store.add(_TRIED, 0)
    return bool(came >= ranks.size)


def start_together(ranks: Ranks) -> None:
    """Come to the beginning of the block with all others.

    Who is late there would be blamed for it.
    """
    if ranks.group is not None:
        with contextlib.suppress(Exception):
            ranks.group.barrier().wait()


def _group() -> Any:
    """torch.distributed, where this process has a group; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def part(ranks: Ranks) -> None:
    """End what is our own, which is among the job's groups nowhere."""
    ranks.group = None


def _meeting_place(distributed: Any) -> str:
    """The host whose store they have met by, as it was called."""
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", os.environ.get("MASTER_ADDR", "")))


def _store(distributed: Any, rank: int) -> Any:
    """A part of the job's store that is ours, for this block alone."""
    common = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    # A connection of its own: what a thread says must not wait for what the job asks.
    if hasattr(common, "clone"):
        with contextlib.suppress(Exception):
            common = common.clone()
    block = common.add(f"gpumagic/watch/{rank}", 1)
    return distributed.PrefixStore(f"gpumagic/watch/{block}", common)


# ----------------------------------------------------------------- while the block runs


class Thread:
    """Tells that this rank lives, and where it is once it has called nothing for long.

    Args:
        ranks: With whom it shares.

        hang_s: How long it is without a call until that is told.

        driver: The machine's.
    """

    def __init__(
        self, ranks: Ranks, *, hang_s: float, driver: Callable[[], Driver]
    ) -> None:
        self._ranks, self._hang_s = ranks, hang_s
        self._where = Lookout(lambda _: None, rank=ranks.rank, driver=driver)
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._every_s = min(_BEAT_S, hang_s / 4)
        self._numbers: dict[str, int] = {}
        self._since_s = time.monotonic()
        self._beats = 0
        self._news = -1
        self._stuck: dict[str, Any] | None = None
        self._told: set[tuple[Any, ...]] = set()
        self._waiting: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def begin(self) -> None:
        """Start, with a first word."""
        with contextlib.suppress(Exception):
            self._say()
        self._thread.start()

    def end(self) -> None:
        """Stop, with a last word on where this rank is."""
        if os.getpid() != self._pid:  # a child of this rank shares its connection
            return
        self._ended.set()
        self._thread.join(_DEAD_S)
        if self._thread.is_alive():  # it waits for a driver, or for the store
            return
        with contextlib.suppress(Exception):
            self._say(left=True)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            # What cannot be told is not told; the block is the user's, and goes on.
            with contextlib.suppress(Exception):
                self.look()

    def look(self) -> None:
        """Tell where this rank is; on rank 0 hear of the others."""
        now_s = time.monotonic()
        called = last_numbers()
        if called != self._numbers:
            self._numbers, self._since_s = called, now_s
            self._stuck = None
        elif now_s - self._since_s >= self._hang_s and self._has_more_to_say():
            # To ask for more than numbers is dear: once, where nothing goes on.
            said = self._where.said() | {"flight": flight()}
            self._stuck = said
            self._ranks.store.add(_NEWS, 1)
        self._say()
        if self._ranks.rank == 0:
            self._hear()

    def _has_more_to_say(self) -> bool:
        """Nothing has been said yet; or a host that ran ahead has begun to wait."""
        if self._stuck is None:
            return True
        return not self._stuck["flight"]["under_way"] and bool(simulated_wait_s())

    def _say(self, *, left: bool = False) -> None:
        self._beats += 1
        said = self._stuck or {
            "version": VERSION,
            "kind": "alive",
            "rank": self._ranks.rank,
            "flight": {
                "under_way": [],
                "last": [
                    [group, number, ""]
                    for group, number in self._numbers.items()
                    if number >= 0
                ],
            },
        }
        since_s = time.monotonic() - self._since_s
        beat = {"beats": self._beats, "left": left, "since_s": since_s}
        self._ranks.say(_BEAT, said | beat)

    def _hear(self) -> None:
        """On rank 0: who waits for whom, once somebody has called nothing for long."""
        news = self._ranks.store.add(_NEWS, 0)
        if news == 0:
            return
        beats = [self._ranks.heard(_BEAT, each) for each in range(self._ranks.size)]
        there = [each for each in beats if each is not None]
        before, self._waiting = self._waiting, {}
        for waiting in hanging(there, self._hang_s):
            called = waiting.collective, waiting.number, waiting.missing
            self._waiting[called] = waiting.waiting
            # Ranks do not say all at once that they wait: not before all have.
            settled = before.get(called) == waiting.waiting
            if settled and called not in self._told:
                self._told.add(called)
                tell(_text(waiting, there))
        self._hear_of_errors()

    def _hear_of_errors(self) -> None:
        """Rank 0 may wait for a rank that has failed: say so while it does."""
        for rank in range(1, self._ranks.size):
            said = self._ranks.heard(_ERROR, rank)
            if said is not None and (_ERROR, rank) not in self._told:
                self._told.add((_ERROR, rank))
                line = (said.get("line") or {}).get("where")
                at = f" ({line})" if line else ""
                tell(f"rank {rank} has left the block: {said['error']}{at}")


def hanging(alive: Sequence[Mapping[str, Any]], hang_s: float) -> tuple[Waiting, ...]:
    """What has been open for long and is not called by all; the longest wait first."""
    where = analysis.where(alive)
    since_s = {each["rank"]: each.get("since_s") or 0.0 for each in alive}
    found = []
    for each in where.waiting:
        waited_s = max((since_s[rank] for rank in each.waiting), default=0.0)
        if waited_s >= hang_s:
            found.append(replace(each, waited_s=waited_s))
    return tuple(sorted(found, key=lambda each: -(each.waited_s or 0.0)))


def _text(waiting: Waiting, alive: Sequence[Mapping[str, Any]]) -> str:
    from gpumagic.gpu_ranks.view_where import waiting_text

    left = [each["rank"] for each in alive if each.get("left")]
    gone = [rank for rank in waiting.missing if rank in left]
    text = str(waiting_text(waiting))
    if gone:
        text += f" (rank {gone[0]} has left the block)"
    return text


def tell(text: str) -> None:
    """Say a line at once, beside what the job says."""
    sys.stderr.write(f"gpumagic: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def telling(
    ranks: Ranks, *, hang_s: float, driver: Callable[[], Driver]
) -> Iterator[None]:
    """Tell of this rank while a block runs."""
    if ranks.store is None:
        yield
        return
    thread = Thread(ranks, hang_s=hang_s, driver=driver)
    thread.begin()
    try:
        yield
    finally:
        thread.end()


# --------------------------------------------------------------------- after the block


def hand_in(ranks: Ranks, answer: dict[str, Any], patience_s: float) -> None:
    """Give the answer of a rank that is not rank 0, and compare clocks again.

    A rank that failed stays until rank 0 has its answer: most launchers end all others
    as soon as the first one is gone.
    """
    if ranks.store is None:
        return
    with contextlib.suppress(Exception):
        ranks.say(_ANSWER, answer)
        if answer.get("error"):
            line = answer.get("error_line")
            ranks.say(_ERROR, {"error": answer["error"], "line": line})
            ranks.store.add(_NEWS, 1)
        if answer.get("error") or ranks.several_clocks:
            until_s = time.monotonic() + patience_s
            _wait(lambda: ranks.store.check([_TAKEN]), until_s)
        # What is not there `get` would wait for, as long as the job's store does.
        is_taken = ranks.several_clocks and ranks.store.check([_TAKEN])
        if is_taken and ranks.store.get(_TAKEN) == b"all":
            clocks.compare(ranks.clocks, ranks.group, ranks.rank)


def summed(
    ranks: Ranks, said: dict[str, Any], patience_s: float
) -> dict[str, Any] | None:
    """The sums of what this rank of very many did; None where all is to be sent."""
    if ranks.store is None:
        return None
    lives = {rank: _Life() for rank in range(1, ranks.size)}

    def is_hopeless() -> bool:
        if ranks.rank != 0:
            return False
        for rank, life in lives.items():
            life.see(ranks.heard(_BEAT, rank))
        # Who has left the block says nothing more, and is there.
        return any(
            life.is_over(patience_s) and not life.has_left for life in lives.values()
        )

    def offsets() -> dict[str, int]:
        last = clocks.compare(ranks.clocks, ranks.group, ranks.rank)
        told = clocks.between(dict(ranks.offsets or {}), last)
        return {clock: each.ns for clock, each in told.items()}

    with contextlib.suppress(Exception):
        others = reducing.Others(patience_s, is_hopeless, offsets)
        return reducing.summed(said, ranks, others)
    return None


def collect(
    ranks: Ranks, own: dict[str, Any], patience_s: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """On rank 0: the answers, and of those who gave none what is known."""
    answers: dict[int, dict[str, Any]] = {0: own}
    beats: dict[int, _Life] = {rank: _Life() for rank in range(1, ranks.size)}
    if own.get("error"):  # the others may wait for this one, and for ever
        patience_s = min(patience_s, _DEAD_S)
    with contextlib.suppress(Exception):  # the store has died: those who are in count
        _wait(lambda: _all_in(ranks, answers, beats, patience_s), None)
    came = [answers[rank] for rank in sorted(answers)]
    agreed = len(came) == ranks.size and not any(each.get("error") for each in came)
    offsets = dict(ranks.offsets or {})
    if ranks.store is not None:
        with contextlib.suppress(Exception):
            ranks.store.set(_TAKEN, "all" if agreed else "some")
            if agreed and ranks.several_clocks:
                last = clocks.compare(ranks.clocks, ranks.group, 0)
                offsets = clocks.between(offsets, last)
    for rank, each in answers.items():
        clock = ranks.clocks[rank] if rank < len(ranks.clocks) else None
        offset = offsets.get(str(clock))
        each["offset_ns"] = None if offset is None else offset.ns
        each["offset_error_ns"] = None if offset is None else offset.error_ns
    absent = [
        beats[rank].absence(rank)
        for rank in range(1, ranks.size)
        if rank not in answers
    ]
    return came, absent


class _Life:
    """The signs of life of one rank."""

    def __init__(self) -> None:
        self.said: dict[str, Any] | None = None
        self._beats = -1
        self._seen_s = self._went_on_s = time.monotonic()
        self._at: Any = None
        self._gone = False

    def see(self, said: dict[str, Any] | None) -> None:
        """Note what it has said last."""
        now_s = time.monotonic()
        if said is None:
            return
        self.said = said
        if said.get("beats") != self._beats:
            self._beats, self._seen_s = said.get("beats", 0), now_s
        at = json.dumps((said.get("flight") or {}).get("last"))
        if at != self._at:
            self._at, self._went_on_s = at, now_s

    def is_over(self, patience_s: float) -> bool:
        """Whether it is waited for no longer."""
        now_s = time.monotonic()
        self._gone = now_s - self._seen_s > min(_DEAD_S, patience_s)
        return self._gone or now_s - self._went_on_s > patience_s

    @property
    def has_left(self) -> bool:
        """Whether it has come to the end of the block."""
        return bool((self.said or {}).get("left"))

    def absence(self, rank: int) -> dict[str, Any]:
        """What is said of it in place of an answer."""
        line = (self.said or {}).get("line")
        if self.said is None:
            return {"name": rank, "why": _SILENT, "text": "no watch() there"}
        text = "it lives, and has called nothing for long"
        if self._gone:
            text = "no sign of life any more"
        why = _DIED if self._gone else _SILENT
        return {"name": rank, "why": why, "text": text, "line": line, "said": self.said}


def _all_in(
    ranks: Ranks,
    answers: dict[int, dict[str, Any]],
    beats: Mapping[int, _Life],
    patience_s: float,
) -> bool:
    """Whether each rank has answered, or is waited for no longer."""
    waited_for = 0
    for rank, life in beats.items():
        if rank in answers:
            continue
        said = ranks.heard(_ANSWER, rank)
        if said is not None:
            answers[rank] = said
            ranks.store.delete_key(f"{_ANSWER}/{rank}")
            continue
        life.see(ranks.heard(_BEAT, rank))
        waited_for += not life.is_over(patience_s)
    return waited_for == 0


def _wait(is_done: Callable[[], bool], until_s: float | None) -> None:
    while not is_done() and (until_s is None or time.monotonic() < until_s):
        time.sleep(_PAUSE_S)


def require_group() -> None:
    """Refuse to be one rank of many that each think they are alone."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1 and _group() is None:
        raise GpuMagicError(
            f"{size} ranks have been started, and they have no group to meet in",
            "call watch() after init_process_group(); where a trainer does that, in a "
            "callback of its",
        )
