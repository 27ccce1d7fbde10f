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
    """Where one rank sits.

    Attributes:
        name: Its rank; where there is no group yet, its place among the engines.

        rank: Its number in the group; None without one.

        engine: Its number among the engines of a cluster; None without one.

        host: The machine, by name.

        pid: The process.

        local_rank: Its number on its host, as its launcher says.

        gpu: The UUID of the GPU that is its current device; None for none.

        gpu_name: What that is called.

        gpu_number: As nvidia-smi numbers it on its host.

        confirmed: Whether CUDA has started, so that the driver says so; else it is a
            prediction.

        also_on: UUIDs of other GPUs on which this process holds memory.

        driver: Version of the driver.

        torch: Version of torch.

        network_far: Whether its GPU and the nearest network card are on different
            sockets; None where that cannot be told.

        simulated: Whether its GPU is a simulated one.

        world_size: How many ranks its group has; None without one.

        backend: Of its group, "nccl" or "gloo"; None without one.

        machine: What tells apart machines that have one name; None if unknown.
    """

    name: int
    rank: int | None
    engine: int | None
    host: str
    pid: int
    local_rank: int | None = None
    gpu: str | None = None
    gpu_name: str | None = None
    gpu_number: int | None = None
    confirmed: bool = False
    also_on: tuple[str, ...] = ()
    driver: str | None = None
    torch: str | None = None
    network_far: bool | None = None
    simulated: bool = False
    world_size: int | None = None
    backend: str | None = None
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
    """A rank that gave no whole answer.

    Attributes:
        name: Which one.

        why: "raised", "died", "silent", "interrupted", "refused" or "garbage"; "lost"
            where it raised only because another of these was gone; "deaf" where it
            was sent Ctrl-C and has not come back.

        text: What it said last, in a line.

        line: Where it was, where that is known.
    """

    name: int
    why: str
    text: str = ""
    line: CodeLine | None = None


@dataclass(frozen=True)
class RankTime(Record):
    """What one rank did with the time of a cell.

    Attributes:
        name: Which one.

        elapsed_s: From the beginning of the cell to all idle.

        own_s: Without waits and what moved.

        waits_s: How long it waited for others in what they did together.

        moves_s: How long data moved.

        blamed_s: How long others waited for it.

        last: How often it was the last to come.

        began_s: On the common clock; None without one.

        waits: When it waited, on its own clock from the beginning of the cell, as
            pairs; None where only sums are known.

        moves: Likewise when data moved.

        flags: What its own timing found: "throttled", "allocations", "syncs", ...
    """

    name: int
    elapsed_s: float
    own_s: float
    waits_s: float
    moves_s: float
    blamed_s: float
    last: int
    began_s: float | None = None
    waits: tuple[tuple[float, float], ...] | None = None
    moves: tuple[tuple[float, float], ...] | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveSum(Record):
    """What ranks did together under one name.

    Attributes:
        name: "all_reduce", ...

        count: How often each rank was in it.

        nbytes: What each rank put in, in all; None if unknown.

        waits_s: How long ranks waited in it, from the least to the most.

        moves_s: How long data moved, likewise.

        last: The rank that came last most often; None if all came at once.
    """

    name: str
    count: int
    nbytes: int | None
    waits_s: tuple[float, float]
    moves_s: tuple[float, float]
    last: int | None = None


@dataclass(frozen=True)
class RankMemory(Record):
    """The memory of one rank's device after a cell.

    Attributes:
        peak_bytes: The most that was allocated while the cell ran; None if unknown.

        limit_bytes: What its device has.
    """

    name: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    ooms: int | None = None

    @property
    def left_bytes(self) -> int | None:
        """How far the peak stayed below the limit."""
        if self.limit_bytes is None or self.peak_bytes is None:
            return None
        return self.limit_bytes - self.peak_bytes


@dataclass(frozen=True)
class Waiting(Record):
    """A collective that some ranks have called and others have not.

    Attributes:
        collective: "all_reduce", ...; None where only stacks tell.

        number: Its place in the order of its group.

        waiting: Which ranks wait in it.

        waited_s: For how long, the longest.

        missing: Which ranks have not called it.

        lines: Where these are, by rank, as far as known.

        mismatch: How the calls differ where they do: "rank 2 calls broadcast", "sizes
            4 KiB and 8 KiB"; None where they agree.
    """

    collective: str | None
    number: int | None
    waiting: tuple[int, ...]
    waited_s: float | None
    missing: tuple[int, ...]
    lines: tuple[tuple[int, CodeLine], ...] = ()
    mismatch: str | None = None
