"""Brings what ranks say to rank 0, beside a job that may hang, fail or die.

What is said goes through the store by which torch's processes have met: it needs no
port, answers while a collective hangs, and outlives ranks. A thread of each rank notes
there now and then where it is; that of rank 0 tells who is missing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks.answer_where import waiting_text, where_of
from gpumagic.gpu_ranks.answers import VERSION, read_answer
from gpumagic.gpu_ranks.seen import Lookout, common_store, distributed_here, own_clock
from gpumagic.gpu_ranks.unfinished import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BEAT_S = 1.0
_DEAD_S = 6.0  # without a heartbeat
_PAUSE_S = 0.02
_LOOK_UP_S = 1.0
_BEAT, _NEWS, _ANSWER, _ERROR, _TAKEN = "beat", "news", "answer", "error", "taken"


class Ranks:
    """The ranks of a job, as seen by one of them; they meet in torch's store.

    No collective is called: one that a rank does not come to would hang, and would
    count among those of the user.
    """

    def __init__(self, rank: int, size: int, store: Any = None) -> None:
        self.rank, self.size = rank, size
        self.store = store  # in which they write for each other, if there are several

    def say(self, kind: str, said: object) -> None:
        """Write something down for the others."""
        text = json.dumps(said, separators=(",", ":"), default=str)
        self.store.set(f"{kind}/{self.rank}", zlib.compress(text.encode(), 1))

    def heard(self, kind: str, rank: int) -> Any:
        """What a rank has written down; None for nothing."""
        key = f"{kind}/{rank}"
        if not self.store.check([key]):
            return None
        return json.loads(zlib.decompress(self.store.get(key)))

    def begin(self, within_s: float) -> bool:
        """Say on which machine this is, and wait for all."""
        if self.store.add(f"machine {own_clock()}", 1) == 1:
            self.store.add("machines", 1)
        return self.all_come("begun", within_s)

    @property
    def are_apart(self) -> bool:
        """Whether those that have come are on several machines."""
        return self.size > 1 and self.store.add("machines", 0) > 1

    def all_come(self, what: str, within_s: float) -> bool:
        """Wait until all have come to this: the last one wakes the others.

        Where that takes long they look up now and then, for Ctrl-C.
        """
        until_s, everybody = time.monotonic() + within_s, f"all {what}"
        came = int(self.store.add(what, 1)) >= self.size
        if came:
            self.store.set(everybody, "")
        while not came and (left_s := until_s - time.monotonic()) > 0:
            patience = dt.timedelta(seconds=max(min(left_s, _LOOK_UP_S), 0.001))
            try:
                self.store.wait([everybody], patience)
                came = True
            except RuntimeError:  # of each version another kind; a dead store raises
                came = bool(self.store.check([everybody]))
        return came


def require_group() -> None:
    """Refuse to be one rank of many that each think they are alone."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1 and not distributed_here():
        raise GpuMagicError(
            f"{size} ranks have been started, and they have no group to meet in",
            "call watch() after init_process_group(); where a trainer does that, in a "
            "callback of its",
        )


def meet(patience_s: float) -> Ranks:
    """Meet the other ranks of the job, who all call it; who does not come is told."""
    distributed = distributed_here()
    if not distributed or distributed.get_world_size() == 1:
        return Ranks(0, 1)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    common = common_store(distributed)
    # A connection of its own: what a thread says must not wait for what the job asks.
    if hasattr(common, "clone"):
        with contextlib.suppress(Exception):
            common = common.clone()
    block = common.add(f"gpumagic/watch/{rank}", 1)
    store = distributed.PrefixStore(f"gpumagic/watch/{block}", common)
    ranks = Ranks(rank, size, store)
    with contextlib.suppress(Exception):
        ranks.begin(patience_s)
    return ranks


def start_together(ranks: Ranks) -> None:
    """Begin with all others: who is late there would be blamed for it."""
    if ranks.size > 1:
        with contextlib.suppress(Exception):
            ranks.all_come("ready", _DEAD_S)


def tell(text: str) -> None:
    """Say a line at once, beside what the job says."""
    sys.stderr.write(f"gpumagic: {text}\n")
    sys.stderr.flush()


# ----------------------------------------------------------------- while the block runs


@contextlib.contextmanager
def telling(ranks: Ranks, *, hang_s: float) -> Iterator[None]:
    """Tell of this rank while a block runs."""
    if ranks.size == 1:
        yield
        return
    beats = _Beats(ranks, hang_s)
    every_s = min(_BEAT_S, hang_s / 4)
    lookout = Lookout(beats.say, rank=ranks.rank, every_s=every_s, quiet_s=hang_s)
    pid = os.getpid()
    with contextlib.suppress(Exception):
        beats.say(lookout.said())
    lookout.__enter__()
    try:
        yield
    finally:
        if os.getpid() == pid:  # a child of this rank shares its connection
            lookout.__exit__()
            with contextlib.suppress(Exception):
                ranks.say(_BEAT, lookout.said() | {"beat": -1})


class _Beats:
    """What this rank says of itself now and then, and on rank 0 who is missing."""

    def __init__(self, ranks: Ranks, hang_s: float) -> None:
        self._ranks, self._hang_s = ranks, hang_s
        self._beat = 0
        self._is_stuck = False
        self._told: set[Any] = set()
        self._waiting: dict[Any, tuple[int, ...]] = {}

    def say(self, said: dict[str, Any]) -> None:
        """Say where this rank is; on rank 0 hear of the others."""
        self._beat += 1
        self._ranks.say(_BEAT, said | {"beat": self._beat})
        was_stuck, self._is_stuck = self._is_stuck, said["stuck_s"] > 0
        if self._is_stuck and not was_stuck:
            self._ranks.store.add(_NEWS, 1)
        if self._ranks.rank == 0 and self._ranks.store.add(_NEWS, 0):
            self._hear()

    def _hear(self) -> None:
        beats = [self._ranks.heard(_BEAT, each) for each in range(self._ranks.size)]
        read = [read_answer(said, rank) for rank, said in enumerate(beats) if said]
        before, self._waiting = self._waiting, {}
        for waiting in where_of(read).waiting:
            if waiting.waited_s < self._hang_s:
                break  # the longest come first
            called = waiting.collective, waiting.number, waiting.missing
            self._waiting[called] = waiting.waiting
            # Ranks do not say all at once that they wait: not before all have.
            if before.get(called) == waiting.waiting and called not in self._told:
                self._told.add(called)
                tell(waiting_text(waiting, Names()))
        for rank in range(1, self._ranks.size):
            said = self._ranks.heard(_ERROR, rank)
            if said and rank not in self._told:
                self._told.add(rank)
                tell(f"rank {rank} has left the block: {said}")


# --------------------------------------------------------------------- after the block


def hand_in(ranks: Ranks, answer: dict[str, Any], patience_s: float) -> None:
    """Give the answer of a rank that is not rank 0.

    A rank that failed stays until rank 0 has its answer: most launchers end all others
    as soon as the first one is gone.
    """
    with contextlib.suppress(Exception):
        ranks.say(_ANSWER, answer)
        if answer.get("error"):
            line = answer.get("error_line") or {"where": "outside your code"}
            ranks.say(_ERROR, f"{answer['error']} ({line['where']})")
            ranks.store.add(_NEWS, 1)
            until_s = time.monotonic() + patience_s
            _wait(lambda: ranks.store.check([_TAKEN]) or time.monotonic() > until_s)


def _wait(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(_PAUSE_S)


def collect(
    ranks: Ranks, own: dict[str, Any], patience_s: float
) -> list[dict[str, Any]]:
    """On rank 0: the answers, and of those who gave none what is known."""
    others = [_Other(ranks, rank) for rank in range(1, ranks.size)]
    if own.get("error"):  # the others may wait for this one, and for ever
        patience_s = min(patience_s, _DEAD_S)
    if others:
        with contextlib.suppress(Exception):  # the store has died: who is in counts
            _wait(lambda: sum(each.is_awaited(patience_s) for each in others) == 0)
            ranks.store.set(_TAKEN, "")
    return [own, *(each.answer or each.last_word() for each in others)]


class _Other:
    """What rank 0 hears of one of the others at the end."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank
        self.answer: dict[str, Any] = {}
        self._beat: dict[str, Any] = {}  # the last one
        self._beat_s = self._called_s = time.monotonic()  # when that was another

    def is_awaited(self, patience_s: float) -> bool:
        """Whether it may still answer: it lives, and has called something lately."""
        self.answer = self.answer or self._ranks.heard(_ANSWER, self._rank) or {}
        if self.answer:
            return False
        before, now_s = self._beat, time.monotonic()
        self._beat = self._ranks.heard(_BEAT, self._rank) or before
        if self._beat.get("beat") != before.get("beat"):
            self._beat_s = now_s
        last, last_before = (
            (e.get("flight") or {}).get("last") for e in (self._beat, before)
        )
        if last != last_before:
            self._called_s = now_s
        is_gone = now_s - self._beat_s > min(_DEAD_S, patience_s)
        return not is_gone and now_s - self._called_s <= patience_s

    def last_word(self) -> dict[str, Any]:
        """What is told of it in place of an answer: where it is, if it lives."""
        silent_s = time.monotonic() - self._beat_s
        why, text = "died", f"no heartbeat for {silent_s:.0f} s"
        if not self._beat:
            why, text = "silent", "no watch() there"
        elif silent_s <= _BEAT_S * 3:
            return self._beat
        told = {"version": VERSION, "kind": "absent", "name": self._rank}
        return told | {"why": why, "text": text, "line": self._beat.get("line")}
