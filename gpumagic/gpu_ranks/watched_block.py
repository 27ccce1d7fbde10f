"""What a block of code that is watched did on this rank.

It costs a training next to nothing, since what is known anyway is read: torch's flight
recorder knows when each collective was called, CUDA how long the kernels of NCCL took,
and the simulated GPU both. Only where there is no recorder, or more is asked than it
knows, the block is profiled whole.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.alarm import Alarm
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_ranks import gathering, on_rank
from gpumagic.gpu_ranks.answers import MOST_COLLECTIVES, VERSION
from gpumagic.gpu_ranks.clocks import now_ns
from gpumagic.gpu_ranks.collectives_seen import UNKNOWN, Seen, is_recorded
from gpumagic.gpu_ranks.flight_recorder import flight
from gpumagic.gpu_ranks.records import RECORDER

if TYPE_CHECKING:
    from collections.abc import Iterator

KERNELS, PROFILER, SIMULATOR = "kernels", "profiler", "simulator"
_NS = 1_000_000_000
_READS = "reads"
_MOST_IN_ALL = (
    200_000  # collectives times ranks: so much is analysed in a second or two
)
_TRACED_S = 20.0  # at most, of kernels alone
_PROFILER_ERRORS = (RuntimeError, ValueError, AssertionError)


class _Span:
    """From a beginning to an end, by a clock that may be set back meanwhile."""

    def __init__(self) -> None:
        self.began_ns = self.ended_ns = now_ns()

    def begin(self) -> None:
        """Now the block begins."""
        self.began_ns = self.ended_ns = now_ns()

    def end(self) -> None:
        """It has ended."""
        self.ended_ns = max(now_ns(), self.began_ns)


class WatchedBlock:
    """The measurement of a block on this rank.

    Args:
        ranks: With whom it is measured.

        memory: Whether memory is asked.

        profile: Whether all of it is profiled.

    Attributes:
        said: What came of it, once the block has ended.
    """

    def __init__(self, ranks: gathering.Ranks, *, memory: bool, profile: bool) -> None:
        self._ranks = ranks
        self._calls: Seen | None = None
        self.with_memory = memory
        self.said: dict[str, Any] = {}
        self._told_by = _way(profile=profile)

    def step(self) -> None:
        """What has to be read in time is read at a step, the same on all ranks."""
        if self._calls is not None:
            self._calls.step()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure; what came of it is in `said`, however the block ends."""
        ways = {RECORDER: self._recorded, KERNELS: self._kernels}
        way = ways.get(self._told_by, self._profiled)
        seen: dict[str, Any] = {}
        seat = on_rank.seat() | {"rank": self._ranks.rank}
        span, has_ended, raised = _Span(), False, None
        try:
            with way(seen):
                span.begin()
                try:
                    yield
                    has_ended = True
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    span.end()
        except GeneratorExit:  # nobody has ended it: a child of this process goes
            raise
        except BaseException as error:
            if error is raised or not isinstance(error, Exception):
                self.said = self._all(seat, span, seen, error)
                raise
            if raised is None and not has_ended:
                raise
            # What is ours has failed at the end: neither the block nor its error has.
            gathering.tell(f"nothing tells of collectives: {error_line(error)}")
            self.said = self._all(seat, span, {"told_by": ""}, raised)
            if raised is not None:
                raise raised from None
            return
        self.said = self._all(seat, span, seen, None)

    def _all(
        self,
        seat: dict[str, Any],
        span: _Span,
        seen: dict[str, Any],
        error: BaseException | None,
    ) -> dict[str, Any]:
        return {
            "version": VERSION,
            "kind": "done",
            "seat": seat,
            "told_by": self._told_by,
            "elapsed_s": (span.ended_ns - span.began_ns) / _NS,
            "clock": "host",
            "began_ns": span.began_ns,
            "ended_ns": span.ended_ns,
            "error": error_line(error),
            "error_line": None if error is None else on_rank.line_of(error),
            "collectives": [],
            "flight": self._flight(error),
            **seen,
        }

    def _flight(self, error: BaseException | None) -> dict[str, Any] | None:
        """Where it was left, where it did not come to the end."""
        return flight() if error is not None else None

    @contextlib.contextmanager
    def _recorded(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the flight recorder, which knows when each collective was called."""
        ranks = self._ranks.size
        most = min(MOST_COLLECTIVES, max(_MOST_IN_ALL // ranks, 1))
        alone = self._ranks.store is None
        schedule = None if alone else _Schedule(self._ranks)
        calls = Seen(now_ns(), most=most, schedule=schedule)
        self._calls = calls
        with self._memory(seen):
            gathering.start_together(self._ranks)
            try:
                yield
            finally:
                self._calls = None
                calls.read()
                seen |= {
                    "collectives": calls.rows,
                    "ends": UNKNOWN,
                    "from_ns": calls.from_ns,
                    "until_ns": calls.until_ns,
                    "sends": calls.sends,
                }

    @contextlib.contextmanager
    def _kernels(self, seen: dict[str, Any]) -> Iterator[None]:
        """By the kernels of NCCL, which wait on the GPU until all ranks are there."""
        import torch

        from gpumagic.devices import torch_profiler

        profile = None

        def cut() -> bool:
            """Trace no further, as a training may run for days."""
            if torch.cuda.is_initialized() and torch_private.is_capturing(
                torch, "cuda"
            ):
                return False  # which waiting for the GPU would break
            with contextlib.suppress(*_PROFILER_ERRORS):
                torch_profiler.stop(torch, profile)
            seen["until_ns"] = now_ns()
            return True

        alarm = Alarm(_TRACED_S, cut)
        with self._memory(seen):
            with contextlib.suppress(GpuMagicError, *_PROFILER_ERRORS):
                torch_profiler.require_startable(torch)
                profile = torch_profiler.started(torch, "cuda", devices_alone=True)
            gathering.start_together(self._ranks)
            if profile is not None:
                alarm.set()
            try:
                yield
            finally:
                alarm.off()
                if torch.cuda.is_initialized():
                    with contextlib.suppress(RuntimeError):  # an error of the block's
                        torch.cuda.synchronize()
                seen["ended_ns"] = now_ns()
                self._told_by = ""
                if profile is not None:
                    # The user's own profiler may have taken its place meanwhile.
                    with contextlib.suppress(OSError, GpuMagicError, *_PROFILER_ERRORS):
                        if "until_ns" not in seen:
                            torch_profiler.stop(torch, profile)
                        read = _read(torch_profiler.exported(profile))
                        if "until_ns" in seen and "ended_ns" in read:
                            seen["until_ns"] = read["ended_ns"]
                        seen |= read
                        self._told_by = KERNELS
                seen["told_by"] = self._told_by

    @contextlib.contextmanager
    def _profiled(self, seen: dict[str, Any]) -> Iterator[None]:
        """By a profile of everything: the simulated GPU's, or what has no recorder."""
        measured = None
        # Before the profile, or it would be in it.
        with contextlib.suppress(GpuMagicError, *_PROFILER_ERRORS):
            on_rank.warm_up()
        gathering.start_together(self._ranks)
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


class _Schedule:
    """At which step all ranks read the recorder; rank 0 says it through the store.

    A store that fails says nothing: then each reads by itself.

    Args:
        ranks: With whom it is shared.
    """

    def __init__(self, ranks: gathering.Ranks) -> None:
        self._ranks = ranks
        self._said = 0
        self.is_ours = ranks.rank == 0

    def say(self, step: int | None) -> None:
        """Say it; None for never again."""
        self._said += 1
        with contextlib.suppress(Exception):
            self._ranks.say(_READS, [self._said, step])

    def heard(self) -> tuple[int | None] | None:
        """What has been said since it was heard last; None for nothing."""
        with contextlib.suppress(Exception):
            said, step = self._ranks.heard(_READS, 0) or (0, None)
            if said > self._said:
                self._said = said
                return (step,)
        return None


def _way(*, profile: bool) -> str:
    """What tells of collectives here."""
    _, _, backend = on_rank.group()
    if simulated_box() is not None:
        return SIMULATOR
    if profile:
        return PROFILER
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
    kept = ["collectives", "beside"]
    if rank.zero_ns is None:  # its times are by no clock of ours
        kept += ["began_ns", "ended_ns"]
    return {key: told[key] for key in kept}
