"""An IPython in a terminal of tmux: typed into, and looked at as a person would."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.frontends.outputs import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAVED = REPOSITORY / "build" / "terminal"
ESCAPE = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|\x0f")

_TMUX = shutil.which("tmux")
_ROWS = 60
_SETTINGS = """
set -g history-limit 20000
set -g remain-on-exit on
set -g status off
"""
_PROMPT = re.compile(r"In \[(\d+)\]: *")
_TYPED = re.compile(r"In \[\d+\]:| +\.\.\.:")
_LONGEST_S = 300
# What a test runner may have set, and a person at a terminal has not.
_UNSET = [f"--unset={name}" for name in ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM")]
_IPYTHON = (
    *("-m", "IPython", "--no-banner", "--no-confirm-exit"),
    "--TerminalInteractiveShell.autoindent=False",
    "--TerminalInteractiveShell.autosuggestions_provider=None",
    "--HistoryManager.enabled=False",
)


def why_not() -> str:
    """Why these tests cannot run here, or nothing."""
    return "" if _TMUX else "no tmux on the PATH"


@dataclass
class Terminal:
    """A terminal with an IPython in it."""

    socket: Path  # where its tmux listens: nothing of the user's is in that one
    prompts: int = 0  # how many prompts have been seen
    # how often the screen was looked at while something ran, and what was there
    seen: list[str] = field(default_factory=list)

    def tmux(self, *words: str) -> str:
        """One command of tmux."""
        settings = self.socket.with_suffix(".conf")
        line = [_TMUX, "-u", "-S", str(self.socket), "-f", str(settings), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, source: str, *, interrupt_at: str = "") -> list[str]:
        """Type a cell, wait until the next prompt; what it has shown, with colours."""
        before = len(self.lines())
        lines = source.split("\n")
        for line in (*lines, "", "") if len(lines) > 1 else lines:
            self.tmux("send-keys", "-l", line)
            self.tmux("send-keys", "Enter")
        if interrupt_at:
            self._wait(lambda: re.search(interrupt_at, self._look()))
            self.tmux("send-keys", "C-c")
        self.wait_for_prompt()
        return _shown(self.lines()[before - 1 :])

    def wait_for_prompt(self) -> None:
        """Until IPython asks for the next cell."""
        self._wait(self._asks)

    def screen(self) -> str:
        """What can be seen now, without colours."""
        return self.tmux("capture-pane", "-p")

    def lines(self) -> list[str]:
        """All lines there ever were, with colours; a wrapped one is one line."""
        all_of_it = self.tmux("capture-pane", "-p", "-e", "-J", "-S", "-")
        lines = [line.rstrip() for line in all_of_it.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def resize(self, width: int) -> None:
        """Make the window as wide."""
        self.tmux("resize-window", "-x", str(width), "-y", str(_ROWS))

    def _look(self) -> str:
        self.seen.append(self.screen())
        return self.seen[-1]

    def _asks(self) -> bool:
        last = self.screen().rstrip().rpartition("\n")[2]
        found = _PROMPT.fullmatch(last.strip() + " ")
        if found and int(found[1]) > self.prompts:
            self.prompts = int(found[1])
            return True
        return False

    def _wait(self, until):
        give_up = time.monotonic() + _LONGEST_S
        while not until():
            seen = self._look()
            if time.monotonic() > give_up:
                raise TimeoutError(f"nothing more came:\n{seen}")
            time.sleep(0.05)


@contextmanager
def running(folder: Path, width: int, colours: dict[str, str]) -> Iterator[Terminal]:
    """An IPython in a terminal of so many columns; ended with all that it started."""
    surroundings = {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore",
        "IPYTHONDIR": str(folder / "ipython"),
        "LC_ALL": "C.UTF-8",
        **colours,
    }
    given = [f"{name}={value}" for name, value in surroundings.items()]
    terminal = Terminal(folder / "tmux")
    (folder / "tmux.conf").write_text(_SETTINGS)
    size = ("-x", str(width), "-y", str(_ROWS))
    program = ("env", *_UNSET, *given, sys.executable, *_IPYTHON)
    terminal.tmux("new-session", "-d", *size, "-c", str(folder), *program)
    try:
        terminal.wait_for_prompt()
        yield terminal
    finally:
        terminal.tmux("kill-server")


def _shown(lines):
    """Of what was added, all between the cell and the next prompt."""
    plain = [ESCAPE.sub("", line) for line in lines]
    said = [at for at, line in enumerate(plain) if line and not _TYPED.match(line)]
    return lines[said[0] : said[-1] + 1] if said else []
