"""Jupyter kernels that a test restarts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.notebook.shells import PATIENCE_S, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Of the notebook or the editor in which the tests run.
_FORGOTTEN = ("JPY_SESSION_NAME", "VSCODE_PID")


def kernel_environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a kernel that keeps its state in this folder."""
    inherited = {k: v for k, v in environment().items() if k not in _FORGOTTEN}
    return inherited | {"XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)} | more


@contextmanager
def kernel(folder: Path, **more: str) -> Iterator[Any]:
    """A kernel's manager, as nbclient or a script has it."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(
        connection_file=str(folder / f"kernel-{os.urandom(8).hex()}")
    )
    manager.kernel_spec.argv[0] = sys.executable
    env = kernel_environment(folder, **more)
    manager.start_kernel(cwd=str(folder), env=env, stderr=subprocess.DEVNULL)
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def run(manager: Any, *cells: str) -> list[str]:
    """What each cell prints, or shows or raises, in the life that the kernel has."""
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        return [_run_cell(client, cell) for cell in cells]
    finally:
        client.stop_channels()


def text_of(kind: str, content: dict[str, Any]) -> str:
    """What one message shows."""
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
    return str(content.get("data", {}).get("text/plain", ""))


def _run_cell(client: Any, cell: str) -> str:
    shown: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        shown.append(text_of(message["header"]["msg_type"], message["content"]))

    client.execute_interactive(cell, timeout=PATIENCE_S, output_hook=hear)
    return "".join(shown).strip()
