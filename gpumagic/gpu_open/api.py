"""From files to a report: what they are, and what is asked of them."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, MissingPackage, UsageProblem
from gpumagic.gpu_open.files import AGAIN, by_kind, found
from gpumagic.gpu_open.records import FileRead, RankTrace
from gpumagic.gpu_open.report import SnapshotReport, TraceReport
from gpumagic.report.introspection import without_collecting
from gpumagic.report.units import bytes_text, parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from gpumagic.report.record import Report

    Answer = RankTrace | FileRead  # of one that cannot be read, why

# A process takes a third of a second to begin; so many packed bytes take as long.
_WORTH_A_PROCESS_BYTES = 1 << 20
_MOST_AT_ONCE = 8
_PARENT = str(Path(__file__).parents[2])
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "from gpumagic.gpu_open import api; api.answer(sys.argv[2])"
)

_SAVED = b'{"gpumagic":'  # how `gpu_ranks.watch().save()` begins
_MOST_SAVED_BYTES = 1 << 28
_SETTING = re.compile(r"\w+:[\w.:,\[\]]+|default")
_SIZE = re.compile(r"[\d.]+ ?[a-zA-Z]+")
# What helps most often; each is the text that PYTORCH_CUDA_ALLOC_CONF would have.
_USUAL = (
    "expandable_segments:True",
    "max_split_size_mb:256",
    "garbage_collection_threshold:0.8",
)


def options_of(typed: argparse.Namespace) -> dict[str, Any]:
    """What was typed, as `read` is told it.

    `--replay` takes a setting or a size; another word behind it is a file.
    """
    under = typed.replay or ""
    wanted = {"compare": typed.compare, "replay": typed.replay is not None}
    if _SETTING.fullmatch(under):
        wanted["setting"] = "" if under == "default" else under
    elif _SIZE.fullmatch(under):
        try:
            wanted["memory_bytes"] = parse_bytes(under)
        except GpuMagicError as error:
            raise UsageProblem(f"--replay: {error.problem}", error.hint) from None
    elif re.fullmatch(r"\w+", under) and not Path(under).exists():
        raise UsageProblem(
            f"--replay: {under} is no setting, no size and no file",
            "type --replay expandable_segments:True, or --replay 24GiB",
        )
    elif under:
        typed.files.append(under)
    return wanted


def read(
    *paths: str | os.PathLike[str],
    compare: bool = False,
    replay: bool = False,
    setting: str | None = None,
    memory_bytes: int | None = None,
    progress: Callable[[float], object] = lambda _: None,
) -> TraceReport | SnapshotReport | Report:
    """Tell what recordings hold: traces of torch's profiler, or memory snapshots.

    Nothing of a file is run, no GPU is needed, and torch is not imported.

    Args:
        paths: One trace, those of many ranks, or two runs of the same rank; or one
            memory snapshot, or two; or what `gpu_ranks.watch()` has saved. Folders
            and patterns such as `traces/*.json.gz` stand for what is in them.

        compare: Whether two traces are two runs of the same code, where their ranks
            differ.

        replay: Whether the requests of a snapshot are to be served again, under other
            settings.

        setting: Under which one, as PYTORCH_CUDA_ALLOC_CONF would say it; with none,
            those that most often help.

        memory_bytes: How much memory the device is to have then.

        progress: Told now and then how much is done, from 0 to 1.

    Raises:
        GpuMagicError: There is no such file, or nothing in it that can be read.
    """
    began_s = time.monotonic()
    files = found(paths)
    if not files:
        raise GpuMagicError(
            "no file was named",
            "type %gpu_open trace.json.gz, %gpu_open traces/, or %gpu_open oom.pickle",
        )
    if compare and len(files) != 2:
        raise GpuMagicError(
            f"--compare needs two files, not {len(files)}",
            "type %gpu_open --compare before.json.gz after.json.gz",
        )
    if ranks := _saved_ranks(files):
        return ranks
    kind, files, left_out = by_kind(files)
    if compare and left_out:
        raise GpuMagicError(left_out[0].missing, AGAIN)
    if memory_bytes is not None and memory_bytes <= 0:
        raise GpuMagicError(
            f"no GPU has {bytes_text(memory_bytes)} of memory",
            "name a size such as 24GiB: --replay 24GiB, or memory_bytes=24 << 30",
        )
    is_replay = replay or setting is not None or bool(memory_bytes)
    if kind == "trace" and is_replay:
        raise GpuMagicError(
            f"--replay is for memory snapshots, and {files[0].name} is a trace",
            "leave it out, or name what torch.cuda.memory._dump_snapshot has written",
        )
    if importlib.util.find_spec("msgspec") is None:
        raise MissingPackage(
            "msgspec, which reads recordings, is not installed",
            "type: %pip install msgspec",
        )
    if kind == "trace":
        report: TraceReport | SnapshotReport = _of_traces(
            files, progress, compare=compare
        )
    else:
        usual = _USUAL if setting is None else (setting,)
        report = _of_snapshots(files, usual if is_replay else (), memory_bytes)
    every = (*left_out, *report.left_out)
    return replace(report, read_s=time.monotonic() - began_s, left_out=every)


def compare(
    before: str | os.PathLike[str], after: str | os.PathLike[str]
) -> TraceReport | SnapshotReport | Report:
    """Tell what has changed between two traces of the same code, or two snapshots."""
    return read(before, after, compare=True)


def _saved_ranks(files: Sequence[Path]) -> Report | None:
    """What `gpu_ranks.watch()` has saved; None for anything else."""
    file = files[0]
    if len(files) > 1 or not file.is_file() or file.stat().st_size > _MOST_SAVED_BYTES:
        return None
    with file.open("rb") as opened:
        if not opened.read(100).lstrip().startswith(_SAVED):
            return None
    try:
        said = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    # By name: that room stands on this one.
    room = importlib.import_module("gpumagic.gpu_ranks.watching")
    report: Report = room.opened(said)
    return report


def _of_traces(
    files: Sequence[Path], progress: Callable[[float], object], *, compare: bool
) -> TraceReport:
    from gpumagic.gpu_open import answer_changes, together

    if len(files) == 1:
        return TraceReport((rank_in(files[0]),))
    answers = ranks_in(files, progress)
    ranks = [each for each in answers if isinstance(each, RankTrace)]
    left_out = tuple(each for each in answers if not isinstance(each, RankTrace))
    numbers = Counter(each.rank for each in ranks if each.rank is not None)
    if numbers.total() == len(ranks):
        ranks.sort(key=lambda each: each.rank or 0)  # of one rank, as they were named
    if left_out and (compare or not ranks):
        problem = f"{left_out[0].name} cannot be read: {left_out[0].missing}"
        raise GpuMagicError(problem, AGAIN)
    report = TraceReport(tuple(ranks), left_out=left_out)
    if len(ranks) == 1:
        return report
    # Two traces of one rank, or of none, are two runs; of two ranks they are one.
    if len(ranks) == 2 and (compare or ranks[0].rank == ranks[1].rank):
        return replace(report, comparison=answer_changes.compare(*ranks))
    for rank, times in numbers.most_common(1):
        if times > 1:
            first, second, *_ = (e.file.name for e in ranks if e.rank == rank)
            raise GpuMagicError(
                f"rank {rank} is in {times} files: {first}, {second}",
                "open one file of each rank; for two runs: %gpu_open --compare A B",
            )
    return replace(report, together=together.together(ranks))


def _of_snapshots(
    files: Sequence[Path], settings: tuple[str, ...], memory_bytes: int | None
) -> SnapshotReport:
    """What is in one or two; served again under settings, where there are any."""
    from gpumagic.gpu_open import memory_history, snapshot_file
    from gpumagic.gpu_open.replay import replay_of

    if len(files) > 2:
        both = str(files[0]), str(files[-1])
        raise GpuMagicError(
            f"{len(files)} memory snapshots are too many at once",
            f"open one, or two to see what grew: %gpu_open {shlex.join(both)}",
        )
    snapshots = [snapshot_file.read(file) for file in files]
    last = snapshots[-1]
    devices = [memory_history.device_of(last, device) for device in last.devices]
    devices.sort(key=lambda e: (not e.failure, -e.reserved_bytes))
    report = SnapshotReport(
        tuple(each.file for each in snapshots),
        tuple(devices),
        last.settings,
        grown=memory_history.grown(*snapshots[-2:]) if len(snapshots) > 1 else (),
    )
    if not settings:
        return report
    replays, errors = [], []
    for device in devices:
        try:
            replays.append(replay_of(last, device.device, settings, memory_bytes))
        except GpuMagicError as error:
            errors.append(error)
    if errors and not replays:
        raise errors[0]
    return replace(report, replays=tuple(replays))


# ------------------------------------------------------- each rank in its own process


def rank_in(path: Path) -> RankTrace:
    """The rank that a trace is of."""
    from gpumagic.gpu_open import rank_trace, trace_file

    with without_collecting():
        return rank_trace.rank_of(trace_file.read(path))


def ranks_in(
    paths: Sequence[Path], progress: Callable[[float], object]
) -> list[Answer]:
    """The rank of each trace, or why it cannot be read."""
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    at_once = min(_processors(), len(paths), _MOST_AT_ONCE)
    found: dict[Path, Answer] = {}

    def tell(path: Path, answer: Answer) -> None:
        found[path] = answer
        progress(len(found) / len(paths))

    if at_once < 2 or sum(sizes.values()) < _WORTH_A_PROCESS_BYTES:
        for path in paths:
            tell(path, _answer(path))
        return list(found.values())
    running: set[subprocess.Popen[bytes]] = set()
    threads = ThreadPoolExecutor(at_once)
    # The largest first, so that none is left over for the end.
    order = sorted(paths, key=lambda path: -sizes.get(path, 0))
    asked = {threads.submit(_ask, path, running): path for path in order}
    try:
        for future in as_completed(asked):
            tell(asked[future], future.result())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in list(running):  # those that Ctrl-C leaves behind
            process.kill()
        threads.shutdown()
    return [found[path] for path in paths]


def _ask(path: Path, running: set[subprocess.Popen[bytes]]) -> Answer:
    """Let a new process read a file."""
    process = subprocess.Popen(  # noqa: S603 -- this Python, our own module
        [sys.executable, "-P", "-c", _CHILD, _PARENT, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the one who asked
    )
    running.add(process)
    said, complaint = process.communicate()
    running.discard(process)
    if process.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        why = "".join(last) or f"its reader ended: {process.returncode}"
        return FileRead(path.name, 0, 0, why)
    answer: Answer = pickle.loads(said)  # noqa: S301 -- our own process wrote it
    return answer


def answer(path: str) -> None:
    """What a process of `ranks_in` does: read one file, and tell of it."""
    sys.stdout.buffer.write(pickle.dumps(_answer(Path(path))))


def _answer(path: Path) -> Answer:
    try:
        return rank_in(path)
    except GpuMagicError as error:
        return FileRead(path.name, 0, 0, error.problem)


def _processors() -> int:
    """How many this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
