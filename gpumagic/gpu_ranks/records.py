"""What is found of many ranks, as frozen records; `report.py` puts them together.

A rank is one process of a job of torch.distributed. Times of several ranks are compared
only where they need no common clock, or where the clocks were put together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.places import CodeLine

CELL_END = "the end of the cell"  # where a rank is that has come to it
RECORDER = "flight recorder"  # what tells of collectives without any profile
# Engines have no magics of ours until they are told to.
LOAD = "`%px %load_ext gpumagic` once, then"
DOCTOR = f"{LOAD} `%px %gpu_doctor` tells what is missing on each"


@dataclass(frozen=True)
class Seat(Record):
    """Where one rank sits."""

    name: int  # its rank; where there is no group yet, its place among the engines
    rank: int | None  # its number in the group; None without one
    engine: int | None  # its number among the engines of a cluster; None without one
    host: str  # the machine, by name
    pid: int  # the process
    local_rank: int | None = None  # its number on its host, as its launcher says
    # the UUID of the GPU that is its current device; None for none
    gpu: str | None = None
    gpu_name: str | None = None  # what that is called
    gpu_number: int | None = None  # as nvidia-smi numbers it on its host
    # whether CUDA has started, so that the driver says so; else it is a prediction
    confirmed: bool = False
    # UUIDs of other GPUs on which this process holds memory
    also_on: tuple[str, ...] = ()
    driver: str | None = None  # version of the driver
    torch: str | None = None  # version of torch
    # whether its GPU and the nearest network card are on different sockets; None
    # where that cannot be told
    network_far: bool | None = None
    simulated: bool = False  # whether its GPU is a simulated one
    world_size: int | None = None  # how many ranks its group has; None without one
    backend: str | None = None  # of its group, "nccl" or "gloo"; None without one
    # what tells apart machines that have one name; None if unknown
    machine: str | None = None


class Misplaced(enum.Enum):
    """What can be wrong with where ranks sit."""

    SHARED_GPU = "several ranks on one GPU"
    ON_GPU_0 = "ranks hold memory on a GPU that is another rank's"
    FAR_NETWORK = "GPU and network card on different sockets"
    DRIVERS = "different drivers"
    TORCHES = "different versions of torch"
    NO_GPU = "no GPU"


@dataclass(frozen=True)
class SeatFinding(Record):
    """Something that is wrong with where ranks sit."""

    kind: Misplaced
    ranks: tuple[int, ...]
    what: str = ""  # the GPU, or the versions


@dataclass(frozen=True)
class Unfinished(Record):
    """A rank that gave no whole answer."""

    name: int  # which one
    # "raised", "died", "silent", "interrupted", "refused" or "garbage"; "lost" where
    # it raised only because another of these was gone; "deaf" where it was sent
    # Ctrl-C and has not come back
    why: str
    text: str = ""  # what it said last, in a line
    line: CodeLine | None = None  # where it was, where that is known


@dataclass(frozen=True)
class RankTime(Record):
    """What one rank did with the time of a cell."""

    name: int  # which one
    elapsed_s: float  # from the beginning of the cell to all idle
    own_s: float  # without waits and what moved
    waits_s: float  # how long it waited for others in what they did together
    moves_s: float  # how long data moved
    blamed_s: float  # how long others waited for it
    last: int  # how often it was the last to come
    began_s: float | None = None  # on the common clock; None without one
    # when it waited, on its own clock from the beginning of the cell, as pairs; None
    # where only sums are known
    waits: tuple[tuple[float, float], ...] | None = None
    moves: tuple[tuple[float, float], ...] | None = None  # likewise when data moved
    # what its own timing found: "throttled", "allocations", "syncs",
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveSum(Record):
    """What ranks did together under one name."""

    name: str  # "all_reduce",
    count: int  # how often each rank was in it
    nbytes: int | None  # what each rank put in, in all; None if unknown
    # how long ranks waited in it, from the least to the most
    waits_s: tuple[float, float]
    moves_s: tuple[float, float]  # how long data moved, likewise
    # the rank that came last most often; None if all came at once
    last: int | None = None


@dataclass(frozen=True)
class RankMemory(Record):
    """The memory of one rank's device after a cell."""

    name: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    # the most that was allocated while the cell ran; None if unknown
    peak_bytes: int | None
    limit_bytes: int | None  # what its device has
    ooms: int | None = None

    @property
    def left_bytes(self) -> int | None:
        """How far the peak stayed below the limit."""
        if self.limit_bytes is None or self.peak_bytes is None:
            return None
        return self.limit_bytes - self.peak_bytes


@dataclass(frozen=True)
class Waiting(Record):
    """A collective that some ranks have called and others have not."""

    collective: str | None  # "all_reduce", ...; None where only stacks tell
    number: int | None  # its place in the order of its group
    waiting: tuple[int, ...]  # which ranks wait in it
    waited_s: float | None  # for how long, the longest
    missing: tuple[int, ...]  # which ranks have not called it
    # where these are, by rank, as far as known
    lines: tuple[tuple[int, CodeLine], ...] = ()
    # how the calls differ where they do: "rank 2 calls broadcast", "sizes 4 KiB and 8
    # KiB"; None where they agree
    mismatch: str | None = None
