"""One place on the screen that is drawn again and again.

In a notebook that is one output with one `display_id`: it lands in the right cell
even from a thread, and what it showed last, or nothing, is in the saved file. In a
terminal it is one line. Where output goes to a file, only what is to stay is written.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, display

from gpumagic.drawing.progress import SHOWN_AFTER_S, Progress
from gpumagic.report.frontend import is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing.document import Drawing
    from gpumagic.drawing.progress import Place

# Whoever reads the saved notebook can tell how far something came from its answer.
_RAW: dict[str, Any] = {"raw": True, "metadata": {"gpumagic": "progress"}}
# An output cannot be taken away without those beside it, but one of nothing takes no
# room; and nbconvert warns of one that has no form at all.
_NOTHING = {"text/plain": "", "text/html": ""}
_BACK_AND_CLEAR = "\r\x1b[K"


@contextmanager
def progress(
    shell: Any,
    total: int | None,
    label: str,
    *,
    begins_after_s: float = SHOWN_AFTER_S,
) -> Iterator[Progress]:
    """Count steps in one place of this shell; only Ctrl-C and errors leave a trace.

    with progress(shell, len(batches), "Measuring") as steps:
        for batch in batches:
            ...
            steps.advance()
    """
    with Progress(total, label, place_in(shell), begins_after_s=begins_after_s) as it:
        yield it


def place_in(shell: Any) -> Place:
    """Where this shell draws again and again."""
    return _Line() if is_terminal(shell) else _Output()


class _Output:
    """An output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    def show(self, drawing: Drawing, *, is_last: bool = False) -> None:  # noqa: ARG002
        self._put(drawing.mimebundle())

    def clear(self) -> None:
        if self._handle is not None:
            self._put(_NOTHING)

    def _put(self, shown: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = DisplayHandle()
            display(shown, display_id=self._handle.display_id, **_RAW)
        else:
            self._handle.update(shown, **_RAW)


class _Line:
    """A line of a terminal."""

    def show(self, drawing: Drawing, *, is_last: bool = False) -> None:
        if sys.stdout.isatty():
            # A line that wraps could not be taken back.
            room = shutil.get_terminal_size().columns - 1
            sys.stdout.write(_BACK_AND_CLEAR + drawing.title[:room])
        elif is_last:
            sys.stdout.write(drawing.title)
        if is_last:
            sys.stdout.write("\n")
        sys.stdout.flush()

    def clear(self) -> None:
        if sys.stdout.isatty():
            sys.stdout.write(_BACK_AND_CLEAR)
            sys.stdout.flush()
