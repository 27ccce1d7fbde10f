"""Two real shells, a terminal IPython and a Jupyter kernel, seen the same way.

Each runs a list of cells in one fresh process and says of every cell what a user
could see of it. `python -m tests.notebook.shells` is the terminal's own process.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests import quick_python
from tests.asleep import TORCH_ALONE
from tests.quick_kernels import quick_kernels

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 300  # what hangs fails in the end; what is slow does not

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"^(\S*Cell |Input |File |<ipython-input|/|~)")
_ARROW = re.compile(r"^-+> ?(\d+) ?(.*)$")


@dataclass(frozen=True)
class Seen:
    """What one cell came to, as its user sees it."""

    status: str
    shown: list[dict[str, str]] = field(default_factory=list)  # displays, by MIME type
    result: str | None = None  # behind Out[n]
    printed: str = ""
    error: str | None = None
    frames: list[tuple[int, str]] = field(default_factory=list)  # in the user's cells
    traceback: str = ""


def environment() -> dict[str, str]:
    """The environment of a shell under test: ours importable, no history, no colour."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *_inherited_path()]),
        "IPYTHONDIR": tempfile.mkdtemp(),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "NO_COLOR": "1",
    }


def _inherited_path() -> list[str]:
    """Where the packages of this run lie, if not in its environment."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def users_frames(traceback: str) -> list[tuple[int, str]]:
    """The line numbers and source of the frames that lie in cells."""
    found, in_cell = [], False
    for line in _ESCAPES.sub("", traceback).splitlines():
        if _FRAME.match(line):
            in_cell = "In[" in line or "<ipython-input" in line or "In [" in line
        arrow = _ARROW.match(line)
        if arrow and in_cell:
            found.append((int(arrow[1]), arrow[2].strip()))
    return found


def see_in_terminal(cells: list[str]) -> list[Seen]:
    """Run cells in a terminal IPython of their own."""
    with tempfile.TemporaryDirectory() as folder:
        done = quick_python.run(
            [sys.executable, "-W", "ignore", "-m", "tests.notebook.shells"],
            input=json.dumps(cells),
            cwd=folder,
            env=environment(),
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    return [Seen(**seen) for seen in json.loads(done.stdout.splitlines()[-1])]


def see_in_kernel(cells: list[str]) -> list[Seen]:
    """Run cells in a Jupyter kernel of their own."""
    from jupyter_client.manager import KernelManager

    with tempfile.TemporaryDirectory() as folder:
        manager = KernelManager()
        manager.kernel_spec.argv[0] = sys.executable
        with quick_kernels(TORCH_ALONE):
            manager.start_kernel(cwd=folder, env=environment())
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE_S)
            return [_see_reply(client, cell) for cell in cells]
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def _see_reply(client: object, cell: str) -> Seen:
    messages: list[dict] = []
    reply = client.execute_interactive(
        cell, timeout=PATIENCE_S, output_hook=messages.append
    )
    content = [(each["header"]["msg_type"], each["content"]) for each in messages]
    errors = [each for kind, each in content if kind == "error"]
    traceback = "\n".join(errors[0]["traceback"]) if errors else ""
    return Seen(
        status=reply["content"]["status"],
        shown=[each["data"] for kind, each in content if kind == "display_data"],
        result=next(
            (
                each["data"]["text/plain"]
                for kind, each in content
                if kind == "execute_result"
            ),
            None,
        ),
        printed="".join(each["text"] for kind, each in content if kind == "stream"),
        error="; ".join(f"{each['ename']}: {each['evalue']}" for each in errors)
        or None,
        frames=users_frames(traceback),
        traceback=_ESCAPES.sub("", traceback),
    )


class _Terminal:
    """A terminal shell that notes what it displays and writes."""

    def __init__(self) -> None:
        from IPython.terminal.interactiveshell import TerminalInteractiveShell

        self.shell = TerminalInteractiveShell.instance(simple_prompt=True)
        self.shell.run_line_magic("colors", "NoColor")
        self.shown: list[dict[str, str]] = []
        self.shell.display_pub.publish = self._publish
        sys.stdout.flush()  # the title of the window, which is of no cell

    def _publish(self, data: dict[str, str], **_: object) -> None:
        self.shown.append(data)

    def see(self, cell: str) -> Seen:
        self.shown = []
        with tempfile.TemporaryFile("w+") as file:
            run = self._run_into(file.fileno(), cell)
            file.seek(0)
            printed = _ESCAPES.sub("", file.read())
        error = run.error_before_exec or run.error_in_exec
        out = re.search(r"^Out\[\d+\]: ?(.*?)\n*\Z", printed, re.MULTILINE | re.DOTALL)
        return Seen(
            status="ok" if run.success else "error",
            shown=self.shown,
            result=out[1].strip() if out else None,
            printed="" if error else printed[: out.start()] if out else printed,
            error=f"{type(error).__name__}: {error}" if error else None,
            frames=users_frames(printed) if error else [],
            traceback=printed if error else "",
        )

    def _run_into(self, file: int, cell: str) -> object:
        """Run with the process's own stdout and stderr going to a file."""
        kept = os.dup(1), os.dup(2)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            return self.shell.run_cell(cell, store_history=True)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])


def main() -> None:
    """Read cells as JSON, run them in a terminal shell, write what was seen."""
    terminal = _Terminal()
    seen = [terminal.see(cell) for cell in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps([asdict(each) for each in seen]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a terminal shell asks questions when it ends


if __name__ == "__main__":
    main()
