"""Locks the GPUs that a process has chosen, so that others which ask get others.

There is a file for each GPU in a folder of all users. Whoever holds its lock has the
GPU; the system lets go of the lock when the process ends, in whatever way.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.report.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ALL_MAY_ADD = 0o1777  # as /tmp: whoever made a file may take it away
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_LONGEST = 80  # letters of what a holder says of itself
_NO_FOLDER = (OSError, NotImplementedError)  # Windows opens no file in an open folder


@contextmanager
def one_at_a_time(timeout_s: float = 2.0, *, of_all: bool = True) -> Iterator[Claims]:
    """The claims, while no other process chooses; or none at all."""
    if not of_all:
        yield Claims()
        return
    try:
        fcntl: Any = importlib.import_module("fcntl")
        path = folder()
        with suppress(FileExistsError):
            path.mkdir()
            path.chmod(_ALL_MAY_ADD)
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    except (ImportError, OSError) as error:
        yield Claims(problem=f"other notebooks' choices cannot be seen: {error}")
        return
    claims = Claims(fcntl, opened)
    try:
        claims.wait(timeout_s)
        yield claims
    finally:
        # Closing is not enough: a child forked by another thread meanwhile has it too.
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


class Claims:
    """Who has chosen which GPU; `problem` is why that is not known, if it is not.

    Without a folder nobody has chosen any, and nothing is claimed.
    """

    def __init__(self, fcntl: Any = None, opened: int = -1, problem: str = "") -> None:
        self._fcntl = fcntl
        self._folder = opened
        self.problem = problem

    def wait(self, timeout_s: float) -> None:
        """Wait until no other process is choosing."""
        end_s = time.monotonic() + timeout_s
        while not self._lock(self._folder):
            if time.monotonic() > end_s:
                self.problem = "another process has been choosing for long"
                return
            time.sleep(0.002)

    def of_others(self, uuids: Iterable[str]) -> dict[str, str]:
        """Which of these GPUs other processes have chosen, and who."""
        found, own = dict[str, str](), dict(held())
        for uuid in uuids:
            if _name(uuid) in own:
                continue
            with suppress(*_NO_FOLDER):
                file = os.open(_name(uuid), os.O_RDONLY | _OPEN, dir_fd=self._folder)
                if not self._lock(file):
                    said = os.read(file, 1024).decode(errors="replace")
                    found[uuid] = printable(said, _LONGEST) or "another process"
                os.close(file)
        return found

    def take(self, uuids: Iterable[str]) -> None:
        """Claim these GPUs for this process, instead of what it claimed before."""
        wanted, own = {_name(uuid) for uuid in uuids}, dict(held())
        for name in own.keys() - wanted:
            os.close(own[name])  # a parent that has it open, too, keeps its lock
        for name in wanted - own.keys():
            with suppress(*_NO_FOLDER):
                file = self._opened(name)
                if self._lock(file):  # else it was named though another has it
                    os.ftruncate(file, 0)
                    os.write(file, f"pid {os.getpid()} of user {os.getuid()}".encode())
                else:
                    os.close(file)

    def _opened(self, name: str) -> int:
        with suppress(FileExistsError):
            new = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
            made = os.open(name, new, dir_fd=self._folder)
            os.fchmod(made, 0o666)  # whatever the umask: others are to lock it
            return made
        return os.open(name, os.O_RDWR | _OPEN, dir_fd=self._folder)

    def _lock(self, file: int) -> bool:
        with suppress(OSError):
            self._fcntl.flock(file, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
            return True
        return False


def held() -> Iterator[tuple[str, int]]:
    """The locks of this process: the system's list of its open files knows them."""
    begin = f"{folder()}{os.sep}"
    with suppress(OSError):
        for number in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):
                file = str(number.readlink())
                if file.startswith(begin):
                    yield file.removeprefix(begin), int(number.name)


def folder() -> Path:
    """The folder of the locks, which all users of this machine can add to."""
    return Path(tempfile.gettempdir()).resolve() / "gpumagic-claims"


def _name(uuid: str) -> str:
    return uuid.replace(os.sep, "_")
