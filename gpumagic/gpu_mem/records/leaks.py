"""What is held and probably not wanted any more."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class LeakKind(enum.Enum):
    """Who keeps alive what nobody wants any more."""

    ERROR = "an error"  # its frames, of the last one in three places
    OUTPUT = "shown results"  # Out[n], _, __, ___ and the hidden ones
    GRAPH = "a graph nobody will walk back"  # e.g. losses added up


@dataclass(frozen=True)
class Leak(Record):
    """One holder of memory that is probably not wanted.

    Attributes:
        where: What holds it: `Out[12]`, `logits in train_step of the last error`.

        held_by: Every place that has to let go: `sys.last_traceback`, ...

        undo: What to type to let go of this alone.

        lost: What is lost by that: `%debug`, `Out[12]`.
    """

    kind: LeakKind
    where: str
    device: int
    nbytes: int
    held_by: tuple[str, ...] = ()
    undo: str = ""
    lost: str = ""
