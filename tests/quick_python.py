"""Programs that begin at once: forks of a process that has imported what they import.

Half a second of imports goes before the first line of an IPython, two more before that
of torch, and hundreds of tests need a process of their own. Here one process has
imported all of it, once. To a program nothing of it is there until it imports it, as
`sys.modules` is asked for that; its arguments, variables, folder and end are its own.

What Python or the C library reads at its very start stays as it was: options but `-W`,
variables such as `PYTHONHASHSEED`, and `LD_LIBRARY_PATH`; and at its end no module is
taken apart, which with torch takes a fifth of a second. Whoever needs one of these, or
asks which modules a program began with, starts a process.

`python -m tests.quick_python torch` is the one that forks.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from tests.asleep import TORCH_ALONE, Asleep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[1]
_OF_SHELLS = ("IPython", "IPython.core.completer", "ipykernel.kernelapp")
_OF_TESTS = ("pytest",)
_FILES = ("stdin", "stdout", "stderr")
_PATIENCE_S = 300.0
_POLL_S = 0.02


# The same in a process that is started, for who needs one.
anew = functools.partial(subprocess.run, capture_output=True, text=True, check=False)


def run(  # noqa: PLR0913 -- as subprocess.run
    command: Sequence[str],
    *,
    input: str = "",  # noqa: A002 -- likewise
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = _PATIENCE_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run, with its output kept, for a program of this Python."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        files = [Path(folder, name) for name in _FILES]
        files[0].write_text(input)
        asked = {"files": [*map(str, files)], "timeout": timeout}
        status = _ask(_program(command, env, cwd) | asked)
        said = [each.read_text() if each.exists() else "" for each in files[1:]]
    if status is None:
        raise subprocess.TimeoutExpired(command, timeout, *said)
    done = subprocess.CompletedProcess([*command], status, *said)
    if check:
        done.check_returncode()
    return done


class Started:
    """A program that goes on by itself, and says nothing; asked as a Popen is."""

    stdin = stdout = stderr = None

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        first: str | None = None,
        torch: Sequence[str] = TORCH_ALONE,
    ) -> None:
        self.pid: int = _ask(_program(command, env, cwd) | {"first": first}, torch)

    def poll(self) -> int | None:
        """None while it is there; how it has ended is not known."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        """Until it has ended."""
        while self.poll() is None:
            time.sleep(_POLL_S)
        return 0

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _program(
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
) -> dict[str, Any]:
    return {
        "command": [*map(str, command[1:])],
        "env": dict(os.environ if env is None else env),
        "cwd": str(Path(cwd or ".").resolve()),
    }


_one_at_a_time = threading.Lock()


def _ask(wanted: Mapping[str, Any], torch: Sequence[str] = TORCH_ALONE) -> Any:
    with _one_at_a_time:
        server = _server_of(os.getpid(), *torch)
        print(json.dumps(wanted), file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())


@functools.cache
def _server_of(_: int, *torch: str) -> subprocess.Popen[str]:
    """The process that forks for this one; a fork of this one has its own."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, *torch],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # it ends with what it reads
    return server


# ----------------------------------------------------------- the process that forks


def main() -> None:
    """Fork a program for each line that is read, and tell of its end or beginning."""
    asleep: list[Asleep] = []
    for names in (_OF_SHELLS, sys.argv[1:], _OF_TESTS):
        asleep.append(Asleep(names))
        # What the next brings, too, is to be the same module.
        sys.meta_path.insert(0, asleep[-1])
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _bury)
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    for line in asked:
        wanted = json.loads(line)
        goes_on = "timeout" not in wanted
        pid = os.fork()
        if pid == 0:
            asked.close()
            if goes_on:
                # Whoever reads this asks for its group, which gets the signals.
                os.setsid()
                print(os.getpid(), file=answers)
            answers.close()
            _become(wanted, asleep)
            _end_with(_run(wanted["command"]))
        if goes_on:
            _on_their_own.add(pid)
            _bury()
        else:
            print(json.dumps(_end_of(pid, wanted["timeout"])), file=answers)


_on_their_own: set[int] = set()  # for whom nobody else waits


def _bury(*_: object) -> None:
    """Let those go that have ended: they would seem to be there."""
    for pid in tuple(_on_their_own):
        # The signal may come while this looks already.
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _on_their_own.discard(pid)


def _end_of(pid: int, timeout_s: float) -> int | None:
    """How a fork has ended, as a Popen says it; None if its time was over."""
    ending = os.pidfd_open(pid)
    try:
        in_time = select.select([ending], [], [], timeout_s)[0]
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(ending)
    return status if in_time else None


def _become(wanted: Mapping[str, Any], asleep: Sequence[Asleep]) -> None:
    """Be a process as if Python had been started for the program."""
    atexit._clear()  # what is to be done at the end of the one that forks
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    _open(wanted.get("files", [os.devnull] * len(_FILES)))
    options = wanted["env"].get("PYTHONWARNINGS", "").split(",")
    command = wanted["command"]
    options += [command[at + 1] for at in range(0, _first_word(command), 2)]
    for option in filter(None, options):
        warnings._setoption(option)  # type: ignore[attr-defined]
    added = wanted["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = dict.fromkeys(["", *filter(None, added), *sys.path[1:]])
    if first := wanted.get("first"):
        module, _, name = first.partition(":")
        getattr(importlib.import_module(module), name)(asleep)


def _open(files: Sequence[str]) -> None:
    """Read and write these from now on."""
    modes = os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND] * 2
    for at, (file, mode) in enumerate(zip(files, modes, strict=True)):
        opened = os.open(file, mode, 0o600)
        os.dup2(opened, at)
        os.close(opened)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _first_word(command: Sequence[str]) -> int:
    """Where the program stands in a command line, behind its warnings."""
    return next(at for at in range(0, len(command), 2) if command[at] != "-W")


def _run(command: Sequence[str]) -> int:
    """Run the program, and tell with which status it ends."""
    how, what, *words = command[_first_word(command) :]
    sys.argv[:] = [how, *words]
    try:
        if how == "-m":
            sys.path[0] = str(Path.cwd())
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            vars(module)["__builtins__"] = builtins
            exec(compile(what, "<string>", "exec"), vars(module))  # noqa: S102
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 -- as Python itself does
        within = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, within)
        return 1
    return 0


def _end_with(status: int) -> NoReturn:
    """End as Python does, but for taking modules apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # Not the module that runs here: that is `__main__`, which is the program's own.
    importlib.import_module("tests.quick_python").main()
