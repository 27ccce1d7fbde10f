"""Reads the traces of many ranks at once, each in a process of its own.

Reading is bound by one processor, and a trace takes several times its size in memory,
which goes back to the system with the process. What comes back is the rank's record.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.rank_trace import rank_of
from gpumagic.gpu_open.trace_file import read
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.introspection import without_collecting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def rank_in(path: Path) -> RankTrace:
    """The rank that a trace is of."""
    with without_collecting():
        return rank_of(read(path))


def ranks_in(
    paths: Sequence[Path], progress: Callable[[float], object]
) -> list[Answer]:
    """The rank of each trace, or why it cannot be read."""
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    at_once = min(_processors(), len(paths), _MOST_AT_ONCE)
    if at_once < 2 or sum(sizes.values()) < _WORTH_A_PROCESS_BYTES:
        answers = []
        for number, path in enumerate(paths, 1):
            answers.append(_answer(path))
            progress(number / len(paths))
        return answers
    running: set[subprocess.Popen[bytes]] = set()
    threads = ThreadPoolExecutor(at_once)
    # The largest first, so that none is left over for the end.
    order = sorted(paths, key=lambda path: -sizes.get(path, 0))
    asked = {threads.submit(_ask, path, running): path for path in order}
    try:
        found = {}
        for number, future in enumerate(as_completed(asked), 1):
            found[asked[future]] = future.result()
            progress(number / len(asked))
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
        why = last[0] if last else f"its reader ended: {process.returncode}"
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
