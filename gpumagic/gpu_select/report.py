"""The records of what `%gpu_select` has found, chosen or refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.drawing import NoteKind


class Action(enum.Enum):
    """What was done before the report was made."""

    STATUS = "status"  # nothing: it was only looked
    SELECTED = "selected"
    DRY_RUN = "dry run"
    RESTARTING = "restarting"  # it was kept, and will be so after a restart
    KEPT = "kept"  # a request that has outlived a restart was applied
    REFUSED = "refused"  # nothing was changed


TRIED = (Action.DRY_RUN, Action.RESTARTING)  # nothing is set now


class Evidence(enum.Enum):
    """What the order of the GPUs is known from."""

    PREDICTED = "predicted: CUDA has not started"
    UNCERTAIN = "predicted, and not certain: CUDA has not started"  # drivers differ
    CONFIRMED = "confirmed by the driver"
    OTHERWISE = "as the driver shows, otherwise than the variables say"


class Verdict(enum.Enum):
    """Whether GPUs can still be chosen in this process."""

    OPEN = "you can still choose"
    FIXED = "too late: restart"
    FIXED_FOR_TORCH = "too late for torch: restart"  # it has looked in vain
    LOST = "lost in a fork"
    FAILED = "CUDA failed to start"
    NOTHING = "nothing to choose"
    UNKNOWN = "unknown"


class TorchLook(enum.Enum):
    """Whether torch has looked for GPUs: it looks once, and keeps the answer."""

    NONE = "has not looked, as far as is known"
    FOUND = "has looked and found GPUs"
    IN_VAIN = "has looked and found no GPU"


@dataclass(frozen=True)
class Remark(Record):
    """Something worth knowing, and what to do about it."""

    kind: NoteKind
    text: str
    next_step: str = ""


@dataclass(frozen=True)
class Variable(Record):
    """An environment variable wherever something may read it; None is "not set"."""

    name: str
    python: str | None  # in os.environ
    c: str | None  # by getenv, which is what the driver reads
    at_start: str | None = None  # when the process was started, as far as is known


@dataclass(frozen=True)
class Start(Record):
    """Who started CUDA here, or looked for GPUs in vain."""

    cell: int | None = None  # In[cell]
    line: int | None = None  # of that cell
    by: str = ""  # "torch.cuda.is_available()", "import kornia"

    def __str__(self) -> str:
        known = {"in In[{}]": self.cell, "line {}": self.line, "by {}": self.by}
        return ", ".join(text.format(each) for text, each in known.items() if each)


@dataclass(frozen=True)
class Row(Record):
    """One GPU of the machine, or one slice of a GPU in MIG mode."""

    physical: int  # as nvidia-smi numbers it
    label: str  # "GPU 2", "slice 0 of GPU 2"
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
    why: str = ""  # why it was chosen or refused, or why it cannot be asked
