"""One place on the screen that is drawn again and again.

In a notebook that is one output with one `display_id`: it lands in the right cell
even from a thread, and the saved file keeps its last state. In a terminal it is one
line. Where output goes to a file, only the last state is written.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, display

from gpumagic.drawing.progress import Progress
from gpumagic.report.frontend import is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing.document import Drawing

# Whoever reads the saved notebook can tell how far something came from its answer.
_RAW: dict[str, Any] = {"raw": True, "metadata": {"gpumagic": "progress"}}
_BACK_AND_CLEAR = "\r\x1b[K"


@contextmanager
def progress(
    shell: Any, total: int | None, label: str, *, begins_after_s: float = 0.0
) -> Iterator[Progress]:
    """Count steps in one place of this shell; Ctrl-C leaves how far it came.

    with progress(shell, len(batches), "Measuring") as steps:
        for batch in batches:
            ...
            steps.advance()
    """
    place = _Line() if is_terminal(shell) else _Output()
    with Progress(total, label, place.show, begins_after_s=begins_after_s) as steps:
        try:
            yield steps
        finally:
            place.is_last = True


class _Output:
    """An output of a notebook cell."""

    is_last = False

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    def show(self, drawing: Drawing) -> None:
        if self._handle is None:
            self._handle = DisplayHandle()
            display(drawing.mimebundle(), display_id=self._handle.display_id, **_RAW)
        else:
            self._handle.update(drawing.mimebundle(), **_RAW)


class _Line:
    """A line of a terminal."""

    is_last = False

    def show(self, drawing: Drawing) -> None:
        if sys.stdout.isatty():
            # A line that wraps could not be taken back.
            room = shutil.get_terminal_size().columns - 1
            sys.stdout.write(_BACK_AND_CLEAR + drawing.title[:room])
        elif self.is_last:
            sys.stdout.write(drawing.title)
        if self.is_last:
            sys.stdout.write("\n")
        sys.stdout.flush()
