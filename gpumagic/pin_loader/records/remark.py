"""Something that a reader has to know, beside the figures."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class Remark(Record):
    """Something a reader has to know.

    Attributes:
        text: What was found, in one sentence without a full stop.

        hint: What to do or to type, likewise; empty where there is nothing to do.

        serious: Whether results could be wrong, not only slow.
    """

    text: str
    hint: str = ""
    serious: bool = False
