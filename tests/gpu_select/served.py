"""A Jupyter kernel that is started again when it ends, as a server does it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.gpu_select.kernels import kernel_environment, text_of
from tests.notebook.shells import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


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
