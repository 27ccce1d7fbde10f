"""Keeps a request over a restart of the kernel, and restarts it from inside."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.notebook.faults import CellEvents
from gpumagic.report.frontend import front_end, is_terminal, running_shell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.gpu_select.report import SelectReport

_LIFETIME_S = 3600.0
_FORMS = ("index", "uuid")
_PREFIX = "restart-"
_ONLY_OWNER = 0o700
_SESSION = "JPY_SESSION_NAME"
_REPLY_S = 0.2  # until the reply of the cell is out
_PATIENCE_S = 5.0  # as long as Jupyter itself waits for a kernel to end


class Kept(NamedTuple):
    """A request that was made before the restart."""

    text: str  # the request in the user's words
    uuids: tuple[str, ...]  # the GPUs and slices that it meant, in its order
    when: float  # when it was made, in seconds since 1970
    form: str | None = None  # how the variable was to name them, if that was said
    force: bool = False  # whether it was to leave the limit of the process


def key(shell: Any = None) -> str | None:
    """What stays the same when this kernel is restarted; None where nothing does.

    In VS Code, which makes a new connection file for each start, it is the path of
    the notebook, elsewhere the name of the connection file, or the session's.
    """
    shell = shell or running_shell()
    if shell is None or is_terminal(shell):
        return None
    notebook = shell.user_ns.get("__vsc_ipynb_file__")
    if isinstance(notebook, str) and notebook:
        return notebook
    return _connection_file() or os.environ.get("JPY_SESSION_NAME") or None


def keep(  # noqa: PLR0913 -- one for each thing that is kept
    folder: Path,
    text: str,
    uuids: Iterable[str],
    key: str,
    *,
    form: str | None = None,
    force: bool = False,
) -> None:
    """Keep a request for the next process with this key; the last one counts."""
    import json

    from gpumagic.gpu_select.claims import make_folder

    now = time.time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder, _ONLY_OWNER)
    _sweep(folder, now)
    said = {"text": text, "uuids": list(uuids), "form": form, "force": force}
    content = {**said, "when": now, **_place_and_process()}
    file = _file(folder, key)
    new = file.with_suffix(f".{os.getpid()}")
    try:
        with open(_open_private(new), "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def take(folder: Path, key: str) -> Kept | None:
    """What the process before this one has kept, which is used up by it.

    What is older than an hour, comes from another machine or boot, or cannot be
    read, is thrown away. What this very process has kept stays: there has been no
    restart yet.
    """
    file = _file(folder, key)
    try:
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

    from gpumagic.gpu_select.processes import this_process

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
    form = content.get("form")
    form = form if form in _FORMS else None
    return Kept(text, tuple(uuids), float(when), form, content.get("force") is True)


# ---------------------------------------------------------------- the restart


def restart(shell: Any, *, what: str = "your choice") -> str:
    """Restart this kernel if it will be brought up again, and say what comes next.

    The kernel ends once the cell's reply is out; no other cell runs in it. Where
    nobody would start it again, nothing is ended, and the user is told what to do.
    """
    then = f"then %load_ext gpumagic takes {what} again"
    if shell is None or is_terminal(shell):
        return f"Nothing is kept here: leave, and start again with {what} set."
    if comes_back(shell):
        _Ending(shell).begin()
        return (
            "The kernel ends now, and Jupyter starts it again within a few seconds, "
            f"perhaps saying that it has died; {then}."
        )
    return f"Restart the kernel now ({_way(shell)}); {then}."


def without_keeping(report: SelectReport) -> str:
    """What to type where no request can be kept, a terminal for one."""
    mask = shlex.quote(_mask(report))
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={mask}"
    return f"Nothing is kept here: leave, and start again with {variables} ipython"


def comes_back(shell: Any) -> bool:
    """Whether a Jupyter server starts this kernel again when it ends."""
    session = os.environ.get(_SESSION)
    return (
        session is not None
        and front_end(shell) == "JupyterLab or Notebook"
        and hasattr(getattr(shell, "kernel", None), "io_loop")
        and not _is_inherited(session)
    )


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


def _way(shell: Any) -> str:
    return {
        "VS Code": "Restart, above the notebook",
        "Google Colab": "Runtime, Restart session",
        "Kaggle": "Run, Restart session",
        "Spyder": "Consoles, Restart kernel",
    }.get(front_end(shell), "Kernel, Restart")


def _mask(report: SelectReport) -> str:
    """Numbers where they mean the same to all who read them, UUIDs else."""
    rows = report.rows
    chosen = sorted(
        (row for row in rows if row.predicted is not None),
        key=lambda row: row.predicted or 0,
    )
    by_address = sorted(rows, key=lambda row: row.pci_address or "")
    whole = all(row.pci_address and row.uuid and not row.is_slice for row in rows)
    if whole and [row.physical for row in by_address] == list(range(len(rows))):
        return ",".join(str(row.physical) for row in chosen) or "-1"
    return ",".join(row.uuid or str(row.physical) for row in chosen) or "-1"
