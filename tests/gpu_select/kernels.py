"""Jupyter kernels that are restarted, by a test or as a server does it."""

from __future__ import annotations

import asyncio
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

LOOK = """
from types import SimpleNamespace
from gpumagic.gpu_select import restart
from gpumagic.gpu_select.notebook import kept_file, key_of
from gpumagic.gpu_select.request import read

key = key_of(get_ipython())
nothing = SimpleNamespace(mapped=lambda _: [])

def keep():
    restart.keep(kept_file(key), key, read("2"), nothing)

def take():
    return restart.take(kept_file(key), key)

print(key)
"""
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


class ServedKernel:
    """A kernel as a Jupyter server has it: what ends is started again."""

    def __init__(self, folder: Path, **more: str) -> None:
        from jupyter_client.ioloop import AsyncIOLoopKernelManager

        self.environment = kernel_environment(folder, **more)
        self.manager = AsyncIOLoopKernelManager(
            connection_file=str(folder / "kernel-served.json"), autorestart=True
        )
        self.manager.kernel_spec.argv[0] = sys.executable
        self.client: Any = None

    async def start(self) -> None:
        """Start it, and look after it more often than a server does."""
        await self.manager.start_kernel(env=self.environment, stderr=subprocess.DEVNULL)
        restarter = self.manager._restarter
        restarter.stop()
        restarter.time_to_dead = 0.2
        restarter.start()

    async def connect(self) -> None:
        """Listen to the life that it has now."""
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=PATIENCE_S)

    async def run(self, *cells: str) -> list[tuple[str, str]]:
        """Send all cells at once; how each ended, and what it showed."""
        sent = [self.client.execute(cell) for cell in cells]
        shown = dict.fromkeys(sent, "")
        idle: set[str] = set()
        while idle < set(sent):
            message = await self.client.get_iopub_msg(timeout=PATIENCE_S)
            cell = message["parent_header"].get("msg_id")
            kind, content = message["header"]["msg_type"], message["content"]
            if cell in shown and kind in ("stream", "error"):
                shown[cell] += text_of(kind, content)
            if cell in shown and content.get("execution_state") == "idle":
                idle.add(cell)
        status: dict[str, str] = {}
        while not status.keys() >= set(sent):  # answers to `connect` may come late
            reply = await self.client.get_shell_msg(timeout=PATIENCE_S)
            status[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
        return [(status[each], shown[each].strip()) for each in sent]

    async def next_life(self, pid: int) -> None:
        """Wait until another process than this one is the kernel."""
        has_come = False
        while not has_come:
            await asyncio.sleep(0.05)
            has_come = await self.manager.is_alive() and self.pid != pid

    @property
    def pid(self) -> int:
        """The process that the kernel is now."""
        return self.manager.provisioner.pid

    async def stop(self) -> None:
        """End it for good."""
        if self.client is not None:
            self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)


async def lives(folder: Path, first: list[str], second: list[str]) -> Any:
    """What cells of two lives come to, between which the kernel restarts itself."""
    served = ServedKernel(folder, JPY_SESSION_NAME="folder/notebook.ipynb")
    await served.start()
    try:
        await served.connect()
        pid = served.pid
        before = await served.run(*first)
        await asyncio.wait_for(served.next_life(pid), timeout=PATIENCE_S)
        await served.connect()
        return before, await served.run(*second)
    finally:
        await served.stop()
