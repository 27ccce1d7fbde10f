"""What runs on each rank: where it sits, and what a block of code did there.

The block is traced as `%%cuda_sync_time --profile` traces it, and read as `%gpu_open`
reads what comes home from a cluster: so a rank that runs and one that has run are told
by the same rules. What goes out is a plain dictionary; see `answers`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import DeviceError, GpuMagicError, error_line
from gpumagic.gpu_mem.cell import CellRun
from gpumagic.gpu_mem.counters import read as read_counters
from gpumagic.gpu_ranks.answers import MOST, MOST_IN_ALL, RECORDER, VERSION
from gpumagic.gpu_ranks.seen import (
    distributed_here,
    flight,
    is_recorded,
    line_of,
    own_clock,
    recorded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.cuda_sync_time.answer_run import TimingReport
    from gpumagic.gpu_open.records import RankTrace
    from gpumagic.gpu_open.trace_file import TraceEvents
    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.report import Row

_NS = 1_000_000_000
_BEGIN, _END = "gpumagic: all idle, begin", "gpumagic: all idle, end"
_TRACED_S = 10.0  # at most, of all that a GPU does: a minute takes gigabytes
_MOST_BYTES_READ = 400_000_000  # of a trace: more would take minutes
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES")
_MOST_CHOICES = 64
_OF_ALL = frozenset({"PROFILED", "WATCHED"})  # what each rank's own timing notes
_OF_TWO = frozenset({"send", "recv", "send_recv"})


# ------------------------------------------------------------------ where it sits


def seat(engine: int | None = None) -> dict[str, Any]:
    """Where this process sits; nothing is started to find out."""
    rank, backend = group()
    text = os.environ.get("LOCAL_RANK", "")
    local_rank = int(text) if text.isdecimal() else None
    told = _machine()
    gpu: dict[str, Any] = {}
    if row := _current(told, local_rank):
        gpu = {"gpu": row.uuid, "gpu_name": row.name, "gpu_number": row.physical}
        gpu["confirmed"] = row.actual is not None
    also_on = [
        each.uuid
        for each in open_driver().inventory().gpus
        if each.uuid
        and each.uuid != gpu.get("gpu")
        and os.getpid() in {process.pid for process in each.processes or ()}
    ]
    return {
        "version": VERSION,
        "kind": "seat",
        "rank": rank,
        "engine": engine,
        "host": socket.gethostname(),
        "machine": own_clock(),
        "pid": os.getpid(),
        "local_rank": local_rank,
        **gpu,
        "also_on": also_on,
        "simulated": told.simulated,
        "backend": backend,
    }


def choices() -> list[list[Any]]:
    """What this process may be given: number and UUID of each, in the order of CUDA.

    That is what it was started with: whoever has started it, a batch system or a user,
    may have left the others to somebody else.
    """
    from gpumagic.gpu_select.situation import allowed_places, look

    found = allowed_places(look(open_driver()))
    return [[each.gpu.index, each.uuid] for each in found][:_MOST_CHOICES]


def _machine() -> SelectReport:
    """Which GPUs this process sees: looked at anew where that may have changed."""
    runtime = runtime_now()
    return _status_when(
        *(os.environ.get(variable) for variable in _VISIBILITY),
        "torch" in sys.modules,
        runtime.kind,
        runtime.started(),
        id(simulated_box()),
    )


@functools.lru_cache(maxsize=1)  # it takes longer than all else that a rank says
def _status_when(*_: object) -> SelectReport:
    from gpumagic import gpu_select

    return gpu_select.status()


def group() -> tuple[int | None, str]:
    """Rank and backend of this process's group; None and "" without one."""
    distributed, backend = distributed_here(), ""
    if not distributed:
        return None, backend
    with contextlib.suppress(Exception):  # what each version calls it differs
        # As in "cpu:gloo,cuda:nccl": what moves the data of GPUs, if anything does.
        told = str(distributed.distributed_c10d.get_backend_config()).split(",")
        backend = max(told, key=lambda each: not each.startswith("cpu:")).split(":")[1]
    return distributed.get_rank(), backend


def _current(told: SelectReport, local_rank: int | None) -> Row | None:
    """The GPU that is, or is to be, the current device of this process."""
    runtime, shown = runtime_now(), {row.predicted for row in told.rows} - {None}
    current: int | None = 0  # also of the one that a rank sees alone
    if runtime.started():
        current = runtime.current_device()
    elif len(shown) > 1:
        current = local_rank or 0
    numbers = ((e.predicted if e.actual is None else e.actual, e) for e in told.rows)
    return next((row for number, row in numbers if number == current), None)


# ------------------------------------------------------------- what a block of code did


@dataclass
class Measured:
    """What a block came to."""

    error: BaseException | None = None  # also what the block has caught itself
    # what goes out, once the block has ended
    said: dict[str, Any] = field(default_factory=dict)


def warm_up(*, profile: bool = False) -> None:
    """Import and start what the first measured block would else pay for: seconds.

    Ranks that import late would be blamed for it.
    """
    _warmed(_is_traced(profile=profile), profile=profile)


@functools.cache  # by whether it is traced, as that starts more
def _warmed(_: object, *, profile: bool) -> None:
    with measuring(profile=profile):
        pass


@contextlib.contextmanager
def measuring(
    *,
    engine: int | None = None,
    together: Callable[[], object] = lambda: None,
    profile: bool = False,
) -> Iterator[Measured]:
    """Measure a block on this rank; an error of its own goes through.

    The recorder tells of what gloo did, unless a profile is wanted. Of a device all is
    traced: without operators its collectives have no groups.
    """
    from gpumagic import cuda_sync_time

    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        whole = str(file) if _is_traced(profile=profile) else None
        with contextlib.ExitStack() as beginning:
            memory = beginning.enter_context(counted())
            together()
            timing = beginning.enter_context(
                cuda_sync_time.watch(trace_file=whole, trace_s=_TRACED_S)
            )
            since_ns = time.time_ns()
            block = beginning.pop_all()
        try:
            with block:
                yield measured
        except BaseException as raised:
            measured.error = raised
            raise
        finally:
            report, error = cast("TimingReport", timing.report), measured.error
            measured.said = {
                "version": VERSION,
                "kind": "done",
                "seat": seat(engine),
                "elapsed_s": report.run.elapsed_s,
                "by_model": simulated_box() is not None,
                "error": error_line(error),
                "error_line": line_of(error),
                "flight": flight(asks_for_calls=error is not None),
                **(_traced(report, file) or _recorded(report, since_ns)),
                "memory": memory_of(memory),
                "flags": _flags(report),
            }


def _flags(timing: TimingReport) -> dict[str, str]:
    """What its timing found, but not that it was traced, as all are."""
    told = {each.kind.name: each.kind.value for each in timing.flags}
    return {name: text for name, text in told.items() if name not in _OF_ALL}


def _is_traced(*, profile: bool) -> bool:
    """Whether a block is: torch's profiler starts not before CUDA, and not twice."""
    from gpumagic.devices.tracing import require_startable

    if "torch" not in sys.modules:
        return False
    if runtime_now().kind == CpuRuntime.kind and is_recorded() and not profile:
        return False
    with contextlib.suppress(DeviceError):
        require_startable(sys.modules["torch"])
        return True
    return False


@contextlib.contextmanager
def counted() -> Iterator[CellRun]:
    """Counters before and after; names are not looked for, which takes longer."""
    run = CellRun(runtime_now)
    run.begin()
    try:
        yield run
    finally:
        run.end(None)


def fitting(said: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The same with its last collectives alone, where they would be too many."""
    rows, most = said.get("collectives") or [], min(MOST, MOST_IN_ALL // ranks)
    if len(rows) <= most:
        return said
    return said | {"collectives": rows[-most:], "from_ns": rows[-most - 1][5]}


def _recorded(timing: TimingReport, since_ns: int) -> dict[str, Any]:
    """What a block took, and what torch's recorder knows of it."""
    ended_ns = since_ns + round(timing.run.elapsed_s * _NS)
    said: dict[str, Any] = {"began_ns": since_ns, "ended_ns": ended_ns}
    rows, from_ns = recorded(since_ns)
    if not rows or simulated_box():
        return said
    known = {"collectives": rows, "from_ns": from_ns, "has_ends": False}
    return said | known | {"told_by": RECORDER}


def _traced(timing: TimingReport, file: Path) -> dict[str, Any]:
    """What the trace of a block tells; empty where there is none to be read."""
    from gpumagic.gpu_open.trace_file import read

    if not file.exists() or file.stat().st_size > _MOST_BYTES_READ:
        return {}
    with contextlib.suppress(GpuMagicError):
        # Its moments are those of one process: all that counts is that they are kept.
        events = replace(read(file), since_1970=True)
        said = times_of(events, timing.run.elapsed_s)
        if timing.profile and timing.profile.is_cut:
            said["until_ns"] = said["ended_ns"]
        return said
    return {}


def times_of(events: TraceEvents, elapsed_s: float) -> dict[str, Any]:
    """What a block took, and what was done with others meanwhile, as it travels."""
    from gpumagic.gpu_open.rank_trace import rank_of

    rank, (began_ns, ended_ns) = rank_of(events), _window(events, elapsed_s)
    return {
        "began_ns": began_ns,
        "ended_ns": ended_ns,
        "collectives": _rows(rank, began_ns, ended_ns),
        "phases": dict(rank.phases),
        "steps_s": [step.length_s for step in rank.steps],
    }


def _rows(rank: RankTrace, began_ns: int, ended_ns: int) -> list[list[Any]]:
    """What was done with others between beginning and end, as it travels.

    What has no number of its group's own is counted from the beginning on: ranks may
    have done more or less with each other before it.
    """
    zero_ns, counted = rank.zero_ns or 0, Counter[str | None]()
    module = sys.modules.get("torch.distributed.distributed_c10d")
    groups = getattr(getattr(module, "_world", None), "pg_map", ())
    # gloo's marks tell no group: of several it is in one that no other rank is in.
    nowhere = f"unknown group of process {os.getpid()} on {socket.gethostname()}"
    unnamed = nowhere if len(groups) > 1 else ""
    rows: list[list[Any]] = []
    for each in rank.collectives:
        start_ns = zero_ns + round(each.start_s * _NS)
        end_ns = zero_ns + round(each.end_s * _NS)
        if end_ns <= began_ns or start_ns >= ended_ns:
            continue
        number = None  # of what only two have to do with
        if each.name not in _OF_TWO:
            number = each.number if each.numbered else counted[each.group]
            counted[each.group] += 1
        row = [each.group or unnamed, number, each.name, each.nbytes, start_ns, end_ns]
        ends_s = (at_s - each.start_s for span in each.hidden for at_s in span)
        spans = [max(round(at_s * _NS), 0) for at_s in ends_s]
        rows.append([*row, each.during or "", spans])
    return rows


def _window(events: TraceEvents, elapsed_s: float) -> tuple[int, int]:
    """From all idle to all idle, by the clock of the trace."""
    begin = [each.end_ns for each in events.marks if each.name == _BEGIN]
    end = [each.start_ns for each in events.marks if each.name == _END]
    if begin and end:
        # The mark comes when all has been told that a run tells: its time is over then.
        took_ns = round(elapsed_s * _NS) or end[-1] - begin[0]
        return begin[0], max(min(end[-1], begin[0] + took_ns), begin[0])
    spans = [(each.start_ns, each.end_ns) for each in events.work]
    spans += [(each.start_ns, each.end_ns) for each in events.operators]
    if spans:
        return min(spans)[0], max(end_ns for _, end_ns in spans)
    return 0, round(elapsed_s * _NS)


def memory_of(run: CellRun) -> dict[str, int] | None:
    """The fullest device of this process, and its peak while the block ran."""
    runtime, found = runtime_now(), []
    peaks = {e.after.device: e.peak.high_bytes for e in run.changes() if e.moved}
    for device in runtime.devices_in_use():
        now, limit = read_counters(runtime, device), runtime.memory_bytes(device)
        # Where nothing moved, what is there was there all the time.
        peak_bytes = peaks.get(device, now.allocated_bytes)
        if limit and peak_bytes is not None and math.isfinite(peak_bytes):
            found.append((now.reserved_bytes or 0, int(peak_bytes), limit[1]))
    for _, peak_bytes, limit_bytes in sorted(found)[-1:]:
        return {"peak_bytes": peak_bytes, "limit_bytes": limit_bytes}
    return None
