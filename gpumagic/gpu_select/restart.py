"""A restart from inside, where Jupyter brings a kernel up again that has ended."""

from __future__ import annotations

import os
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.notebook.faults import CellEvents
from gpumagic.report.frontend import front_end, is_terminal

if TYPE_CHECKING:
    from gpumagic.gpu_select.report import SelectReport

_SESSION = "JPY_SESSION_NAME"
_REPLY_S = 0.2  # until the reply of the cell is out
_PATIENCE_S = 5.0  # as long as Jupyter itself waits for a kernel to end


def restart(shell: Any, *, what: str = "your choice") -> str:
    """Restart this kernel if it will be brought up again, and say what comes next.

    The kernel ends once the cell's reply is out; no other cell runs in it. Where
    nobody would start it again, nothing is ended, and the user is told what to do.

    Args:
        shell: The shell of this process.

        what: What the extension takes again, as in "GPU 2"; it has been kept.
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
    """What to type where no request can be kept, a terminal for one.

    Args:
        report: What would have been chosen.
    """
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
