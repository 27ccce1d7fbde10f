"""What runs on each rank: where it sits, and what a block of code did there.

The block is traced as `%%cuda_sync_time --profile` traces it, and read as `%gpu_open`
reads what comes home from a cluster: so a rank that runs and one that has run are told
by the same rules. What goes out is a plain dictionary; see `answers`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.driver import open_driver
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError, error_line
from gpumagic.gpu_mem.counters import read as read_counters
from gpumagic.gpu_ranks.answers import MOST_COLLECTIVES, VERSION
from gpumagic.gpu_ranks.flight_recorder import flight
from gpumagic.report.places import Places, line_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import TimingReport
    from gpumagic.gpu_mem.report import CellReport
    from gpumagic.gpu_open.trace_events import TraceEvents
    from gpumagic.gpu_open.trace_records import RankTrace
    from gpumagic.gpu_select.report import Row, SelectReport

HOST_VARIABLE = "GPUMAGIC_HOST"  # who is one machine to others, where names mislead
_NS = 1_000_000_000
_BEGIN, _END = "gpumagic: all idle, begin", "gpumagic: all idle, end"
_MOST_NAMES = 10
_PCI = Path("/sys/bus/pci/devices")
_NETWORK_CARDS = Path("/sys/class/infiniband")


# ------------------------------------------------------------------ where it sits


def seat(engine: int | None = None) -> dict[str, Any]:
    """Where this process sits; nothing is started to find out.

    Args:
        engine: Its number among the engines of a cluster.
    """
    from gpumagic import gpu_select

    rank, world_size, backend = group()
    local_rank = _number_in("LOCAL_RANK")
    told = gpu_select.status()
    row = _current(told, local_rank)
    return {
        "version": VERSION,
        "kind": "seat",
        "rank": rank,
        "world_size": world_size,
        "engine": engine,
        "host": os.environ.get(HOST_VARIABLE) or socket.gethostname(),
        "pid": os.getpid(),
        "local_rank": local_rank,
        "gpu": None if row is None else _gpu(row),
        "also_on": _also_on(row),
        "driver": open_driver().inventory().driver_version,
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
        "network_far": None if row is None else _network_far(row.pci_address),
        "simulated": told.simulated,
        "backend": backend,
    }


def group() -> tuple[int | None, int | None, str | None]:
    """Rank, size and backend of this process's group; None without one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None, None, None
    if not distributed.is_initialized():
        return None, None, None
    return (
        distributed.get_rank(),
        distributed.get_world_size(),
        _backend(distributed),
    )


def _backend(distributed: Any) -> str | None:
    """What moves the data of GPUs, or of the host where nothing else does."""
    with contextlib.suppress(Exception):  # what each version calls it differs
        told = distributed.distributed_c10d.get_backend_config()
        by_device = dict(each.split(":", 1) for each in str(told).split(","))
        of_gpus = [each for kind, each in by_device.items() if kind != "cpu"]
        return next(iter(of_gpus), None) or by_device.get("cpu")
    return None


def _current(told: SelectReport, local_rank: int | None) -> Row | None:
    """The GPU that is, or is to be, the current device of this process."""
    runtime = runtime_now()
    current = runtime.current_device() if runtime.started() else None
    if current is None:
        shown = {row.predicted for row in told.rows if row.predicted is not None}
        current = 0 if local_rank is None or len(shown) == 1 else local_rank
    for row in told.rows:
        if current == (row.predicted if row.actual is None else row.actual):
            return row
    return None


def _gpu(row: Row) -> dict[str, Any]:
    return {
        "uuid": row.uuid,
        "name": row.name,
        "number": row.physical,
        "confirmed": row.actual is not None,
    }


def _also_on(current: Row | None) -> list[str]:
    """Other GPUs on which this process holds memory, as their driver tells."""
    own, found = os.getpid(), []
    for gpu in open_driver().inventory().gpus:
        pids = {process.pid for process in gpu.processes or ()}
        if own in pids and gpu.uuid and (current is None or gpu.uuid != current.uuid):
            found.append(gpu.uuid)
    return found


def _network_far(pci_address: str | None) -> bool | None:
    """Whether no network card is on the GPU's socket; None where none is known."""
    if pci_address is None:
        return None
    at = _socket_of(_PCI / pci_address.lower().removeprefix("0000")[-12:])
    cards = {_socket_of(card / "device") for card in _each(_NETWORK_CARDS)} - {None}
    return None if at is None or not cards else at not in cards


def _each(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _socket_of(device: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        number = int((device / "numa_node").read_text())
        return None if number < 0 else number
    return None


def _number_in(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


# ------------------------------------------------------------- what a block of code did


class Measured:
    """What a block came to.

    Attributes:
        said: The dictionary that goes out; None until the block has ended.
    """

    def __init__(self) -> None:
        self.said: dict[str, Any] | None = None


@contextlib.contextmanager
def measuring(*, engine: int | None = None, names: bool = False) -> Iterator[Measured]:
    """Measure a block on this rank; an error of its own goes through.

    Args:
        engine: Its number among the engines of a cluster.

        names: Whether the variables that hold memory are wanted.
    """
    from gpumagic import cuda_sync_time, gpu_mem

    measured, error = Measured(), None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        try:
            with (
                gpu_mem.measure(top=_MOST_NAMES) as memory,
                cuda_sync_time.watch(trace_file=str(file)) as timing,
            ):
                yield measured
        except BaseException as raised:
            error = raised
            raise
        finally:
            trace = _read(file)
            measured.said = {
                "version": VERSION,
                "kind": "done",
                "seat": seat(engine),
                "error": error_line(error),
                "error_line": None if error is None else _line_of(error),
                "flight": flight(),
                **_time(timing.report, trace),
                "memory": _memory(memory.report),
                "names": _names(memory.report) if names else None,
            }
    if timing.report is not None:
        measured.said["flags"] = [each.kind.name for each in timing.report.flags]


def _line_of(error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the user's that an error came through."""
    torch = sys.modules.get("torch")
    places = Places(() if torch is None else (str(Path(torch.__file__ or "").parent),))
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if places.is_users(file):
            found = line_in(file, trace.tb_lineno)
        trace = trace.tb_next
    return None if found is None else found.to_dict()


def _read(file: Path) -> tuple[TraceEvents, RankTrace] | None:
    """The trace of the block; None where there is none to be read."""
    from gpumagic.gpu_open.rank_trace import rank_of
    from gpumagic.gpu_open.trace_file import read

    with contextlib.suppress(GpuMagicError):
        events = read(file)
        return events, rank_of(events)
    return None


def _time(
    timing: TimingReport | None, trace: tuple[TraceEvents, RankTrace] | None
) -> dict[str, Any]:
    elapsed_s = None if timing is None else timing.run.elapsed_s
    clock = "host" if simulated_box() is None else "simulated"
    said: dict[str, Any] = {"elapsed_s": elapsed_s, "clock": clock}
    if trace is None:
        return said | {"began_ns": 0, "ended_ns": round((elapsed_s or 0.0) * _NS)}
    events, rank = trace
    began_ns, ended_ns = _window(events, elapsed_s)
    zero_ns = rank.zero_ns or 0
    return said | {
        "began_ns": began_ns,
        "ended_ns": ended_ns,
        "collectives": [
            [
                each.group,
                each.number,
                each.name,
                each.nbytes,
                zero_ns + round(each.start_s * _NS),
                zero_ns + round(each.end_s * _NS),
                each.during,
            ]
            for each in rank.collectives[:MOST_COLLECTIVES]
        ],
        "phases": dict(rank.phases),
        "steps_s": [step.length_s for step in rank.steps],
    }


def _window(events: TraceEvents, elapsed_s: float | None) -> tuple[int, int]:
    """From all idle to all idle, by the clock of the trace."""
    begin = [each.end_ns for each in events.marks if each.name == _BEGIN]
    end = [each.start_ns for each in events.marks if each.name == _END]
    if begin and end:
        return begin[0], max(end[-1], begin[0])
    ends = [each.end_ns for each in (*events.work, *events.operators)]
    starts = [each.start_ns for each in (*events.work, *events.operators)]
    if not starts:
        return 0, round((elapsed_s or 0.0) * _NS)
    return min(starts), max(ends)


def _memory(report: CellReport | None) -> dict[str, Any] | None:
    """The fullest device of this process, and its peak while the block ran."""
    runtime = runtime_now()
    if not runtime.started():
        return None
    found = [read_counters(runtime, device) for device in runtime.devices_in_use()]
    if not found:
        return None
    now = max(found, key=lambda each: each.reserved_bytes or 0)
    changes = () if report is None else report.changes
    peaks = [
        each.peak.high_bytes for each in changes if each.after.device == now.device
    ]
    limit = runtime.memory_bytes(now.device)
    return {
        "device": now.device,
        "allocated_bytes": now.allocated_bytes,
        "reserved_bytes": now.reserved_bytes,
        # Where nothing moved, what is there was there all the time.
        "peak_bytes": peaks[0] if peaks else now.allocated_bytes,
        "limit_bytes": None if limit is None else limit[1],
        "ooms": now.ooms,
    }


def _names(report: CellReport | None) -> list[list[Any]]:
    holders = (
        () if report is None or report.holdings is None else report.holdings.holders
    )
    return [[each.name, each.reachable_bytes] for each in holders[:_MOST_NAMES]]
