"""Keeps a request over a restart of the kernel, and restarts it from inside."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.notebook.faults import CellEvents
from gpumagic.report.frontend import front_end, is_terminal

if TYPE_CHECKING:
    from gpumagic.gpu_select.answer_gpus import SelectReport
    from gpumagic.gpu_select.request import Request

_LIFETIME_S = 3600.0
_SESSION = "JPY_SESSION_NAME"
_REPLY_S = 0.2  # until the reply of the cell is out
_PATIENCE_S = 5.0  # as long as Jupyter itself waits for a kernel to end


class Kept(NamedTuple):
    """A request that was made before the restart."""

    text: str  # the request in the user's words
    uuids: tuple[str, ...]  # what it meant, in its order; none where one is unknown
    force: bool = False  # whether it was to leave the limit of the process


def keep(file: Path, key: str, request: Request, report: SelectReport) -> None:
    """Keep a request, with what it has come to, for the next process with this key."""
    uuids = [row.uuid for row in report.mapped("predicted")]
    content = {
        "key": key,
        "text": request.text,
        "uuids": uuids if all(uuids) else [],
        "force": request.force,
        "when": time.time(),
        "process": _this_process(),
    }
    new = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        _sweep(file.parent)
        new.touch(0o600)
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise GpuMagicError(
            f"the choice cannot be kept over a restart: {error}",
            f"restart the kernel, then type %gpu_select {request.text} first",
        ) from None


def take(file: Path, key: str) -> Kept | None:
    """What the process before this one has kept, which is used up by it.

    What is older than an hour, comes from another machine, or cannot be read, is
    thrown away. What this very process has kept stays: there has been no restart yet.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    except (ValueError, RecursionError):
        content = None
    here = _this_process()
    kept = None
    match content:
        case {
            "key": str(own),
            "text": str(text),
            "uuids": [*uuids],
            "force": bool(force),
            "when": int() | float() as when,
            "process": [host, *_] as process,
        } if own == key and all(isinstance(each, str) for each in uuids):
            if process == here:
                return None
            if host == here[0] and time.time() - when <= _LIFETIME_S:
                kept = Kept(text, tuple(uuids), force)
    try:
        file.unlink()
    except OSError:
        return None  # another process was faster, or it would be used twice
    return kept


def _sweep(folder: Path) -> None:
    """Take away what nobody has come for."""
    for old in folder.glob("restart-*"):
        if time.time() - old.stat().st_mtime > _LIFETIME_S:
            old.unlink(missing_ok=True)


def _this_process() -> list[Any]:
    """The machine, the process's number, and when it started: numbers come again."""
    try:
        stat = Path("/proc/self/stat").read_text(errors="replace")
    except OSError:
        return [platform.node(), os.getpid(), None]
    return [platform.node(), os.getpid(), stat.rpartition(")")[2].split()[19]]


# ---------------------------------------------------------------- the restart


def restart(shell: Any, *, what: str) -> str:
    """Restart this kernel if it will be brought up again, and say what comes next.

    The kernel ends once the cell's reply is out; no other cell runs in it. Where
    nobody would start it again, nothing is ended, and the user is told what to do.
    """
    then = f"then %load_ext gpumagic takes {what} again"
    if comes_back(shell):
        _Ending(shell).begin()
        return (
            "The kernel ends now, and Jupyter starts it again within a few seconds, "
            f"perhaps saying that it has died; {then}."
        )
    way = {
        "VS Code": "Restart, above the notebook",
        "Google Colab": "Runtime, Restart session",
        "Kaggle": "Run, Restart session",
        "Spyder": "Consoles, Restart kernel",
    }.get(front_end(shell), "Kernel, Restart")
    return f"Restart the kernel now ({way}); {then}."


def without_keeping(report: SelectReport) -> str:
    """What to type where no request can be kept, a terminal for one."""
    chosen = report.mapped("predicted")
    mask = ",".join(row.uuid or str(row.physical) for row in chosen) or "-1"
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={shlex.quote(mask)}"
    return f"Nothing is kept here: leave, and start again with {variables} ipython"


def comes_back(shell: Any) -> bool:
    """Whether a Jupyter server starts this kernel again when it ends."""
    session = os.environ.get(_SESSION)
    return (
        session is not None
        and not is_terminal(shell)
        and front_end(shell) == "JupyterLab or Notebook"
        and hasattr(getattr(shell, "kernel", None), "io_loop")
        and not _is_inherited(session)
    )


def _is_inherited(session: str) -> bool:
    """Whether the name is that of a notebook in which this kernel was started.

    A server gives each kernel its name and has none itself. A kernel that a notebook
    has started has got it from there, and nobody watches over it.
    """
    try:
        parent = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{_SESSION}={session}") in parent.split(b"\0")


class _Ending:
    """The end of a kernel, as `exit()` brings it about, after the running cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._cells = CellEvents(shell, "%gpu_select --restart", after=self._after_cell)

    def begin(self) -> None:
        self._cells.put_in()

    def _after_cell(self, *_: Any) -> None:
        self._cells.take_out()
        # Cells that wait in the queue would run in a kernel that is about to end.
        self._shell.input_transformers_cleanup.insert(0, _refuse)
        loop = self._shell.kernel.io_loop
        loop.add_callback(loop.call_later, _REPLY_S, self._leave)

    def _leave(self) -> None:
        """Stop the kernel's loop; history and `atexit` follow as at any exit."""
        # Threads of the user's can keep an ending process alive for ever.
        last_resort = threading.Timer(_PATIENCE_S, os._exit, (0,))
        last_resort.daemon = True
        last_resort.start()
        self._shell.exit_now = True


def _refuse(_: list[str]) -> list[str]:
    raise GpuMagicError(
        "this cell has not run: the kernel is being restarted",
        "run it again once the kernel is back",
    )
