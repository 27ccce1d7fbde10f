"""A notebook of this process that has the client of a cluster as `rc`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time


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
