"""What of a traceback tells the user where Ctrl-C met the loader."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = str(Path(__file__).resolve().parents[1])


def without_our_frames(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """The error with torch's frames and the user's; ours say nothing to anybody."""
    kept: TracebackType | None = None
    for each in reversed(list(_links(error.__traceback__))):
        if not each.tb_frame.f_code.co_filename.startswith(_OURS):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, _line_of(each))
    return error.with_traceback(kept)


def _line_of(link: TracebackType) -> int:
    """Where it stood; Ctrl-C can fall upon a jump that Python gave no line."""
    code = link.tb_frame.f_code
    before = [
        line
        for start, _, line in code.co_lines()
        if line is not None and start <= link.tb_lasti
    ]
    return link.tb_lineno or (before or [code.co_firstlineno])[-1]


def _links(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
