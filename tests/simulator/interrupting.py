"""Another process that interrupts this one, at moments that nobody here chooses."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time

import pytest

LATEST_S = 0.003  # after the start of a loop that takes about as long for one step
PATIENCE_S = 300
# An interrupt in the middle of a weak reference's own work surfaces as this.
_MISPLACED = "weak object has gone away"

# It sends SIGINT as long after it has read a line as that line says: from outside,
# since a thread in here could only strike where Python has let go of its lock.
_SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGINT)
"""


def _repeat(action, end):
    """Python 3.13 forgets a `try` round a loop if Ctrl-C falls on the loop's end."""
    while time.monotonic() < end:
        action()


class Sender:
    """Another process that interrupts this one."""

    def __init__(self, process):
        self._process = process
        self._dice = random.Random(0)  # noqa: S311 -- no secret

    def strike(self, after_s):
        """Interrupt this process so many seconds from now."""
        self._process.stdin.write(f"{after_s}\n")
        self._process.stdin.flush()

    def interrupt(self, action):
        """Repeat an action until it is interrupted; whether that came as it should."""
        end = time.monotonic() + PATIENCE_S
        try:
            self.strike(self._dice.uniform(0, LATEST_S))
            _repeat(action, end)
        except KeyboardInterrupt:
            return True
        except Exception as error:
            if _MISPLACED in str(error):
                return False
            with contextlib.suppress(KeyboardInterrupt):  # lest pytest gets it
                _repeat(int, end)
            raise
        pytest.fail("an interrupt has never arrived")


@contextlib.contextmanager
def other_process():
    """Start the process that interrupts; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _SENDER], stdin=subprocess.PIPE, text=True
    ) as process:
        yield Sender(process)
        process.stdin.close()
