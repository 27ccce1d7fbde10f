"""A request that outlives a restart of the kernel: kept once, taken once.

Loading the extension only asks whether there is one, so this file imports nothing
but what is loaded anyway.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_select import folders
from gpumagic.report.frontend import is_terminal, running_shell

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIFETIME_S = 3600.0
_PREFIX = "restart-"


class Kept(NamedTuple):
    """A request that was made before the restart.

    Attributes:
        text: The request in the user's words.

        uuids: The GPUs and slices that it meant, in its order.

        when: When it was made, in seconds since 1970.
    """

    text: str
    uuids: tuple[str, ...]
    when: float


def key(shell: Any = None) -> str | None:
    """What stays the same when this kernel is restarted; None where nothing does.

    In VS Code, which makes a new connection file for each start, it is the path of
    the notebook, elsewhere the name of the connection file, or the session's.

    Args:
        shell: The shell of this process, if it is at hand.
    """
    shell = shell or running_shell()
    if shell is None or is_terminal(shell):
        return None
    notebook = shell.user_ns.get("__vsc_ipynb_file__")
    if isinstance(notebook, str) and notebook:
        return notebook
    return _connection_file() or os.environ.get("JPY_SESSION_NAME") or None


def exists(key: str | None) -> bool:
    """Whether something is kept under this key; a look at one file's name."""
    if key is None:
        return False
    try:
        return _file(folders.private(make=False), key).exists()
    except OSError:
        return False


def keep(text: str, uuids: Iterable[str], key: str) -> None:
    """Keep a request for the next process with this key; the last one counts.

    Raises:
        OSError: It cannot be written.
    """
    import json

    now = time.time()
    folder = folders.private()
    _sweep(folder, now)
    content = {"text": text, "uuids": list(uuids), "when": now, **_place_and_process()}
    file = _file(folder, key)
    new = file.with_suffix(f".{os.getpid()}")
    try:
        with open(_open_private(new), "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def take(key: str) -> Kept | None:
    """What the process before this one has kept, which is used up by it.

    What is older than an hour, comes from another machine or boot, or cannot be
    read, is thrown away. What this very process has kept stays: there has been no
    restart yet.
    """
    try:
        file = _file(folders.private(make=False), key)
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    content = _parsed(text)
    here = _place_and_process()
    if content is not None and all(content.get(name) == here[name] for name in here):
        return None
    try:
        file.unlink()
    except OSError:
        return None  # another process was faster, or it would be used twice
    return _kept(content, here) if content is not None else None


def _connection_file() -> str | None:
    """The name of the kernel's connection file, if this is ipykernel."""
    application = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if application is None or not application.initialized():
        return None
    return Path(application.instance().connection_file).name or None


def _file(folder: Path, key: str) -> Path:
    import hashlib

    name = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32]
    return folder / f"{_PREFIX}{name}.json"


def _open_private(file: Path) -> int:
    file.unlink(missing_ok=True)
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _sweep(folder: Path, now: float) -> None:
    """Take away what nobody has come for."""
    for file in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if now - file.stat().st_mtime > _LIFETIME_S:
                file.unlink()


def _place_and_process() -> dict[str, Any]:
    import platform

    from gpumagic.gpu_select.identity import this_process

    process = this_process()
    return {
        "host": platform.node(),
        "boot": process.boot,
        "namespace": process.namespace,
        "pid": process.pid,
        "start_ticks": process.start_ticks,
    }


def _parsed(text: str) -> dict[str, Any] | None:
    import json

    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _kept(content: dict[str, Any], here: dict[str, Any]) -> Kept | None:
    text, uuids, when = (content.get(name) for name in ("text", "uuids", "when"))
    if any(content.get(name) != here[name] for name in ("host", "boot")):
        return None
    if not isinstance(text, str) or not isinstance(when, int | float):
        return None
    if not isinstance(uuids, list) or not all(isinstance(each, str) for each in uuids):
        return None
    if not time.time() - when <= _LIFETIME_S:
        return None
    return Kept(text, tuple(uuids), float(when))
