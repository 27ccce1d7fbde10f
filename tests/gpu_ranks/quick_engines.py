"""Engines that begin at once: forks of a process that has imported what they import.

An engine of ipyparallel takes a second of imports, its nanny half of one, and torch
four more as soon as there is a group. Here one process has imported all of it; engines
are forked off it, and so are their nannies and the controller. To an engine torch is
not there until it imports it, as `sys.modules` is asked for that. What /proc tells of
the environment that each began with is that of the one process.

`python -m tests.gpu_ranks.quick_engines SOCKET` is that process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.asleep import OF_TORCH, Asleep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_IMPORTED = (
    "ipykernel.ipkernel",
    "ipyparallel.controller.app",
    "ipyparallel.engine.app",
)
_PLACE = "FORKS_OF_ENGINES"
_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 1 << 20
_PATIENCE_S = 60.0


class Forks:
    """Starts modules of Python in forks of one process.

    Args:
        place: The socket at which that process listens.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    def start(
        self,
        words: Sequence[str],
        files: Sequence[int],
        *,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> int:
        """Start what `python -m` would; the number of its process.

        Args:
            words: The module, and what follows on the command line.

            files: Its stdin, stdout and stderr.

            env: Its variables; those of this process without.

            folder: In which it runs.
        """
        asked = {
            "words": [*words],
            "env": dict(os.environ if env is None else env),
            "folder": str(Path(folder or ".").resolve()),
        }
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(str(self.place))
            socket.send_fds(way, [json.dumps(asked).encode()], files)
            way.shutdown(socket.SHUT_WR)
            return int(way.recv(100))


def listening(place: Path) -> Forks:
    """The process that forks, as soon as it can be asked."""
    until_s = time.monotonic() + _PATIENCE_S
    while not place.exists():
        assert time.monotonic() < until_s, "nobody listens"
        time.sleep(0.01)
    return Forks(place)


@contextlib.contextmanager
def forking(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """A process that forks, and ends with the block; its forks live on.

    In the block, processes that are started are told where it listens.

    Args:
        folder: For its socket.

        env: Its variables; those of this process without.
    """
    place = folder / "forks"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(place)],
        cwd=_ROOT,
        env=env,
        start_new_session=True,
    )
    os.environ[_PLACE] = str(place)
    try:
        yield listening(place)
    finally:
        del os.environ[_PLACE]
        process.kill()
        process.wait()


def forks_here() -> Forks:
    """The process that forks for this one and those that it has started."""
    return Forks(Path(os.environ[_PLACE]))


# ----------------------------------------------------------- the process that forks


class _Nanny:
    """Stands in for the Popen by which an engine starts its nanny.

    Args:
        forks: Where it is asked for.

        command: Its command line.

        env: Its variables.
    """

    def __init__(
        self, forks: Forks, command: Sequence[str], *, env: Mapping[str, str], **_: Any
    ) -> None:
        (at_stdin, ours), (heard, at_stdout) = os.pipe(), os.pipe()
        forks.start(command[2:], (at_stdin, at_stdout, 2), env=env)
        os.close(at_stdin)
        os.close(at_stdout)
        self.stdin, self.stdout = os.fdopen(ours, "wb"), os.fdopen(heard, "rb")


def _listen(place: Path) -> None:
    """Fork for whoever asks, until this is killed."""
    for name in _IMPORTED:
        importlib.import_module(name)
    asleep = Asleep(OF_TORCH)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _take_leave)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{place}.new")
        server.listen(64)
        Path(f"{place}.new").rename(place)
        while True:
            way, _ = server.accept()
            asked, files = _asked(way)
            pid = os.fork()
            if pid == 0:
                server.close()
                way.close()
                _become(asked, files, Forks(place), asleep)
            way.send(str(pid).encode())
            way.close()
            for each in files:
                os.close(each)


def _take_leave(*_: object) -> None:
    """Nobody else waits for forks that have ended."""
    while _has_ended():
        pass


def _has_ended() -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    return False


def _asked(way: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the files that came with it."""
    said, files, _, _ = socket.recv_fds(way, _MOST_BYTES, 3)
    while more := way.recv(_MOST_BYTES):
        said += more
    return json.loads(said), files


def _become(
    asked: Mapping[str, Any], files: Sequence[int], forks: Forks, asleep: Asleep
) -> None:
    """Run a module as if Python had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(at, mode, buffering=1) for at, mode in enumerate(("r", "w", "w"))
    )
    nanny = sys.modules["ipyparallel.engine.nanny"]
    nanny.Popen = functools.partial(_Nanny, forks)  # type: ignore[attr-defined]
    sys.meta_path.insert(0, asleep)
    module, *words = asked["words"]
    sys.argv[:], sys.path[0] = [module, *words], asked["folder"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _listen(Path(sys.argv[1]))
