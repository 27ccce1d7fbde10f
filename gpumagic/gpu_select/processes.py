"""Tells which process is meant by a number, whether it still runs, and whose it is."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own; the number never changes
_ENDED = "ZX"  # it has ended, and its parent has not asked how


class Standing(enum.Enum):
    """What can be told of a process from here."""

    ALIVE = "alive"
    GONE = "gone"
    OUT_OF_SIGHT = "out of sight"  # in another container, or on another system


@dataclass(frozen=True)
class Process:
    """One process of one boot of one machine.

    `os.exec*` leaves all of it as it is; a forked child is another process.
    """

    pid: int  # its number, in its own namespace
    start_ticks: int | None = None  # when it started, in clock ticks since the boot
    boot: str | None = None  # which boot of which machine
    # in which namespace its number counts; containers have their own
    namespace: str | None = None


def this_process() -> Process:
    """The process that asks; what only Linux can tell is None elsewhere."""
    pid = os.getpid()
    _, start_ticks = _state_and_start(pid)
    return Process(pid, start_ticks, boot(), _namespace())


def standing(process: Process) -> Standing:
    """Whether a process still runs."""
    if process.boot != boot():
        return Standing.GONE
    if process.namespace != _namespace() or os.name == "nt":
        return Standing.OUT_OF_SIGHT  # on Windows, asking by a signal would end it
    state, start_ticks = _state_and_start(process.pid)
    known = None not in (start_ticks, process.start_ticks)
    if state in _ENDED or (known and start_ticks != process.start_ticks):
        return Standing.GONE
    return Standing.ALIVE if _exists(process.pid) else Standing.GONE


def boot() -> str | None:
    """The name that Linux gives to each boot of each machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def is_mine(pid: int) -> bool | None:
    """Whether a process belongs to this user; None where that cannot be told.

    The driver gives the numbers of the machine. In a container the same number is
    another process, so there nothing is said of it.
    """
    if _namespace() != _FIRST_NAMESPACE:
        return None
    try:
        return (_PROC / str(pid)).stat().st_uid == os.getuid()
    except (OSError, AttributeError):
        return None


def _state_and_start(pid: int) -> tuple[str, int | None]:
    """The third and the 22nd field of its stat; a name before may hold anything."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "?", None
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _namespace() -> str | None:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None


def _exists(pid: int) -> bool:
    """Ask by a signal that is never sent: /proc may hide what others run."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
