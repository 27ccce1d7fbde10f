"""Runs one program in a real kernel, with and without each magic over its cells.

Without a magic it runs first; what a magic must not change is what is then printed and
computed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.strangers.cells import CUDA, cells_of
from benchmarks.strangers.outcomes import (
    SAME,
    Outcome,
    difference,
    steady,
    text_difference,
)

if TYPE_CHECKING:
    from benchmarks.strangers.programs import Program

_WITHIN = 1e-4
_CELL_S = 240
_MARK = "strangers found: "


class Way(NamedTuple):
    """How the cells of a notebook are run."""

    name: str
    over: str = ""  # stands above each cell
    before: str = ""  # a cell in front of all
    after: str = ""  # a cell behind all


PLAIN = Way("plain")
WAYS = (
    Way("%gpu_mem on", before="%gpu_mem on", after="%gpu_mem off"),
    Way(
        "%cuda_sync_time on",
        before="%cuda_sync_time on",
        after="%cuda_sync_time off",
    ),
    Way("%%gpu_mem", over="%%gpu_mem"),
    Way("%%gpu_mem --lines", over="%%gpu_mem --lines"),
    Way("%%cuda_sync_time", over="%%cuda_sync_time"),
    Way("%%cuda_sync_time --syncs", over="%%cuda_sync_time --syncs"),
    Way("%%cuda_sync_time --races", over="%%cuda_sync_time --races"),
    Way("%%cuda_sync_time --profile", over="%%cuda_sync_time --profile"),
    Way("%%pin_loader --watch", over="%%pin_loader --watch"),
    Way("%%gpu_doctor", over="%%gpu_doctor"),
    Way(
        "looking",
        after="%gpu_doctor\n%gpu_select\n%gpu_mem\n%gpu_mem map\n%gpu_mem leaks",
    ),
)


def run_as_notebook(program: Program, sources: Path) -> dict[str, Any]:
    """What each way gave beside the plain one, and what became of that one."""
    cells = cells_of(program, sources, CUDA)
    connection = Path("kernel.json").resolve()
    kernel_process = os.fork()
    if kernel_process == 0:
        _be_a_kernel(connection)
    try:
        kernel = _Kernel(connection, program, sources)
        kernel.run(kernel.preparing("prepare"))
        kernel.run("%load_ext gpumagic")
        plain = kernel.through(cells, PLAIN)
        if not plain.error:
            plain = steady(plain, kernel.through(cells, PLAIN), within=_WITHIN)
        found = {way.name: _beside(kernel.through(cells, way), plain) for way in WAYS}
    finally:
        os.kill(kernel_process, signal.SIGKILL)
    return {"error": plain.error, "ways": found}


def _be_a_kernel(connection: Path) -> None:
    from ipykernel.kernelapp import IPKernelApp

    sys.argv = ["kernel"]
    try:
        IPKernelApp.launch_instance(
            argv=["-f", str(connection), "--IPKernelApp.parent_handle=0"]
        )
    finally:
        os._exit(1)


def _beside(found: Outcome, plain: Outcome) -> str:
    if plain.error or found.error:
        return SAME if found.error == plain.error else f"{found.error or 'no error'}"
    numbers = difference(found, plain, within=_WITHIN)
    return numbers if numbers != SAME else text_difference(found.printed, plain.printed)


class _Kernel:
    """A running kernel, and what the cells that were run in it gave."""

    def __init__(self, connection: Path, program: Program, sources: Path) -> None:
        from jupyter_client.blocking import BlockingKernelClient

        while not (connection.exists() and connection.stat().st_size):
            time.sleep(0.05)
        self._client = BlockingKernelClient(connection_file=str(connection))
        self._client.load_connection_file()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_CELL_S)
        self._name, self._sources = f"{program.origin}: {program.name}", str(sources)

    def preparing(self, how: str) -> str:
        """A cell that makes ready for the program: the first time, or again."""
        return (
            "from pathlib import Path as _Path\n"
            "from benchmarks.strangers import preparing as _preparing\n"
            f"_program = _preparing.named({self._name!r})\n"
            f"_preparing.{how}(_program, _Path({self._sources!r}), 'cuda')\n"
            "globals().update(_preparing.names_to_begin_with(_program))"
        )

    def through(self, cells: list[str], way: Way) -> Outcome:
        """The whole program in one way, in a namespace that is new."""
        self.run("%reset -f")
        self.run(self.preparing("renew"))
        self.run(
            "from benchmarks.strangers import observing as _observing\n"
            "_losses = _observing.losses(); _seen = _losses.__enter__()"
        )
        shown: list[Any] = [self.run(way.before)] if way.before else []
        start, printed = time.perf_counter(), []
        for cell in cells:
            outputs = self.run(f"{way.over}\n{cell}" if way.over else cell)
            printed.append(_stream(outputs))
            shown.append(outputs)
            if error := _error(outputs):
                return Outcome(error=error, printed="".join(printed))
        shown += [self.run(line) for line in way.after.splitlines()]
        seconds = time.perf_counter() - start
        said = _stream(
            self.run(
                "_losses.__exit__(None, None, None)\nimport json as _json\n"
                f"print({_MARK!r} + _json.dumps("
                "_observing.numbers_of(dict(globals()), _seen)))"
            )
        )
        found = re.search(f"{_MARK}(.*)", said)
        numbers = json.loads(found.group(1)) if found else {}
        errors = [error for outputs in shown if (error := _error(outputs))]
        return Outcome(
            numbers,
            seconds,
            error=errors[0] if errors else None,
            printed="".join(printed),
        )

    def run(self, source: str) -> list[dict[str, Any]]:
        """What a cell shows, as the messages of the kernel."""
        shown: list[dict[str, Any]] = []
        self._client.execute_interactive(
            source, allow_stdin=False, timeout=_CELL_S, output_hook=shown.append
        )
        return shown


def _stream(shown: list[dict[str, Any]]) -> str:
    contents = [each["content"] for each in shown if each["msg_type"] == "stream"]
    return "".join(each["text"] for each in contents if each["name"] == "stdout")


def _error(shown: list[dict[str, Any]]) -> str | None:
    for each in shown:
        if each["msg_type"] == "error":
            return f"{each['content']['ename']}: {each['content']['evalue']}"
    return None
