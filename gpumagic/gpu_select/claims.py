"""Keeps advisory claims: notebooks that ask at once get different GPUs.

Each process has one file in a folder of all users, and nobody writes into another's:
no user needs rights to what is not theirs, and a spoilt file spoils one claim only.
The lock is on the folder itself, so there is no file of it to own or to lose.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_select.processes import Process, Standing, standing, this_process
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FOLDER = "gpumagic-claims"
_ALL_MAY_ADD = 0o1777  # as /tmp: whoever made a file may take it away
_PREFIX = "claim-"
_LARGEST_BYTES = 64 * 1024
_OUT_OF_SIGHT_S = 8 * 3600.0  # for so long a process that cannot be seen is believed
_BETWEEN_TRIES_S = 0.002
_MINUTE_S = 60
_LONGEST_NAME = 32


@dataclass(frozen=True)
class Claim:
    """That a process has chosen a GPU, or a slice of one."""

    uuid: str  # what is claimed
    holder: Process  # the process
    user: str  # whose process it is
    when: float  # since when, in seconds since 1970
    # whether it comes from another container, so that its process can be neither seen
    # nor found by its number
    out_of_sight: bool = False

    def text(self, now: float) -> str:
        """Who holds it and since when, at a time in seconds since 1970.

        >>> Claim("GPU-1a2b", Process(4242), "anna", when=1000.0).text(now=1190.0)
        'pid 4242 of anna, 3 min ago'
        """
        place = " in another container" if self.out_of_sight else ""
        return f"pid {self.holder.pid} of {self.user}{place}, {_ago(now - self.when)}"

    def __str__(self) -> str:
        return self.text(time.time())


class HeldClaims:
    """The claims of this machine, held open; nothing in them raises an `OSError`.

    Attributes:
        problem: Why claims are not kept as they should be, in words; the first
            reason if there are several, and None if all is well.
    """

    def __init__(self, folder: int | None, problem: str | None = None) -> None:
        self._folder = folder
        self.problem = problem

    def others(self) -> dict[str, Claim]:
        """What living processes other than this one claim, by UUID.

        What the dead have left is taken away, as far as that is allowed.
        """
        if self._folder is None:
            return {}
        own = _file_name(this_process())
        names = self._names()
        claims = [each for name in names if name != own for each in self._living(name)]
        return {each.uuid: each for each in sorted(claims, key=lambda each: each.when)}

    def take(self, uuids: Iterable[str]) -> None:
        """Claim these GPUs for this process, instead of what it claimed before.

        They are claimed until `release`, or until the process ends, in whatever way.
        """
        claimed = tuple(uuids)
        if self._folder is None:
            return
        me = this_process()
        name = _file_name(me)
        if not claimed:
            self._remove(name)
            return
        try:
            self._write(name, claim_text(claimed, me, time.time()))
        except OSError as error:
            self._note(f"other notebooks cannot be told what is chosen here: {error}")
            self._remove(f".{name}")
            self._remove(name)
            return
        atexit.unregister(release)
        atexit.register(release)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                found = [entry.name for entry in entries]
        except OSError as error:
            self._note(f"claims of other notebooks cannot be read: {error}")
            return []
        return sorted(name for name in found if name.startswith(_PREFIX))

    def _living(self, name: str) -> list[Claim]:
        """The claims of one file, which is taken away if nobody stands behind it."""
        claims = self._claims(name)
        if not claims:
            return []
        match standing(claims[0].holder):
            case Standing.ALIVE:
                return claims
            case Standing.OUT_OF_SIGHT if (
                time.time() - claims[0].when < _OUT_OF_SIGHT_S
            ):
                return [replace(each, out_of_sight=True) for each in claims]
        self._remove(name)
        return []

    def _claims(self, name: str) -> list[Claim]:
        try:
            return claims_in(self._read(name))
        except FileNotFoundError:
            pass  # released just now
        except OSError as error:
            self._note(f"a claim of another notebook cannot be read: {error}")
        except ValueError:
            self._note(f"a claim of another notebook makes no sense: {name}")
            self._remove(name)
        return []

    def _read(self, name: str) -> str:
        # Anybody may have put it there: a link is not followed, a pipe not waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(name, flags, dir_fd=self._folder)
        try:
            return os.read(file, _LARGEST_BYTES).decode()
        finally:
            os.close(file)

    def _write(self, name: str, text: str) -> None:
        """Write beside and rename: nobody ever sees half a claim."""
        new = f".{name}"
        self._remove(new)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(new, flags, 0o644, dir_fd=self._folder)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            os.fchmod(file, 0o644)  # whatever the umask: others are to read it
            stream.write(text)
        os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _remove(self, name: str) -> None:
        with suppress(OSError):  # it may be another user's
            os.unlink(name, dir_fd=self._folder)

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


@contextmanager
def held_open(timeout_s: float = 2.0) -> Iterator[HeldClaims]:
    """The claims of this machine, while no other process reads or changes them.

        with claims.held_open() as held:
            taken = held.others()
            ...
            held.take(uuids)

    Where that is not possible, they do what they can, and say what they cannot.
    """
    try:
        fcntl: Any = importlib.import_module("fcntl")
    except ImportError:
        yield HeldClaims(None, "claims on GPUs are not known on this system")
        return
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        folder = os.open(shared_folder(), flags)
    except OSError as error:
        yield HeldClaims(None, f"other notebooks' claims cannot be looked up: {error}")
        return
    held = HeldClaims(folder, _lock(fcntl, folder, timeout_s))
    try:
        yield held
    finally:
        # Closing is not enough: a child forked by another thread meanwhile has it too.
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def release() -> None:
    """Give up what this process claims; another's, a parent's too, stays."""
    with suppress(OSError):
        (shared_folder(make=False) / _file_name(this_process())).unlink()


def _lock(fcntl: Any, folder: int, timeout_s: float) -> str | None:
    """Lock a folder, or say why it is not locked."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                waited = seconds_text(timeout_s)
                return f"another process has kept the claims locked for {waited}"
            time.sleep(_BETWEEN_TRIES_S)
        except OSError as error:
            return f"claims cannot be locked here: {error}"
        else:
            return None


def _file_name(process: Process) -> str:
    """One name for each process: numbers come again, and containers have their own."""
    namespace = "".join(filter(str.isdigit, process.namespace or ""))
    return f"{_PREFIX}{process.pid}-{process.start_ticks}-{namespace}.json"


# -------------------------------------------------------- a claim as a file holds it


def claim_text(uuids: Iterable[str], holder: Process, when: float) -> str:
    """What the file of a process says that claims these GPUs."""
    return json.dumps(
        {
            "uuids": list(uuids),
            "pid": holder.pid,
            "start_ticks": holder.start_ticks,
            "boot": holder.boot,
            "namespace": holder.namespace,
            "user": _user(),
            "when": when,
        }
    )


def claims_in(text: str) -> list[Claim]:
    """The claims of a file."""
    try:
        match json.loads(text):
            case {
                "uuids": [*uuids],
                "pid": int(pid),
                "start_ticks": int() | None as start_ticks,
                "boot": str() | None as boot,
                "namespace": str() | None as namespace,
                "user": str(user),
                "when": int() | float() as when,
            } if pid > 0 and math.isfinite(when) and all(map(_is_word, uuids)):
                holder = Process(pid, start_ticks, boot, namespace)
                name = _plain(user)
                return [Claim(uuid, holder, name, float(when)) for uuid in uuids]
    except (RecursionError, OverflowError) as error:
        raise ValueError(text) from error
    raise ValueError(text)


def _ago(seconds: float) -> str:
    """Whole seconds, from a minute on whole minutes."""
    whole = max(int(seconds), 0)
    if whole >= _MINUTE_S:
        whole -= whole % _MINUTE_S
    return f"{seconds_text(whole)} ago" if whole else "just now"


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


def _plain(name: str) -> str:
    """A name that does nothing to a screen."""
    letters = "".join(letter for letter in name if letter.isprintable())
    return letters[:_LONGEST_NAME] or "an unknown user"


# ---------------------------------------------------------------- the folder


def shared_folder(*, make: bool = True) -> Path:
    """The folder of claims, which all users of this machine can add to."""
    folder = _temporary() / _FOLDER
    if make:
        make_folder(folder, _ALL_MAY_ADD)
    # Any user can put a link there: it is looked at, not followed.
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(20, "This is not a folder", str(folder))
    return folder


def make_folder(folder: Path, mode: int) -> None:
    """Make a folder of exactly this mode; put right one of ours."""
    try:
        folder.mkdir(mode)
    except FileExistsError:
        found = folder.lstat()
        own_uid = os.getuid() if hasattr(os, "getuid") else 0
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == own_uid
        if not is_ours or stat.S_IMODE(found.st_mode) == mode:
            return
    folder.chmod(mode)  # mkdir leaves out what the umask says


def _temporary() -> Path:
    import tempfile

    found = Path(tempfile.gettempdir())
    # Where no folder for temporary files can be written to, the answer is the
    # working directory: a user's, which is no place for claims.
    if found == Path.cwd() and not found.stat().st_mode & stat.S_ISVTX:
        raise FileNotFoundError(2, "No folder for temporary files can be written to")
    return found
