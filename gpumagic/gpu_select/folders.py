"""Where processes leave word for each other: one folder for all users, one's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SHARED = "gpumagic-claims"
_PRIVATE = "gpumagic"
_ALL_MAY_ADD = 0o1777  # as /tmp: whoever made a file may take it away
_ONLY_OWNER = 0o700


def shared(*, make: bool = True) -> Path:
    """The folder of claims, which all users of this machine can add to.

    Args:
        make: Whether to make it if it is missing.

    Raises:
        OSError: There is none, or what bears its name is no folder.
    """
    folder = _temporary() / _SHARED
    if make:
        _make(folder, _ALL_MAY_ADD)
    # Any user can put a link there: it is looked at, not followed.
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(20, "This is not a folder", str(folder))
    return folder


def private(*, make: bool = True) -> Path:
    """The folder of what one user keeps, which nobody else can read.

    Args:
        make: Whether to make it if it is missing.

    Raises:
        OSError: It cannot be made, or there is no home to make it in.
    """
    folder = _state_home() / _PRIVATE
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(folder, _ONLY_OWNER)
    return folder


def _make(folder: Path, mode: int) -> None:
    """Make a folder of exactly this mode; put right one of ours."""
    try:
        folder.mkdir(mode)
    except FileExistsError:
        found = folder.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == _own_uid()
        if not is_ours or stat.S_IMODE(found.st_mode) == mode:
            return
    folder.chmod(mode)  # mkdir leaves out what the umask says


def _own_uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _temporary() -> Path:
    import tempfile

    found = Path(tempfile.gettempdir())
    # Where no folder for temporary files can be written to, the answer is the
    # working directory: a user's, which is no place for claims.
    if found == Path.cwd() and not found.stat().st_mode & stat.S_ISVTX:
        raise FileNotFoundError(2, "No folder for temporary files can be written to")
    return found


def _state_home() -> Path:
    named = os.environ.get("XDG_STATE_HOME", "")
    if Path(named).is_absolute():
        return Path(named)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FileNotFoundError(2, "There is no home directory") from error
