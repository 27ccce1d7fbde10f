"""Whose the bytes are."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.report.record import Record


class HolderKind(enum.Enum):
    """Who keeps memory alive."""

    VARIABLE = "variable"
    GRAPH = "autograd graph"  # saved for a backward pass
    OUTPUT = "output"  # Out[n], _, and where IPython keeps them besides
    ERROR = "error"  # frames of a traceback
    MODULE = "module"  # globals of imported modules
    LIBRARY = "library"  # workspaces of cuBLAS and the like
    UNATTRIBUTED = "unattributed"  # in use, and reached from nowhere


@dataclass(frozen=True)
class Part(Record):
    """What a holder's bytes are: "parameters", "gradients", "optimizer state"."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Holder(Record):
    """A name with the memory that it keeps alive on one device.

    Attributes:
        name: As the user would type it: `model`, `Out[3]`, `cache["k"]`; of an error
            the function and its local: `logits in train_step`.

        own_bytes: What would come back if only this name went.

        reachable_bytes: All that can be reached from it.

        storages: How many pieces of memory that is.

        shares_with: Another name that reaches some of the same memory.

        parts: Its bytes by what they are, largest first.

        delta_bytes: How much more it reaches than before the cell; None where that
            was not compared.
    """

    name: str
    kind: HolderKind
    device: int
    own_bytes: int
    reachable_bytes: int
    storages: int = 1
    shares_with: str | None = None
    parts: tuple[Part, ...] = ()
    delta_bytes: int | None = None


@dataclass(frozen=True)
class Holdings(Record):
    """Who holds what. For each device the rows add up to what is allocated.

    Attributes:
        holders: Largest first. Each storage counts for one row only in `own_bytes`
            and in the sums; the last row of a device is what nobody was found for.

        allocated_bytes: By device, what the rows add up to.

        sums: By device and kind, without what an earlier kind has counted already.

        partial: Whether the search was ended by its budget, or could not look
            somewhere: then more may belong to the names than is said.

        remarks: What could not be looked at, in sentences.
    """

    holders: tuple[Holder, ...]
    allocated_bytes: tuple[tuple[int, int], ...] = ()
    sums: tuple[tuple[int, HolderKind, int], ...] = ()
    partial: bool = False
    searched: int = 0  # objects
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
