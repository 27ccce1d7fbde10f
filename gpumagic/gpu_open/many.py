"""Reads the traces of many ranks at once, each in a process of its own.

Reading is bound by one processor, and a trace unpacked takes some hundred megabytes,
which go back to the system with the process. What comes back is the rank's record.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.rank_trace import rank_of
from gpumagic.gpu_open.trace_file import read
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.introspection import without_collecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from gpumagic.gpu_open.trace_records import RankTrace

# A process takes a third of a second to begin; so many packed bytes take as long.
_WORTH_A_PROCESS_BYTES = 1 << 20
_MOST_AT_ONCE = 8
_PARENT = str(Path(__file__).parents[2])
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    "from gpumagic.gpu_open import many; many.answer(sys.argv[2])"
)

Answer: TypeAlias = "RankTrace | FileRead"  # of one that cannot be read, why


def rank_in(path: Path, progress: Callable[[float], object] | None = None) -> RankTrace:
    """The rank that a trace is of."""
    with without_collecting():
        rank = rank_of(read(path, progress))
    return replace(rank, file=replace(rank.file, folder=folder_of(path)))


def folder_of(path: Path) -> str:
    """A file's folder, as it was named; "" is the current one."""
    return "" if path.parent == Path() else str(path.parent)


def ranks_in(
    paths: Sequence[Path], progress: Callable[[float], object]
) -> list[Answer]:
    """The rank of each trace, or why it cannot be read."""
    sizes = [path.stat().st_size for path in paths]
    at_once = min(_processors(), len(paths), _MOST_AT_ONCE)
    if at_once < 2 or sum(sizes) < _WORTH_A_PROCESS_BYTES or not sys.executable:
        return list(_one_by_one(paths, progress))
    with _Processes.until_done() as processes, ThreadPoolExecutor(at_once) as threads:
        return _gathered(processes, threads, paths, progress)


def _one_by_one(
    paths: Sequence[Path], progress: Callable[[float], object]
) -> Iterator[Answer]:
    for number, path in enumerate(paths, 1):
        yield _answer(path)
        progress(number / len(paths))


def _gathered(
    processes: _Processes,
    threads: ThreadPoolExecutor,
    paths: Sequence[Path],
    progress: Callable[[float], object],
) -> list[Answer]:
    """Begin with the largest, so that none is left over for the end."""
    order = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)
    asked: dict[Future[Answer], Path] = {}
    try:
        asked.update((threads.submit(processes.ask, path), path) for path in order)
        answers = dict(_as_they_come(asked, progress))
    except BaseException:
        processes.end()  # the threads wait for them
        raise
    return [answers[path] for path in paths]


def _as_they_come(
    asked: dict[Future[Answer], Path], progress: Callable[[float], object]
) -> Iterator[tuple[Path, Answer]]:
    for number, future in enumerate(as_completed(asked), 1):
        yield asked[future], future.result()
        progress(number / len(asked))


@dataclass
class _Processes:
    """Those that are reading."""

    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _ended: bool = False

    @classmethod
    @contextmanager
    def until_done(cls) -> Iterator[_Processes]:
        """None is left behind, however a block ends."""
        processes = cls()
        try:
            yield processes
        finally:
            processes.end()

    def ask(self, path: Path) -> Answer:
        """Let a new one read a file."""
        if self._ended:
            return _unread(path, "not begun")
        process = subprocess.Popen(  # noqa: S603 -- this Python, our own module
            [sys.executable, "-P", "-c", _CHILD, _PARENT, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the one who asked
        )
        self._add(process)
        said, complaint = process.communicate()
        self._running.discard(process)
        if process.returncode:
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            return _unread(path, *(last or [f"its reader ended: {process.returncode}"]))
        answer: Answer = pickle.loads(said)  # noqa: S301 -- our own process wrote it
        return answer

    def _add(self, process: subprocess.Popen[bytes]) -> None:
        """End it at once, if all others have been ended since it was asked for."""
        self._running.add(process)
        if self._ended:
            process.kill()

    def end(self) -> None:
        """End those that still run, and begin no more."""
        self._ended = True
        for process in list(self._running):
            process.kill()


def answer(path: str) -> None:
    """What a process of `ranks_in` does: read one file, and tell of it."""
    sys.stdout.buffer.write(pickle.dumps(_answer(Path(path))))


def _answer(path: Path) -> Answer:
    try:
        return rank_in(path)
    except GpuMagicError as error:
        return _unread(path, error.problem)


def _unread(path: Path, why: str) -> FileRead:
    return FileRead(path.name, 0, 0, why)


def _processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
