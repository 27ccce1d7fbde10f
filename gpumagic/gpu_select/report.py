"""What `%gpu_select` found, chose or refused, and the verdict in a sentence."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from gpumagic.devices.protocols import CudaState

_MANY = 4  # more GPUs than this are counted, not listed


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


@dataclass(frozen=True)
class SelectReport(Report):
    """The state of the choice after what was done, or is to be after a dry run."""

    action: Action
    verdict: Verdict
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    driver: CudaState
    torch: TorchLatch
    start: Start | None = None
    remarks: tuple[Remark, ...] = ()
    certain: bool = True  # False where drivers may read the variable otherwise
    confirmed: bool | None = None  # by the driver; None before CUDA has started
    unlisted: tuple[str, ...] = ()  # what the driver shows and NVML does not know
    request: str | None = None  # in the user's words
    simulated: bool = False
    word: str = "cuda"  # in front of the colon of a torch device
    way_out: str = ""  # what to type, too late, for what the variables name

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, with the verdict in a sentence."""
        return {"headline": self.headline, **super().to_dict()}

    @property
    def only_tried_too_late(self) -> bool:
        """Whether this is a choice that can no more be made before a restart."""
        too_late = self.verdict in (Verdict.FIXED, Verdict.FIXED_FOR_TORCH)
        tried = self.action in (Action.DRY_RUN, Action.RESTARTING)
        return tried and too_late and not self.confirmed

    @property
    def headline(self) -> str:
        """What was done or found, and how sure it is."""
        if self.action is Action.STATUS:
            return self._state()
        if self.action is Action.REFUSED:
            return f"Nothing was changed. {self._state()}"
        if self.action is Action.RESTARTING:
            return f"After the restart: {self.mapping('predicted')}."
        if self.only_tried_too_late:
            return self._only_tried()
        began = {
            Action.UNCHANGED: "As it was: ",
            Action.DRY_RUN: "Nothing is set (dry run); it would be: ",
            Action.KEPT: "Kept over the restart: ",
        }.get(self.action, "")
        return f"{began}{self.mapping()} ({self._evidence()})."

    def mapped(self, attribute: str) -> list[Row]:
        """The rows that are seen, in the order of torch's devices."""
        seen = [row for row in self.rows if getattr(row, attribute) is not None]
        return sorted(seen, key=lambda row: int(getattr(row, attribute)))

    def mapping(self, attribute: str | None = None) -> str:
        """Which GPU is which device: by the driver where it has told, or predicted."""
        attribute = attribute or ("predicted" if self.confirmed is None else "actual")
        rows, word = self.mapped(attribute), self.word
        if not rows:
            return "no GPU is visible"
        if len(rows) > _MANY:
            count = count_text(len(rows), "GPU")
            return f"{count} are visible, {word}:0 to {word}:{len(rows) - 1}"
        return ", ".join(
            f"{word}:{getattr(row, attribute)} is {self._label(row)}" for row in rows
        )

    def number(self, row: Row) -> str:
        """The number of nvidia-smi; a slice by its place among those of its GPU."""
        if not row.is_slice:
            return str(row.physical)
        slices = [each for each in self.rows if each.physical == row.physical]
        place = f" {slices.index(row)}" if len(slices) > 1 else ""
        return f"{row.physical} slice{place}"

    def _label(self, row: Row) -> str:
        number, _, part = self.number(row).partition(" ")
        return f"{part} of GPU {number}" if part else f"GPU {number}"

    def _state(self) -> str:
        now = self.mapping()
        if self.verdict is Verdict.FIXED:
            who = f" {self.start}".rstrip() if self.start is not None else ""
            return f"Too late to choose: CUDA has started{who}. Now {now}."
        if self.verdict is Verdict.OPEN:
            return f"You can still choose. Now {now} ({self._evidence()})."
        if self.verdict is Verdict.NOTHING:
            problems = (x.text for x in self.remarks if x.severity is Severity.PROBLEM)
            problem = next(problems, None)
            if problem is not None:
                return f"Nothing can be chosen: {problem}."
            return "There is no NVIDIA GPU here: nothing to choose."
        return {
            Verdict.FIXED_FOR_TORCH: "Too late for torch: it has looked for GPUs, "
            "found none, and does not look again until a restart.",
            Verdict.LOST: "CUDA cannot be used here: this process was forked from one "
            "that had started it.",
            Verdict.FAILED: f"CUDA was started and failed (code {self.driver.code}): "
            "fix the cause, then restart.",
            Verdict.UNKNOWN: "Whether CUDA has started cannot be told on this system. "
            f"If it has not, {now}.",
        }[self.verdict]

    def _only_tried(self) -> str:
        """What a dry run has found after the start: it would take another start."""
        in_vain = self.verdict is Verdict.FIXED_FOR_TORCH
        late = "Torch has looked in vain" if in_vain else "CUDA has started"
        anew = "on a machine switched on anew" if self.simulated else "after a restart"
        text = f"{late}; {anew} it would be: {self.mapping('predicted')}."
        now = "" if in_vain else f" Now {self.mapping()}."
        return f"Nothing is set (dry run). {text}{now}"

    def _evidence(self) -> str:
        if self.confirmed is not None:
            agreed = "confirmed by the driver"
            return agreed if self.confirmed else "but the driver shows otherwise"
        sure = "predicted" if self.certain else "predicted, and not certain"
        return f"{sure}: CUDA has not started"
