"""Watches a block of code on all ranks of a job, without a notebook.

Whatever has started the ranks, each of them runs the block, and rank 0 has the report.
What is measured on each is in `watched_block`, how it comes to rank 0 in `gathering`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gpumagic.devices.driver import open_driver
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import analysis, answers, gathering
from gpumagic.gpu_ranks.collectives_seen import UNKNOWN, on_one_clock
from gpumagic.gpu_ranks.records import Unfinished
from gpumagic.gpu_ranks.watched_block import WatchedBlock
from gpumagic.report.places import CodeLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gpumagic.gpu_ranks.report import RanksReport

SAVED, KIND = 1, "ranks"  # of the file: its version, and what is in it
_NS = 1_000_000_000
_MOST_WHOLE = analysis.MOST_TOLD  # ranks; of more each sends its sums
_MOST_STEPS = 1_000
_LONGEST_S = 7 * 86_400.0


class Watched:
    """What is found of a block of code on all ranks.

    Attributes:
        report: On rank 0, once the block has ended; None on all others.
    """

    def __init__(self) -> None:
        self.report: RanksReport | None = None
        self._saved: dict[str, Any] | None = None
        self._steps: list[int] = []
        self._at_step: Callable[[], None] | None = None

    def step(self) -> None:
        """Say that a step has ended; all ranks do so alike."""
        self._steps.append(time.perf_counter_ns())
        if self._at_step is not None:
            self._at_step()

    def to_dict(self) -> dict[str, Any] | None:
        """What `opened` makes the report of, as plain values; None but on rank 0."""
        return self._saved

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the answers of all ranks to a file; only rank 0 does so."""
        if self._saved is not None:
            text = json.dumps(self._saved, separators=(",", ":"))
            Path(path).write_text(text, encoding="utf-8")

    def _steps_s(self) -> list[float]:
        marks = self._steps[-_MOST_STEPS - 1 :]
        return [(b - a) / _NS for a, b in itertools.pairwise(marks)]


def watch(
    *,
    memory: bool = False,
    profile: bool = False,
    hang_s: float = 10.0,
    patience_s: float = 30.0,
) -> AbstractContextManager[Watched]:
    """Watch a block on all ranks of a job; an error of the block goes through.

        with gpumagic.gpu_ranks.watch() as watched:
            train()
        if watched.report:
            print(watched.report)

    All ranks call it, once their group has begun; without one it is one rank. A block
    that nothing ends, as in a callback that is not called, ends with the process: then
    rank 0 says the report on its stderr.

    Args:
        memory: Whether the memory of each rank is what is asked.

        profile: Whether the block is profiled whole, which costs more: then it is known
            how long data moved, also from one rank to one other.

        hang_s: After how long without a call of any collective rank 0 says on its
            stderr who waits for whom.

        patience_s: How long a rank that calls nothing more is waited for at the ends
            of the block.

    Raises:
        GpuMagicError: A launcher has started several ranks, and they have not met; a
            time is no time; on entering: a block of this process is watched already.
    """
    asked = _Asked(
        memory, profile, _time("hang_s", hang_s), _time("patience_s", patience_s)
    )
    return _Block(asked)


class _Asked(NamedTuple):
    """What is wanted of a block."""

    memory: bool
    profile: bool
    hang_s: float
    patience_s: float


def _time(name: str, seconds: object) -> float:
    """Seconds that can be waited."""
    if not isinstance(seconds, int | float) or math.isnan(seconds) or seconds <= 0:
        raise GpuMagicError(
            f"{name} is {repr(seconds)[:40]}, which is no time",
            f"give it in seconds, such as {name}=20",
        )
    return min(float(seconds), _LONGEST_S)


class _Block:
    """A block of code that is watched from its beginning to its end, once.

    Args:
        asked: What is wanted of it.
    """

    _now: ClassVar[_Block | None] = None  # kept alive: nothing else may hold it

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._pid = os.getpid()
        self._watched: Watched | None = None
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Watched:
        if self._watched is not None:
            raise GpuMagicError(
                "this block has been watched", "call watch() again for the next one"
            )
        if _Block._now is not None and _Block._now.is_its_own():
            raise GpuMagicError(
                "a block of this process is being watched already",
                "one watch() around both; `watched.step()` tells its steps",
            )
        gathering.require_group()
        self._pid = os.getpid()
        watched = self._ending.enter_context(_watched(self._asked))
        self._watched, _Block._now = watched, self
        atexit.register(self._at_exit)
        return watched

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_its_own():
            return
        atexit.unregister(self._at_exit)
        _Block._now = None
        self._ending.__exit__(kind, error, trace)

    def is_its_own(self) -> bool:
        """Whether this process has begun it, and is not a child of the one that has."""
        return os.getpid() == self._pid

    def _at_exit(self) -> None:
        """Nobody has ended it: a report that is late is better than none."""
        if self._watched is None or not self.is_its_own():
            return
        error = getattr(sys, "last_value", None)  # by which the process ends
        with contextlib.suppress(BaseException):
            self.__exit__(type(error) if error else None, error, None)
        if self._watched.report is not None:
            text = "nothing ended the block of watch(), so it ended with the process"
            gathering.tell(f"{text}\n{self._watched.report}")


@contextlib.contextmanager
def _watched(asked: _Asked) -> Iterator[Watched]:
    watched, pid = Watched(), os.getpid()
    ranks = gathering.meet(asked.patience_s)
    block = WatchedBlock(ranks, memory=asked.memory, profile=asked.profile)
    watched._at_step = block.step  # noqa: SLF001 -- of this file
    try:
        with (
            gathering.telling(ranks, hang_s=asked.hang_s, driver=open_driver),
            block.measuring(),
        ):
            yield watched
    finally:
        if os.getpid() == pid:
            try:
                _hand_over(watched, ranks, block, asked.patience_s)
            except Exception as error:  # noqa: BLE001 -- a training must not end by it
                gathering.tell(f"there is no report: {error_line(error)}")
            finally:
                gathering.part(ranks)


def _hand_over(
    watched: Watched, ranks: gathering.Ranks, block: WatchedBlock, patience_s: float
) -> None:
    said = block.said | {"steps_s": watched._steps_s()}  # noqa: SLF001 -- of this file
    if ranks.size > _MOST_WHOLE:
        said = gathering.summed(ranks, said, patience_s) or said
    if ranks.rank != 0:
        gathering.hand_in(ranks, said, patience_s)
        return
    came, absent = gathering.collect(ranks, said, patience_s)
    watched._saved = {  # noqa: SLF001
        "gpumagic": SAVED,
        "kind": KIND,
        "with_memory": block.with_memory,
        "answers": came,
        "absent": absent,
    }
    watched.report = opened(watched._saved)  # noqa: SLF001


# ------------------------------------------------------------- of all, now or later


def opened(saved: Mapping[str, Any]) -> RanksReport:
    """The report of what `save` wrote or `to_dict` gave."""
    version, kind = saved.get("gpumagic"), saved.get("kind")
    if kind != KIND or version != SAVED:
        raise GpuMagicError(
            f"this is no block of many ranks of version {SAVED}: "
            f"{str(kind)[:20]}, version {str(version)[:20]}",
            "open it with the gpumagic that wrote it",
        )
    said, absent = _listed(saved, "answers"), _listed(saved, "absent")
    fit = [isinstance(answers.read(each, 0), answers.Done) for each in said]
    placed = on_one_clock(
        [each for each, is_fit in zip(said, fit, strict=True) if is_fit]
    )
    unfit = [each for each, is_fit in zip(said, fit, strict=True) if not is_fit]
    every = [*placed, *unfit]
    told = [each for each in every if isinstance(each, dict)]
    read = [answers.read(each, place) for place, each in enumerate(every)]
    report = analysis.of_answers(
        [*read, *map(_last_word, absent)], with_memory=bool(saved.get("with_memory"))
    )
    known = {each.name: each for each in map(_absence, absent)}
    errors = [each.get("offset_error_ns") for each in placed]
    stretch = [s for e in told if isinstance(s := e.get("told_s"), float)]
    if report.told_s is not None:
        stretch.append(report.told_s)
    untold = {
        its.name
        for its, each in zip(read, every, strict=True)
        if isinstance(each, dict) and each.get("told_s") == 0
    }
    return replace(
        _without_times(report, untold),
        unfinished=tuple(known.get(each.name, each) for each in report.unfinished),
        clock_error_s=None
        if len(placed) < 2 or None in errors
        else max(map(int, filter(None, errors)), default=0) / _NS,
        told_by=next((str(e["told_by"])[:30] for e in told if e.get("told_by")), ""),
        moves_known=all(each.get("ends") != UNKNOWN for each in told),
        sends=sum(each["sends"] for each in placed if _counts(each.get("sends"))),
        told_s=max(stretch, default=None),
    )


def _without_times(report: RanksReport, untold: set[int]) -> RanksReport:
    """The same without those of ranks that share no stretch of time with all others.

    What they did by themselves cannot be told from waiting then.
    """
    if not untold:
        return report
    return replace(
        report,
        times=tuple(each for each in report.times if each.name not in untold),
        every=tuple(each for each in report.every if each.name not in untold),
        slowest=None,
        ratio=None,
        during=None,
        differently=(),
        one_collective=None,
    )


def _counts(said: object) -> bool:
    return isinstance(said, int) and said > 0


def _listed(saved: Mapping[str, Any], key: str) -> list[Any]:
    found = saved.get(key)
    return found if isinstance(found, list) else []


def _absence(said: object) -> Unfinished:
    """Why a rank has given no answer, as it was saved."""
    row = said if isinstance(said, dict) else {}
    name, line = row.get("name"), row.get("line")
    where = line.get("where") if isinstance(line, dict) else None
    source = line.get("source") if isinstance(line, dict) else None
    why = row.get("why")
    return Unfinished(
        name if isinstance(name, int) else -1,
        why if why in gathering.WHYS else "garbage",
        str(row.get("text") or "")[:300],
        CodeLine(str(where)[:300], None if source is None else str(source)[:300])
        if where
        else None,
    )


def _last_word(said: object) -> answers.Answer:
    """What a rank without an answer has said last, which tells where it hangs."""
    absence = _absence(said)
    word = answers.read(
        said.get("said") if isinstance(said, dict) else None, absence.name
    )
    is_its = isinstance(word, answers.Alive) and word.name == absence.name
    return word if is_its else absence
