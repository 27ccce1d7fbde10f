"""From files to a report: what they are, and what is asked of them."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.changes import compare as changes_between
from gpumagic.gpu_open.files import found, kind_of
from gpumagic.gpu_open.many import rank_in, ranks_in
from gpumagic.gpu_open.options import Options
from gpumagic.gpu_open.report import SnapshotReport, TraceReport
from gpumagic.gpu_open.together import together
from gpumagic.gpu_open.trace_records import RankTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.gpu_open.files import Found, Kind
    from gpumagic.gpu_open.many import Answer
    from gpumagic.gpu_open.trace_records import FileRead
    from gpumagic.report.record import Report

_TRACE: Kind = "trace"
_SNAPSHOT: Kind = "snapshot"
_TWO = 2
_SAVED = b'{"gpumagic":'  # how `gpu_ranks.watch().save()` begins
_MOST_SAVED_BYTES = 1 << 28


def read(  # noqa: PLR0913 -- one for each option
    *paths: str | os.PathLike[str],
    compare: bool = False,
    replay: bool = False,
    settings: Sequence[str] = (),
    memory_bytes: int | None = None,
    fit_bytes: int | None = None,
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

        settings: Which ones, as PYTORCH_CUDA_ALLOC_CONF would say them; with none,
            those that most often help.

        memory_bytes: How much memory the device is to have then.

        fit_bytes: What is asked whether it would have fitted at the end of a snapshot.

        progress: Told now and then how much is done, from 0 to 1.

    Raises:
        GpuMagicError: There is no such file, or nothing in it that can be read.
    """
    options = Options(
        compare=compare,
        replay=replay or bool(settings),
        settings=tuple(settings),
        memory_bytes=memory_bytes,
        fit_bytes=fit_bytes,
    )
    began_s = time.monotonic()
    among = _named(paths)
    files = among.files
    _check_comparison(len(files), options)
    report: TraceReport | SnapshotReport
    if (ranks := _saved_ranks(files)) is not None:
        return ranks
    if _kind_of_all(files, options) == _TRACE:
        report = _of_traces(files, options, progress)
    else:
        from gpumagic.gpu_open.snapshots import opened as snapshots_opened

        report = snapshots_opened(files, options, progress)
    left_out = (*among.left_out, *report.left_out)
    return replace(report, read_s=time.monotonic() - began_s, left_out=left_out)


def compare(
    before: str | os.PathLike[str], after: str | os.PathLike[str]
) -> TraceReport | SnapshotReport | Report:
    """Tell what has changed between two recordings of the same code.

    Args:
        before: A trace or a memory snapshot.

        after: Another of the same kind.
    """
    return read(before, after, compare=True)


def _named(paths: Sequence[str | os.PathLike[str]]) -> Found:
    """The files that are meant, each once."""
    among = found(map(Path, paths))
    if not among.files:
        raise GpuMagicError(
            "no file was named",
            "type %gpu_open trace.json.gz, %gpu_open traces/, or %gpu_open oom.pickle",
        )
    real = os.path.realpath  # which follows a link to itself as far as it leads
    among.files = list({real(each): each for each in among.files}.values())
    if len(among.files) == 1 < len(paths):
        raise GpuMagicError(
            f"{among.files[0].name} was named {len(paths)} times, and no other file",
            f"type %gpu_open {among.files[0]}, or name the one to compare it with",
        )
    return among


def _saved_ranks(files: Sequence[Path]) -> Report | None:
    """What `gpu_ranks.watch()` has saved; None for anything else."""
    if len(files) != 1 or not files[0].is_file():
        return None
    if files[0].stat().st_size > _MOST_SAVED_BYTES:
        return None
    data = files[0].read_bytes()
    if not data.lstrip().startswith(_SAVED):
        return None
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    # By name: that room stands on this one.
    room = importlib.import_module("gpumagic.gpu_ranks.watching")
    report: Report = room.opened(said)
    return report


def _kind_of_all(files: Sequence[Path], options: Options) -> Kind:
    kinds = _kinds(files)
    if len(kinds) > 1:
        raise GpuMagicError(
            f"{kinds[_TRACE].name} is a trace, {kinds[_SNAPSHOT].name} a snapshot",
            "open them one after the other",
        )
    kind = next(iter(kinds))
    if kind == _TRACE and options.for_snapshots:
        raise GpuMagicError(
            f"{options.for_snapshots} is for memory snapshots, and {files[0].name} is "
            "a trace",
            "leave it out, or name what torch.cuda.memory._dump_snapshot has written",
        )
    return kind


def _kinds(files: Sequence[Path]) -> dict[Kind, Path]:
    """Which kinds there are, each with a file of it; damaged ones have none.

    A name that is wrong is told at once, and damage where nothing else is there.
    """
    kinds: dict[Kind, Path] = {}
    damaged: list[GpuMagicError] = []
    for file in files:
        try:
            kinds.setdefault(kind_of(file), file)
        except GpuMagicError as error:
            if not file.is_file():
                raise
            damaged.append(error)
    if not kinds:
        raise damaged[0]
    return kinds


def _check_comparison(count: int, options: Options) -> None:
    if options.compare and count != _TWO:
        raise GpuMagicError(
            f"--compare needs two files, and there {'is' if count == 1 else 'are'} "
            f"{count}",
            "type %gpu_open --compare before.json.gz after.json.gz",
        )


# ------------------------------------------------------------------------- traces


def _of_traces(
    files: Sequence[Path], options: Options, progress: Callable[[float], object]
) -> TraceReport:
    if len(files) == 1:
        return TraceReport((rank_in(files[0], progress),))
    ranks, left_out = _sorted_out(ranks_in(files, progress))
    if not ranks:
        raise GpuMagicError(
            f"none of {len(files)} files can be read: {left_out[0].missing}",
            f"look at one of them: %gpu_open {files[0]}",
        )
    if options.compare and left_out:
        raise GpuMagicError(
            f"{left_out[0].name} cannot be read: {left_out[0].missing}",
            "copy it again: there is nothing to compare with",
        )
    if _are_two_runs(ranks, options):
        changes = changes_between(*ranks)
        return TraceReport(tuple(ranks), comparison=changes, left_out=left_out)
    if len(ranks) == 1:
        return TraceReport(tuple(ranks), left_out=left_out)
    _check_ranks(ranks)
    return TraceReport(tuple(ranks), together(ranks), left_out=left_out)


def _sorted_out(
    answers: Sequence[Answer],
) -> tuple[list[RankTrace], tuple[FileRead, ...]]:
    ranks = [each for each in answers if isinstance(each, RankTrace)]
    if all(each.rank is not None for each in ranks):
        ranks.sort(key=lambda each: each.rank or 0)  # of one rank, as they were named
    return ranks, tuple(each for each in answers if not isinstance(each, RankTrace))


def _are_two_runs(ranks: Sequence[RankTrace], options: Options) -> bool:
    """Two traces of one rank, or of none, are two runs; of two ranks they are one."""
    if len(ranks) != _TWO:
        return False
    return options.compare or ranks[0].rank == ranks[1].rank


def _check_ranks(ranks: Sequence[RankTrace]) -> None:
    counted = Counter(each.rank for each in ranks if each.rank is not None)
    twice = next((rank for rank, times in counted.items() if times > 1), None)
    if twice is None:
        return
    names = [each.file.name for each in ranks if each.rank == twice]
    raise GpuMagicError(
        f"rank {twice} is in {len(names)} files: {names[0]}, {names[1]}",
        "open one file of each rank; to compare two runs: %gpu_open --compare A B",
    )
