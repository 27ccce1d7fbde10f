"""Notebooks that ask a cluster: one of this process, and one with a kernel."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

_PATIENCE_S = 300


class Notebook:
    """A shell with `%gpu_ranks` in it.

    Args:
        client: Of a cluster.
    """

    def __init__(self, client):
        from IPython.core.interactiveshell import InteractiveShell

        self.client = client
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.shell.user_ns["rc"] = client
        self.shell.run_line_magic("load_ext", "gpumagic")

    def ask(self, line=""):
        """The report of a line; an error that is expected is raised."""
        return self._run(f"%gpu_ranks {line} -o -q")

    def cell(self, body, line=""):
        """The report of a cell."""
        return self._run(f"%%gpu_ranks {line} -o -q\n{body}")

    def _run(self, source):
        outcome = self.shell.run_cell(source)
        error = outcome.error_before_exec or outcome.error_in_exec
        if error is not None:
            raise error
        return outcome.result

    def on(self, engines, code):
        """Run a line on engines, without a word."""
        self.client[engines].execute(code, block=True)

    def busy(self):
        """Engines that run something."""
        said = self.client.queue_status()
        return [each for each in self.client.ids if said.get(each, {}).get("queue")]

    def rest(self, within_s=20):
        """Wait until no engine has anything to do."""
        until_s = time.monotonic() + within_s
        while self.busy():
            assert time.monotonic() < until_s, self.client.queue_status()
            time.sleep(0.05)

    def end(self):
        """Nothing of it is left."""
        from IPython.core.interactiveshell import InteractiveShell

        self.shell.run_line_magic("unload_ext", "gpumagic")
        self.client.close()
        InteractiveShell.clear_instance()


def whys(report):
    """What has become of ranks that gave no whole answer."""
    return {each.name: each.why for each in report.unfinished}


@contextlib.contextmanager
def ctrl_c(*after_s):
    """Press Ctrl-C in this process, so many seconds from now, while the block runs."""
    interrupt = (os.getpid(), signal.SIGINT)
    timers = [threading.Timer(seconds, os.kill, interrupt) for seconds in after_s]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


class KernelNotebook:
    """A notebook with a kernel of its own, as Jupyter starts and interrupts it.

    Args:
        folder: In which it lies.
    """

    def __init__(self, folder):
        from jupyter_client.manager import KernelManager

        from tests.notebook.shells import environment

        manager = KernelManager()
        manager.kernel_spec.argv[0] = sys.executable
        self._manager = manager
        # A folder that the kernel's shells do not look into.
        inherited = {k: v for k, v in environment().items() if k != "IPYTHONDIR"}
        manager.start_kernel(cwd=str(folder), env=inherited, stderr=subprocess.DEVNULL)
        self._client = manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_PATIENCE_S)

    def run(self, cell, *interrupts_s):
        """What a cell leaves to be read below it.

        Args:
            cell: Its text.

            interrupts_s: When its interrupt button is pressed, in seconds from the
                moment when it shows something: on a busy machine that may be late.
        """
        buttons = [threading.Timer(each, self._interrupt) for each in interrupts_s]
        waiting, parts, places = [*buttons], [], {}

        def hear(message):
            kind, content = message["header"]["msg_type"], message["content"]
            place = content.get("transient", {}).get("display_id")
            if kind == "display_data" and waiting:
                for each in waiting:
                    each.start()
                waiting.clear()
            if kind == "update_display_data" and place in places:
                parts[places[place]] = _read(kind, content)
            elif kind in {"stream", "error", "display_data", "execute_result"}:
                if place is not None:
                    places[place] = len(parts)
                parts.append(_read(kind, content))

        try:
            self._client.execute_interactive(
                cell, timeout=_PATIENCE_S, output_hook=hear
            )
        finally:
            for each in buttons:
                each.cancel()
        return "".join(parts).strip()

    def end(self):
        """Its process is gone."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _interrupt(self):
        """Press the button, in a thread: jupyter_client makes it a loop of its own."""
        from jupyter_core.utils import ensure_event_loop

        self._manager.interrupt_kernel()
        ensure_event_loop().close()


def _read(kind, content):
    if kind == "stream":
        return content["text"]
    if kind == "error":
        text = "\n".join(content["traceback"]) or content["evalue"]
        return re.sub(r"\x1b\[[0-9;]*m", "", text) + "\n"
    return content["data"].get("text/plain", "") + "\n"
