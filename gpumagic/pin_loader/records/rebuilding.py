"""What the new loader is, and how it came about."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.remark import Remark


class Way(enum.Enum):
    """How the new loader came about."""

    REBUILT = "rebuilt"
    FLAG_SET = "the flag was set on a copy"
    WRAPPED = "wrapped as it is"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Change(Record):
    """An argument that is not as it was."""

    argument: str
    before: str
    after: str


@dataclass(frozen=True)
class Rebuilding(Record):
    """What the new loader is.

    Attributes:
        reason: Why it could not be rebuilt, where it was not.

        adapter: Whether an adapter pins what the pinner passes through.

        depth: How many batches are copied ahead; 0 is none.
    """

    way: Way
    class_name: str
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    adapter: bool = False
    depth: int = 1
    remarks: tuple[Remark, ...] = ()
