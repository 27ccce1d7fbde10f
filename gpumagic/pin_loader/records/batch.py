"""What a batch consists of, and which of it is pinned."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.remark import Remark


class Pinned(enum.Enum):
    """Where the bytes of a leaf lie."""

    PINNED = "pinned"
    PAGEABLE = "pageable"
    ON_DEVICE = "on the device"
    UNKNOWN = "unknown"


class WhyPageable(enum.Enum):
    """Why a tensor of a batch is not pinned."""

    FLAG_OFF = "pin_memory is off"
    NO_ACCELERATOR = "there is no accelerator to pin for"
    PASSED_THROUGH = "the pinner passes objects of this class through"
    OWN_METHOD = "the class pins itself, and leaves this out"
    NOT_A_TENSOR = "an array of numpy is never pinned"
    NOT_DENSE = "only dense tensors can be pinned"
    FLAG_TOO_LATE = "the flag was set after the workers had been started"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Leaf(Record):
    """A tensor or an array in a batch; other values are counted only.

    Attributes:
        path: How it is reached: `batch["image"]`, `batch[0].mask`.

        what: Its class.

        nbytes: Of its elements.

        contiguous: Whether they lie together in order. If not, a copy to the device
            goes through pageable memory, pinned or not.

        why: Why it is not pinned, if it is not.

        holder: The class that `why` speaks of.

        same_as: The path of an earlier leaf with the same memory.
    """

    path: str
    what: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    contiguous: bool | None = None
    pinned: Pinned = Pinned.UNKNOWN
    why: WhyPageable | None = None
    holder: str | None = None
    same_as: str | None = None


@dataclass(frozen=True)
class Anatomy(Record):
    """What a batch consists of.

    Attributes:
        class_name: The class of the batch itself.

        leaves: In the order of walking; at most a few hundred.

        left_out: How many more leaves there are.

        left_out_bytes: What these hold, each memory once.

        others: How many values are neither tensors nor arrays, and stay on the host.

        locked_bytes: What pinning all of it locks: each tensor rounded up to a power
            of two.

        type_changes: What the pinner of this torch would make of containers: path,
            class, class afterwards.

        adaptable: Whether tensors are passed through by the pinner that an adapter
            would pin.
    """

    class_name: str
    leaves: tuple[Leaf, ...]
    left_out: int = 0
    left_out_bytes: int = 0
    others: int = 0
    locked_bytes: int = 0
    type_changes: tuple[tuple[str, str, str], ...] = ()
    adaptable: bool = False
    remarks: tuple[Remark, ...] = ()

    @cached_property
    def tensor_bytes(self) -> int:
        """All tensors and arrays, each memory once."""
        listed = sum(leaf.nbytes for leaf in self.leaves if leaf.same_as is None)
        return listed + self.left_out_bytes

    def bytes_that_are(self, where: Pinned) -> int:
        """The bytes that lie in one kind of memory, each memory once."""
        return sum(
            leaf.nbytes
            for leaf in self.leaves
            if leaf.pinned is where and leaf.same_as is None
        )
