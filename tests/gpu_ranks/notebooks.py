"""Notebooks that ask a cluster: one of this process, and one with a kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

_PATIENCE_S = 180
_UNDERWAY_S = 0.1  # from this process to the controller


class Notebook:
    """A shell with `%gpu_ranks` in it.

    Args:
        client: Of a cluster.
    """

    def __init__(self, client):
        from IPython.core.interactiveshell import InteractiveShell

        from gpumagic.gpu_ranks import engines

        self.client = client
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(colors="nocolor")
        self.shell.user_ns["rc"] = client
        self.shell.run_line_magic("load_ext", "gpumagic")
        self._request = request = engines.Engines.request
        self.asked = None  # the request that was made last

        def noting(*given):
            self.asked = request(*given)
            return self.asked

        engines.Engines.request = noting

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

    # What a Ctrl-C may be pressed at, by what engines say of the next cell.

    def running(self, *engines):
        """Each of them has said where it is in its cell."""
        self.asked = None
        return lambda: set(engines) <= {*self._alive()}

    def waiting(self, *engines, for_s=0.0):
        """Each of them waits for others, and has been at it for so long."""
        self.asked = None
        return lambda: all(self._waits(each, for_s) for each in engines)

    def all_waiting(self, for_s):
        """Whoever has not come back waits for others, and all have for so long."""
        self.asked, seen_s = None, []

        def are_waiting():
            running = self.asked.running if self.asked else []
            if running and all(map(self._waits, running)):
                seen_s.append(time.monotonic())
            else:
                seen_s.clear()
            return bool(seen_s) and seen_s[-1] - seen_s[0] >= for_s

        return are_waiting

    def sent(self):
        """Ctrl-C was sent to the engines, and those that hear it have come back."""
        asked = self.asked
        if asked is None or not asked.interrupted:
            return False
        is_sent = time.monotonic() - asked.interrupted_s > _UNDERWAY_S
        return is_sent and all(self._waits(each) for each in asked.running)

    def _waits(self, engine, for_s=0.0):
        said = self._alive().get(engine)
        if said and said.stuck_s:
            return said.stuck_s >= for_s
        return bool(said and said.inside) and for_s == 0  # no recorder tells of it

    def _alive(self):
        """The last word of each engine that runs what was asked last."""
        return {} if self.asked is None else dict(self.asked._alive)

    def rest(self, within_s=20):
        """Wait until no engine has anything to do."""
        until_s = time.monotonic() + within_s
        while self.busy():
            assert time.monotonic() < until_s, self.client.queue_status()
            time.sleep(0.05)

    def end(self):
        """Nothing of it is left."""
        from IPython.core.interactiveshell import InteractiveShell

        from gpumagic.gpu_ranks import engines

        engines.Engines.request = self._request
        self.shell.run_line_magic("unload_ext", "gpumagic")
        self.client.close()
        InteractiveShell.clear_instance()


def whys(report):
    """What has become of ranks that gave no whole answer."""
    return {each.name: each.why for each in report.unfinished}


@contextlib.contextmanager
def ctrl_c(*when):
    """Press Ctrl-C in this process while the block runs, once for each.

    Args:
        when: What has to be true before it is pressed; of several one after the other.
    """
    over = threading.Event()

    def press():
        for is_time in when:
            while not is_time():
                if over.wait(0.02):
                    return
            os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press, daemon=True)
    presses.start()
    try:
        yield
    finally:
        over.set()
        presses.join()
