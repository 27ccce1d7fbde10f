"""What `%gpu_select` has found, chosen or refused: the records that it is told in."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class Action(enum.Enum):
    """What was done before the report was made."""

    STATUS = "status"  # nothing: it was only looked
    SELECTED = "selected"
    UNCHANGED = "unchanged"  # the choice already was what is asked for
    DRY_RUN = "dry run"
    RESTARTING = "restarting"  # it was kept, and will be so after a restart
    KEPT = "kept"  # a request that has outlived a restart was applied
    REFUSED = "refused"  # nothing was changed


class Verdict(enum.Enum):
    """Whether GPUs can still be chosen in this process."""

    OPEN = "you can still choose"
    FIXED = "too late: restart"
    FIXED_FOR_TORCH = "too late for torch: restart"  # it has looked in vain
    LOST = "lost in a fork"
    FAILED = "CUDA failed to start"
    NOTHING = "nothing to choose"
    UNKNOWN = "unknown"


class TorchLatch(enum.Enum):
    """Whether torch has looked for GPUs: it looks once, and keeps the answer."""

    ABSENT = "not imported"
    OPEN = "has not looked"
    STARTED = "has started CUDA"
    LOOKED = "has looked and found GPUs"
    LOOKED_IN_VAIN = "has looked and found no GPU"
    UNKNOWN = "may have looked unseen"
    WITHOUT_CUDA = "is built without CUDA"


class Severity(enum.Enum):
    """How a remark is to be taken."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Remark(Record):
    """Something worth knowing, and what to do about it."""

    severity: Severity
    text: str
    next_step: str = ""


@dataclass(frozen=True)
class Variable(Record):
    """An environment variable where it can be looked up; None is "not set"."""

    name: str
    python: str | None  # in os.environ
    c: str | None  # by getenv, which is what the driver reads
    c_known: bool  # whether getenv could be asked
    at_start: str | None  # when the process was started
    at_start_known: bool

    @property
    def in_force(self) -> str | None:
        """The value that the driver reads."""
        return self.c if self.c_known else self.python


@dataclass(frozen=True)
class Start(Record):
    """Who started CUDA here, or looked for GPUs in vain."""

    cell: int | None = None  # In[cell]
    line: int | None = None  # of that cell
    source: str | None = None  # that line's text
    by: str | None = None  # "torch.cuda.is_available()", "import kornia"
    in_vain: bool = False  # torch looked, and found none

    def __str__(self) -> str:
        where = f"in In[{self.cell}]" if self.cell is not None else ""
        if where and self.line is not None:
            where += f", line {self.line}"
        return ", ".join(filter(None, (where, self.by and f"by {self.by}")))


@dataclass(frozen=True)
class Row(Record):
    """One GPU of the machine, or one slice of a GPU in MIG mode."""

    physical: int  # as nvidia-smi numbers it
    name: str | None = None
    uuid: str | None = None  # the slice's own for a slice
    pci_address: str | None = None
    is_slice: bool = False
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_share: float | None = None
    process_count: int | None = None
    predicted: int | None = None  # k, if it is to be cuda:k
    actual: int | None = None  # k, if the driver says that it is cuda:k
    chosen: bool = False  # by this request
    why: str = ""  # why it was chosen or refused, or why it cannot be asked
