"""Watches a block of code on all ranks of a job, without a notebook.

Whatever has started the ranks, each of them runs the block, and rank 0 has the report.
How it comes to rank 0 is in `gathering`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.waiting import Alarm
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import analysis, gathering, on_rank
from gpumagic.gpu_ranks.answers import RECORDER, VERSION, read_answer
from gpumagic.gpu_ranks.seen import flight, is_recorded, line_of, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.gpu_ranks.answer_times import RanksReport

SAVED, KIND = 3, "ranks"  # of the file: its version, and what is in it
KERNELS, PROFILER, SIMULATOR = "kernels", "profiler", "simulator"
_NS = 1_000_000_000
_TRACED_S = 20.0  # at most, of kernels alone
_PROFILER_ERRORS = (RuntimeError, ValueError, AssertionError)
_MOST_STEPS = 1_000
_LONGEST_S = 7 * 86_400.0


class Watched:
    """What is found of a block of code on all ranks."""

    def __init__(self) -> None:
        self.report: RanksReport | None = None  # on rank 0, once the block has ended
        self._saved: dict[str, Any] = {}
        self._steps: list[int] = []

    def step(self) -> None:
        """Say that a step has ended; all ranks do so alike."""
        self._steps.append(time.perf_counter_ns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the answers of all ranks to a file; only rank 0 does so."""
        if self._saved:
            text = json.dumps(self._saved, separators=(",", ":"))
            Path(path).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def watch(
    *,
    memory: bool = False,
    profile: bool = False,
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

        profile: Whether the block is profiled whole, which costs more: then it is known
            how long data moved, also from one rank to one other.

        hang_s: After how long without a call of any collective rank 0 says on its
            stderr who waits for whom.

        patience_s: How long a rank that calls nothing more is waited for at the ends
            of the block.

    Raises:
        GpuMagicError: A launcher has started several ranks, and they have not met; or
            a time is none.
    """
    if not (hang_s > 0 and patience_s > 0):
        raise GpuMagicError(
            "watch() cannot wait for no time", "give hang_s and patience_s in seconds"
        )
    hang_s, patience_s = min(hang_s, _LONGEST_S), min(patience_s, _LONGEST_S)
    gathering.require_group()
    watched, pid = Watched(), os.getpid()
    ranks = gathering.meet(patience_s)
    block = _Measurement(ranks, memory=memory, profile=profile)
    try:
        with (
            gathering.telling(ranks, hang_s=hang_s),
            block.measuring(),
        ):
            yield watched
    except GeneratorExit:  # nobody has ended it; the process may be on its way out
        pid = -1
        raise
    finally:
        if os.getpid() == pid:
            try:
                _hand_over(watched, ranks, block, patience_s)
            except Exception as error:  # noqa: BLE001 -- a training must not end by it
                gathering.tell(f"there is no report: {error_line(error)}")


def _hand_over(
    watched: Watched, ranks: gathering.Ranks, block: _Measurement, patience_s: float
) -> None:
    marks = watched._steps[-_MOST_STEPS - 1 :]  # noqa: SLF001 -- of this file
    steps_s = [(b - a) / _NS for a, b in itertools.pairwise(marks)]
    said = on_rank.fitting(block.said, ranks.size) | {"steps_s": steps_s}
    if ranks.rank != 0:
        gathering.hand_in(ranks, said, patience_s)
        return
    watched._saved = {  # noqa: SLF001
        "gpumagic": SAVED,
        "kind": KIND,
        "with_memory": block.with_memory,
        "answers": gathering.collect(ranks, said, patience_s),
    }
    watched.report = opened(watched._saved)  # noqa: SLF001


def opened(saved: Mapping[str, Any]) -> RanksReport:
    """The report of what `save` wrote or `to_dict` gave."""
    version, kind = saved.get("gpumagic"), saved.get("kind")
    answers = saved.get("answers")
    if kind != KIND or version != SAVED or not isinstance(answers, list):
        raise GpuMagicError(
            f"this is no block of many ranks of version {SAVED}: "
            f"{str(kind)[:20]}, version {str(version)[:20]}",
            "open it with the gpumagic that wrote it",
        )
    read = [read_answer(each, at) for at, each in enumerate(answers)]
    return analysis.of_answers(read, with_memory=bool(saved.get("with_memory")))


# --------------------------------------------------------------- what one rank measures


class _Measurement:
    """What a block did on this rank.

    It costs a training next to nothing, since what is known anyway is read: torch's
    flight recorder knows when each collective was called, CUDA how long the kernels of
    NCCL took. Only where there is no recorder, or more is asked than it knows, the
    block is profiled whole.
    """

    def __init__(self, ranks: gathering.Ranks, *, memory: bool, profile: bool) -> None:
        self._ranks, self.with_memory, self._profile = ranks, memory, profile
        self.said: dict[str, Any] = {}  # what came of it, once the block has ended

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure; what came of it is in `said`, however the block ends."""
        told_by = _way(profile=self._profile, are_apart=self._ranks.are_apart)
        way = {RECORDER: self._recorded, KERNELS: self._kernels}.get(
            told_by, self._profiled
        )
        seen: dict[str, Any] = {}
        raised: BaseException | None = None
        self.said = {
            "version": VERSION,
            "kind": "done",
            "seat": on_rank.seat() | {"rank": self._ranks.rank},
            "told_by": told_by,
            "began_ns": time.time_ns(),
        }
        try:
            with self._memory(seen), way(seen):
                self.said["began_ns"] = time.time_ns()
                try:
                    yield
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    self.said["ended_ns"] = max(time.time_ns(), self.said["began_ns"])
        except Exception as error:
            if error is raised:
                raise
            # What is ours has failed at the end: neither the block nor its error has.
            gathering.tell(f"nothing tells of collectives: {error_line(error)}")
            seen = {"told_by": ""}
            if raised is not None:
                raise raised from None
        finally:
            self.said |= {
                "error": error_line(raised),
                "error_line": line_of(raised),
                "flight": flight(asks_for_calls=raised is not None),
                **seen,
            }

    @contextlib.contextmanager
    def _recorded(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the flight recorder, which knows when each collective was called."""
        since_ns = time.time_ns()
        gathering.start_together(self._ranks)
        try:
            yield
        finally:
            rows, from_ns = recorded(since_ns)
            seen |= {"collectives": rows, "has_ends": False, "from_ns": from_ns}

    @contextlib.contextmanager
    def _kernels(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the kernels of NCCL, which wait on the GPU until all ranks are there."""
        import torch

        from gpumagic.devices import tracing

        profile = None

        def cut() -> bool:
            """Trace no further, as a training may run for days."""
            if torch.cuda.is_initialized() and torch_private.is_capturing(
                torch, "cuda"
            ):
                return False  # which waiting for the GPU would break
            with contextlib.suppress(*_PROFILER_ERRORS):
                tracing.stop(torch, profile)
            seen["until_ns"] = time.time_ns()
            return True

        alarm = Alarm(_TRACED_S, cut)
        with contextlib.suppress(GpuMagicError, *_PROFILER_ERRORS):
            tracing.require_startable(torch)
            profile = tracing.started(torch, "cuda", devices_alone=True)
        gathering.start_together(self._ranks)
        if profile:
            alarm.set()
        try:
            yield
        finally:
            alarm.off()
            if torch.cuda.is_initialized():
                with contextlib.suppress(RuntimeError):  # an error of the block's
                    torch.cuda.synchronize()
            seen |= {"ended_ns": time.time_ns(), "told_by": ""}
            if profile:
                # The user's own profiler may have taken its place meanwhile.
                with contextlib.suppress(OSError, GpuMagicError, *_PROFILER_ERRORS):
                    if "until_ns" not in seen:
                        tracing.stop(torch, profile)
                    read = _read_trace(tracing.exported(profile))
                    if "until_ns" in seen and "ended_ns" in read:
                        seen["until_ns"] = read["ended_ns"]
                    seen |= read | {"told_by": KERNELS}

    @contextlib.contextmanager
    def _profiled(self, seen: dict[str, Any]) -> Iterator[None]:
        """By a profile of everything: the simulated GPU's, or what has no recorder."""
        measured = on_rank.Measured()
        # Before the profile, or it would be in it.
        with contextlib.suppress(GpuMagicError, *_PROFILER_ERRORS):
            on_rank.warm_up(profile=True)
        gathering.start_together(self._ranks)
        with contextlib.ExitStack() as stack:
            seen["told_by"] = ""
            with contextlib.suppress(GpuMagicError):
                measured = stack.enter_context(on_rank.measuring(profile=True))
                seen["told_by"] = self.said["told_by"]
            yield
        # Not reached where the block fails: then its times are not looked at either.
        if measured.said:
            seat = measured.said["seat"] | {"rank": self._ranks.rank}
            seen |= measured.said | {"seat": seat}

    @contextlib.contextmanager
    def _memory(self, seen: dict[str, Any]) -> Iterator[None]:
        if not self.with_memory:
            yield
            return
        with on_rank.counted() as run:
            yield
        seen["memory"] = on_rank.memory_of(run)


def _way(*, profile: bool, are_apart: bool) -> str:
    """What tells of collectives here; of hosts apart, what needs no common clock."""
    _, backend = on_rank.group()
    if simulated_box():
        return SIMULATOR
    if not profile and "nccl" in backend:
        return KERNELS
    is_known = not backend or ("gloo" in backend and is_recorded())
    return RECORDER if is_known and not profile and not are_apart else PROFILER


def _read_trace(text: str) -> dict[str, Any]:
    """What a trace of kernels alone tells."""
    from gpumagic.gpu_open.trace_file import read

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        file.write_text(text, encoding="utf-8")
        events = read(file)
    told = on_rank.times_of(events, 0.0)
    kept = ["collectives"]
    if not events.since_1970:  # its times are by no clock of ours
        kept += ["began_ns", "ended_ns"]
    return {key: told[key] for key in kept}
