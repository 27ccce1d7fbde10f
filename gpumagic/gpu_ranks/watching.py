"""Watches a block of code on all ranks of a job, without a notebook.

Whatever has started the ranks, each of them runs the block, and rank 0 has the report.
It costs a training next to nothing, since what is known anyway is read: torch's flight
recorder knows when each collective was called, CUDA how long the kernels of NCCL took,
and the simulated GPU both. Only where there is no recorder the block is profiled whole.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.driver import open_driver
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import DeviceError, GpuMagicError, error_line
from gpumagic.gpu_ranks import analysis, answers, gathering, on_rank
from gpumagic.gpu_ranks.answers import MOST_COLLECTIVES, VERSION
from gpumagic.gpu_ranks.clocks import now_ns
from gpumagic.gpu_ranks.collectives_seen import UNKNOWN, Seen, is_recorded, on_one_clock
from gpumagic.gpu_ranks.flight_recorder import flight, without_group
from gpumagic.gpu_ranks.records import Unfinished
from gpumagic.report.events import CodeLine

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.gpu_ranks.report import RanksReport

SAVED, KIND = 1, "ranks"  # of the file: its version, and what is in it
RECORDER, KERNELS = "flight recorder", "kernels"
PROFILER, SIMULATOR = "profiler", "simulator"
_NS = 1_000_000_000
_MOST_IN_ALL = (
    200_000  # collectives times ranks: so much is analysed in a second or two
)
_MOST_WHOLE = analysis.MOST_TOLD  # ranks; of more each sends its sums
_MOST_STEPS = 1_000
_PROFILER_ERRORS = (RuntimeError, ValueError, AssertionError)


class Watched:
    """What is found of a block of code on all ranks.

    Attributes:
        report: On rank 0, once the block has ended; None on all others.
    """

    def __init__(self) -> None:
        self.report: RanksReport | None = None
        self._saved: dict[str, Any] | None = None
        self._steps: list[int] = []
        self._at_step: Callable[[], None] = _nothing

    def step(self) -> None:
        """Say that a step has ended; all ranks do so alike."""
        self._steps.append(time.perf_counter_ns())
        self._at_step()

    def to_dict(self) -> dict[str, Any] | None:
        """What `opened` makes the report of, as plain values; None but on rank 0."""
        return self._saved

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the answers of all ranks to a file; only rank 0 does so.

        Args:
            path: The file; `%gpu_open` shows it.
        """
        if self._saved is not None:
            text = json.dumps(self._saved, separators=(",", ":"))
            Path(path).write_text(text, encoding="utf-8")

    def _steps_s(self) -> list[float]:
        marks = self._steps[-_MOST_STEPS - 1 :]
        return [(b - a) / _NS for a, b in itertools.pairwise(marks)]


def _nothing() -> None:
    """What a step means where nothing has to be read in time."""


@contextlib.contextmanager
def watch(
    *,
    memory: bool = False,
    hang_s: float = 10.0,
    patience_s: float = 30.0,
) -> Iterator[Watched]:
    """Watch a block on all ranks of a job; an error of the block goes through.

        with gpumagic.gpu_ranks.watch() as watched:
            train()
        if watched.report:
            print(watched.report)

    All ranks call it, once their group has begun; without one it is one rank.

    Args:
        memory: Whether the memory of each rank is what is asked.

        hang_s: After how long without a call of any collective rank 0 says on its
            stderr who waits for whom.

        patience_s: How long a rank that calls nothing more is waited for at the ends
            of the block.

    Raises:
        GpuMagicError: A launcher has started several ranks, and they have not met.
    """
    gathering.require_group()
    watched = Watched()
    ranks = gathering.meet(patience_s)
    block = _Block(watched, ranks, with_memory=memory)
    try:
        with (
            gathering.telling(ranks, hang_s=hang_s, driver=open_driver),
            block.measuring(),
        ):
            yield watched
    finally:
        try:
            _hand_over(watched, ranks, block, patience_s)
        except Exception as error:  # noqa: BLE001 -- a training must not end by it
            gathering.tell(f"there is no report: {error_line(error)}")
        gathering.part(ranks)


def _hand_over(
    watched: Watched, ranks: gathering.Ranks, block: _Block, patience_s: float
) -> None:
    said = block.said
    if ranks.size > _MOST_WHOLE:
        said = gathering.summed(ranks, said, patience_s) or said
    if ranks.rank != 0:
        gathering.hand_in(ranks, said, patience_s)
        return
    came, absent = gathering.collect(ranks, said, patience_s)
    watched._saved = {  # noqa: SLF001 -- of this file
        "gpumagic": SAVED,
        "kind": KIND,
        "with_memory": block.with_memory,
        "answers": came,
        "absent": absent,
    }
    watched.report = opened(watched._saved)  # noqa: SLF001


# ------------------------------------------------------------------ on one rank


class _Block:
    """The measurement of a block on this rank.

    Args:
        watched: Whose steps are told.

        ranks: With whom it is measured.

        with_memory: Whether memory is asked.
    """

    def __init__(
        self, watched: Watched, ranks: gathering.Ranks, *, with_memory: bool
    ) -> None:
        self._watched, self._ranks = watched, ranks
        self.with_memory = with_memory
        self.said: dict[str, Any] = {}
        self._told_by = _way()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure; what came of it is in `said`, however the block ends."""
        ways = {RECORDER: self._recorded, KERNELS: self._kernels}
        way = ways.get(self._told_by, self._profiled)
        error: BaseException | None = None
        seen: dict[str, Any] = {}
        seat = on_rank.seat() | {"rank": self._ranks.rank}
        began_ns = ended_ns = now_ns()
        try:
            with way(seen):
                began_ns = now_ns()
                try:
                    yield
                finally:
                    ended_ns = now_ns()
        except BaseException as raised:
            error = raised
            raise
        finally:
            ended_ns = max(ended_ns, began_ns)
            self.said = {
                "version": VERSION,
                "kind": "done",
                "seat": seat,
                "told_by": self._told_by,
                "elapsed_s": (ended_ns - began_ns) / _NS,
                "clock": "host",
                "began_ns": began_ns,
                "ended_ns": ended_ns,
                "error": error_line(error),
                "error_line": None if error is None else on_rank.line_of(error),
                "collectives": [],
                "flight": self._flight(error),
                **seen,
                "steps_s": self._watched._steps_s(),  # noqa: SLF001
            }

    def _flight(self, error: BaseException | None) -> dict[str, Any] | None:
        """Where it was left, where it did not come to the end."""
        told = flight() if error is not None else None
        return told and without_group(told, self._ranks.group_name)

    @contextlib.contextmanager
    def _recorded(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the flight recorder, which knows when each collective was called."""
        ranks = self._ranks.size
        most = min(MOST_COLLECTIVES, max(_MOST_IN_ALL // ranks, 1))
        calls = Seen(now_ns(), self._ranks.group_name, most=most)
        self._watched._at_step = calls.step  # noqa: SLF001
        with self._memory(seen):
            gathering.start_together(self._ranks)
            try:
                yield
            finally:
                self._watched._at_step = _nothing  # noqa: SLF001
                calls.read()
                seen |= {
                    "collectives": calls.rows,
                    "ends": UNKNOWN,
                    "from_ns": calls.from_ns,
                    "until_ns": calls.until_ns,
                }

    @contextlib.contextmanager
    def _kernels(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the kernels of NCCL, which wait on the GPU until all ranks are there."""
        import torch

        from gpumagic.devices import torch_profiler

        profile = None
        with self._memory(seen):
            with contextlib.suppress(GpuMagicError, *_PROFILER_ERRORS):
                torch_profiler.require_startable(torch)
                profile = _of_devices(torch)
                profile.start()
            gathering.start_together(self._ranks)
            try:
                yield
            finally:
                if torch.cuda.is_initialized():
                    with contextlib.suppress(RuntimeError):  # an error of the block's
                        torch.cuda.synchronize()
                seen["ended_ns"] = now_ns()
                self._told_by = ""
                if profile is not None:
                    # The user's own profiler may have taken its place meanwhile.
                    with contextlib.suppress(OSError, GpuMagicError, *_PROFILER_ERRORS):
                        torch_profiler.stop(torch, profile)
                        seen |= _read(torch_profiler.exported(profile))
                        self._told_by = KERNELS
                seen["told_by"] = self._told_by

    @contextlib.contextmanager
    def _profiled(self, seen: dict[str, Any]) -> Iterator[None]:
        """By a profile of everything: the simulated GPU's, or what has no recorder."""
        measured = None
        gathering.start_together(self._ranks)  # or it would be in the profile
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(GpuMagicError):
                measured = stack.enter_context(on_rank.measuring())
            try:
                yield
            finally:
                seen["told_by"] = "" if measured is None else self._told_by
        # Not reached where the block fails: then its times are not looked at either.
        if measured is not None and measured.said is not None:
            seen |= measured.said | {
                "seat": on_rank.seat() | {"rank": self._ranks.rank}
            }

    @contextlib.contextmanager
    def _memory(self, seen: dict[str, Any]) -> Iterator[None]:
        if not self.with_memory:
            yield
            return
        with on_rank.counted() as run:
            yield
        seen["memory"] = on_rank.memory_of(run)


def _of_devices(torch: Any) -> Any:
    """A profiler that sees devices alone: it costs the host no more than a launch does.

    Raises:
        DeviceError: This torch can see none.
    """
    devices = torch.profiler.ProfilerActivity.CUDA
    if devices not in torch.profiler.supported_activities():
        raise DeviceError("this torch can trace no GPU", "use a build with CUDA")
    return torch.profiler.profile(activities=[devices])


def _way() -> str:
    """What tells of collectives here."""
    _, _, backend = on_rank.group()
    if simulated_box() is not None:
        return SIMULATOR
    if backend is not None and "nccl" in backend:
        return KERNELS
    recorded = backend is None or ("gloo" in backend and is_recorded())
    return RECORDER if recorded else PROFILER


def _read(text: str) -> dict[str, Any]:
    """What a trace of kernels alone tells."""
    from gpumagic.gpu_open.rank_trace import rank_of
    from gpumagic.gpu_open.trace_file import read

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        file.write_text(text, encoding="utf-8")
        events = read(file)
    rank = rank_of(events)
    told = on_rank.times_of(None, (events, rank), {})
    kept = ["collectives"]
    if rank.zero_ns is None:  # its times are by no clock of ours
        kept += ["began_ns", "ended_ns"]
    return {key: told[key] for key in kept}


# ------------------------------------------------------------- of all, now or later


def opened(saved: Mapping[str, Any]) -> RanksReport:
    """The report of what `save` wrote or `to_dict` gave.

    Args:
        saved: The dictionary.

    Raises:
        GpuMagicError: It is another one, or of a version that is not known here.
    """
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
    told = placed + [each for each in unfit if isinstance(each, dict)]
    report = analysis.of_answers(
        [
            *(answers.read(each, place) for place, each in enumerate(placed + unfit)),
            *(_last_word(each) for each in absent),
        ],
        with_memory=bool(saved.get("with_memory")),
    )
    known = {each.name: each for each in map(_absence, absent)}
    errors = [each.get("offset_error_ns") for each in placed]
    stretch = [(e["ended_ns"] - e["began_ns"]) / _NS for e in placed if _is_cut(e)]
    stretch += [s for e in told if isinstance(s := e.get("told_s"), float)]
    return replace(
        report,
        unfinished=tuple(known.get(each.name, each) for each in report.unfinished),
        clock_error_s=None
        if len(placed) < 2 or None in errors
        else max(map(int, filter(None, errors)), default=0) / _NS,
        told_by=next((str(e["told_by"])[:30] for e in told if e.get("told_by")), ""),
        moves_known=all(each.get("ends") != UNKNOWN for each in told),
        told_s=max(stretch, default=None),
    )


def _is_cut(answer: Mapping[str, Any]) -> bool:
    return answer.get("from_ns") is not None or answer.get("until_ns") is not None


def _listed(saved: Mapping[str, Any], key: str) -> list[Any]:
    found = saved.get(key)
    return found if isinstance(found, list) else []


def _absence(said: object) -> Unfinished:
    """Why a rank has given no answer, as it was saved."""
    row = said if isinstance(said, dict) else {}
    name, line = row.get("name"), row.get("line")
    where = line.get("where") if isinstance(line, dict) else None
    source = line.get("source") if isinstance(line, dict) else None
    return Unfinished(
        name if isinstance(name, int) else -1,
        str(row.get("why"))[:20],
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
