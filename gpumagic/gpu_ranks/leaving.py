"""Ends the groups of a process, also where it waits in one and hears no Ctrl-C.

Whoever waits in gloo waits in C++, for a rank that may never come; and torch's `abort`
does nothing there. But gloo and the store hear of connections that end, at both sides:
so those of this process are shut down beneath them, by a thread that does not wait.
Which ones they are Linux tells: the sockets that gloo's own threads listen to. What is
held by models under DDP, by variables or tracebacks makes no difference to that.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import on_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_GLOO = "gloo_tcp_loop"  # what gloo calls a thread that listens to connections
_THREADS, _FILES = Path("/proc/self/task"), Path("/proc/self/fdinfo")
_LISTENED = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)
_TRIES, _PAUSE_S = 50, 0.002  # until a thread waits: one that works does not tell
_MORE_S = 3.0  # in which torch ends what has nothing to do, with several groups
_ENDS_S = 10.0


def free() -> None:
    """End what this process waits for in its groups, with errors where it waits.

    It is called beside the line that waits, so it must not wait for anything itself.
    """
    for group in _groups():  # NCCL's own way, and nothing of gloo's
        _beside(getattr(group, "abort", None))
    disconnect()


def disconnect() -> int:
    """Shut down what gloo and the store of this process are connected by; how many."""
    port = _store_port()
    ways = [each for each in _sockets_of_gloo() if not _is_listening(each)]
    ways += [each for each in _sockets() if port is not None and _leads_to(each, port)]
    return sum(_shut(each) for each in dict.fromkeys(ways))


def leave(asked: dict[str, Any]) -> dict[str, Any]:
    """Leave the group of this process, if there is one."""
    if asked.get("awaited", True):
        disconnect()
    try:
        end_group()
    except GpuMagicError as error:
        return on_rank.seat(asked["engine"]) | {"refused": error.problem}
    return on_rank.seat(asked["engine"])


def end_group() -> None:
    """End torch.distributed here, if it has begun, and whatever still runs in it."""
    distributed = _distributed()
    if distributed is None:
        return
    ending = _beside(distributed.destroy_process_group)
    ending.join(_MORE_S)
    if ending.is_alive():  # it waits for calls that others have not come to
        disconnect()
        ending.join(_ENDS_S)
    if ending.is_alive() and distributed.is_initialized():
        raise GpuMagicError(
            "torch does not come back from destroy_process_group()",
            "restart this engine",
        )
    _let_go_of_errors(distributed.__name__.replace(".", os.sep))
    gc.collect()


def _beside(call: Callable[[], object] | None) -> threading.Thread:
    """Call something that may never come back; what it raises nobody can use."""

    def run() -> None:
        with contextlib.suppress(Exception):
            if call is not None:
                call()

    thread = threading.Thread(target=run, name="gpumagic-leaving", daemon=True)
    thread.start()
    return thread


def _let_go_of_errors(folder: str) -> None:
    """Clear what the last error has kept of torch's frames: the group is among it."""
    trace = getattr(sys, "last_traceback", None)
    within = f"{os.sep}{folder}{os.sep}"
    while trace is not None:
        if within in trace.tb_frame.f_code.co_filename:
            with contextlib.suppress(RuntimeError):  # it still runs
                trace.tb_frame.clear()
        trace = trace.tb_next


def _distributed() -> Any:
    """torch.distributed, where this process has a group; else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return distributed if distributed.is_initialized() else None


def _groups() -> list[Any]:
    distributed = _distributed()
    groups = getattr(distributed, "distributed_c10d", None)
    return list(getattr(getattr(groups, "_world", None), "pg_map", ()))


# ------------------------------------------------------------------- connections


def _sockets_of_gloo() -> list[int]:
    """What gloo's threads listen to; empty on another system than Linux."""
    found: list[int] = []
    for thread in _each(_THREADS):
        if _text(thread / "comm").strip() == _GLOO:
            found += _sockets_at(thread)
    return found


def _sockets_at(thread: Path) -> list[int]:
    """What a thread of gloo's waits for: it does nothing else, and not for long."""
    for _ in range(_TRIES):
        said = _text(thread / "syscall").split()
        listened = _listened(int(said[1], 16)) if len(said) > 1 else []
        if listened:
            return listened
        time.sleep(_PAUSE_S)
    return []


def _listened(events: int) -> list[int]:
    """The sockets among what is listened to by way of one file of Linux's epoll."""
    named = map(int, _LISTENED.findall(_text(_FILES / str(events))))
    return [each for each in named if _is_socket(each)]


def _sockets() -> list[int]:
    names = (each.name for each in _each(_FILES))
    return [each for each in map(int, names) if _is_socket(each)]


def _is_socket(file: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.fstat(file).st_mode)
    return False


def _each(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):  # it has gone meanwhile
        return file.read_text()
    return ""


def _is_listening(file: int) -> bool:
    with contextlib.suppress(OSError), _opened(file) as way:
        return bool(way.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _leads_to(file: int, port: int) -> bool:
    with contextlib.suppress(OSError), _opened(file) as way:
        at = way.getpeername()
        return isinstance(at, tuple) and at[1] == port
    return False


def _shut(file: int) -> bool:
    with contextlib.suppress(OSError), _opened(file) as way:  # it may be shut by now
        way.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _opened(file: int) -> socket.socket:
    """One more way to the same connection; the file stays torch's."""
    return socket.socket(fileno=os.dup(file))


def _store_port() -> int | None:
    """Where the store of this process's group is; None where it has no port."""
    groups = getattr(_distributed(), "distributed_c10d", None)
    with contextlib.suppress(Exception):  # private, and of several kinds
        store = groups._get_default_store()  # type: ignore[union-attr] # noqa: SLF001
        for _ in range(8):  # a store may be a part of another one
            if hasattr(store, "port"):
                return int(store.port)
            store = store.underlying_store
    return None
