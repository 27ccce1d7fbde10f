"""What is found of memory, as frozen records; the answers put them together."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record
from gpumagic.report.units import count_text, shortened

if TYPE_CHECKING:
    from gpumagic.report.places import CodeLine

_LONGEST_NAME = 48  # in a sentence
_SUMS = ("taken_bytes", "given_back_bytes", "taken", "retries", "ooms", "driver_calls")


@dataclass(frozen=True)
class Setting(Record):
    """Where it was looked."""

    kind: str  # of device, in the words of the user's code: "cuda", "cpu", "sim"
    label: str = ""  # what all figures of a simulated machine are labelled with

    def device(self, number: int | None) -> str:
        """The device as torch calls it."""
        return "the device" if number is None else f"{self.kind}:{number}"

    def on(self, *devices: int | None) -> str:
        """Where bytes are, to be put behind them; of several devices their number."""
        if len(devices) > 1:
            return f"on {count_text(len(devices), 'device')}"
        return f"on {self.device(*devices)}"


def short(name: str) -> str:
    """A name that fits into a sentence."""
    return shortened(name, _LONGEST_NAME)


# ------------------------------------------------------------ what the allocator counts


@dataclass(frozen=True)
class Counters(Record):
    """The caching allocator's own counters of one device, at one moment.

    None is a counter that this allocator does not keep.
    """

    device: int
    allocated_bytes: int | None = None  # handed out to tensors, as the allocator rounds
    reserved_bytes: int | None = None  # taken from the driver
    active_bytes: int | None = None  # and given back, but awaited by another stream
    peak_bytes: int | None = None  # the most, since somebody reset it
    taken_bytes: int | None = None  # altogether, since somebody reset the sums
    given_back_bytes: int | None = None  # given back altogether
    taken: int | None = None  # how often memory was handed out
    retries: int | None = None  # how often the cache was emptied for want of memory
    ooms: int | None = None  # how often that did not help either
    driver_calls: int | None = None  # that took memory, or gave it back


class PeakKind(enum.Enum):
    """How well the peak of a cell is known."""

    EXACT = "exact"
    BOUND = "between two bounds"  # the upper one may be infinite
    REPLAYED = "replayed from each allocation"  # as requested, without rounding
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Peak(Record):
    """The most that was allocated at once while a cell ran."""

    kind: PeakKind = PeakKind.UNKNOWN
    low_bytes: int = 0
    high_bytes: float = math.inf  # where no bound is known; `low_bytes` if exact


@dataclass(frozen=True)
class DeviceChange(Record):
    """What a cell did to the memory of one device."""

    before: Counters
    after: Counters  # without sums where the cell has reset counters
    peak: Peak = Peak()  # the most at once in between

    @property
    def device(self) -> int:
        """Its number."""
        return self.after.device

    @property
    def allocated_delta(self) -> int | None:
        """How much more is allocated; negative is less."""
        return difference(self.after.allocated_bytes, self.before.allocated_bytes)

    @property
    def gross_bytes(self) -> int | None:
        """All that was handed out in between, however soon it came back.

        None where somebody has reset the sums in between, unseen.
        """
        if sums_were_reset(self.before, self.after):
            return None
        return difference(self.after.taken_bytes, self.before.taken_bytes)

    @property
    def moved(self) -> bool:
        """Whether anything happened there, or may have: that is not counted."""
        reserved = difference(self.after.reserved_bytes, self.before.reserved_bytes)
        return self.allocated_delta != 0 or bool(reserved or self.gross_bytes)


class BadgeKind(enum.Enum):
    """Something about memory that should be seen at once, in a word or two."""

    RETRY = "cache emptied"  # times
    OOM_CAUGHT = "OOM caught"  # times
    DRIVER_CALLS = "driver calls"  # calls
    UNCOUNTED = "no counters"
    SHARED = "shared"  # how many other processes
    SILENT = "no answer"


@dataclass(frozen=True)
class CellBadge(Record):
    """One of them, with its figure."""

    kind: BadgeKind
    device: int
    amount: int = 0


def difference(one: int | None, other: int | None) -> int | None:
    """How much more one is than the other; unknown if one of them is."""
    return None if one is None or other is None else one - other


def excess(one: int | None, other: int | None) -> int | None:
    """How much more one is than the other, at least nothing."""
    more = difference(one, other)
    return None if more is None else max(more, 0)


def sums_were_reset(before: Counters, after: Counters) -> bool:
    """Whether the sums were: then they fall, or do not explain what is allocated."""
    grown = {}
    for name in ("allocated_bytes", *_SUMS):
        grown[name] = difference(getattr(after, name), getattr(before, name))
        if name in _SUMS and (grown[name] or 0) < 0:
            return True
    kept = difference(grown["taken_bytes"], grown["given_back_bytes"])
    return bool(difference(grown["allocated_bytes"], kept))


# -------------------------------------------------------------------------- devices


@dataclass(frozen=True)
class DeviceMemory(Record):
    """One device now, by the allocator and by the driver."""

    counters: Counters
    name: str | None = None
    total_bytes: int | None = None  # of the device; of a slice, of that
    free_bytes: int | None = None  # as the driver tells
    others_bytes: int | None = None  # what other processes hold, where that can be told
    other_processes: int | None = None  # how many there are
    process_bytes: int | None = None  # what this one holds, by the driver's account
    cap_bytes: int | None = None  # what it may take, if it has set a limit
    is_silent: bool = False  # CUDA itself did not answer, as after an error

    @property
    def cached_bytes(self) -> int | None:
        """Taken from the driver and not in use."""
        return difference(self.counters.reserved_bytes, self.counters.allocated_bytes)

    @property
    def cap_left_bytes(self) -> int | None:
        """What this process may still take, where it has set a limit."""
        return excess(self.cap_bytes, self.counters.reserved_bytes)

    @property
    def used_bytes(self) -> int | None:
        """What of the device is in use, by whomever."""
        return difference(self.total_bytes, self.free_bytes)

    @property
    def outside_bytes(self) -> int | None:
        """What this process has besides what its allocator took from the driver.

        The context, loaded kernels, communication buffers: in no counter of torch.
        """
        held = self.process_bytes
        if held is None:
            if self.other_processes != 0 and self.others_bytes is None:
                return None  # what is not ours may be anybody's
            held = difference(self.used_bytes, self.others_bytes or 0)
        return excess(held, self.counters.reserved_bytes)


# ------------------------------------------------------------------ whose the bytes are


class HolderKind(enum.Enum):
    """Who keeps memory alive."""

    VARIABLE = "variable"
    GRAPH = "autograd graph"  # saved for a backward pass
    OUTPUT = "output"  # Out[n], _, and where IPython keeps them besides
    ERROR = "error"  # frames of a traceback
    MODULE = "module"  # globals of imported modules
    LIBRARY = "library"  # workspaces of cuBLAS and the like
    UNATTRIBUTED = "unattributed"  # in use, and reached from nowhere


# Rows of these kinds stand for no name of the user's.
NAMELESS = (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)


@dataclass(frozen=True)
class Holder(Record):
    """A name with the memory that it keeps alive on one device."""

    name: str  # as it is typed: `model`, `Out[3]`; of an error `logits in train_step`
    kind: HolderKind
    device: int
    own_bytes: int  # what would come back if only this name went
    reachable_bytes: int  # all that can be reached from it
    shares_with: str = ""  # another name that reaches some of the same memory
    delta_bytes: int = 0  # how much more it reaches than before the cell


@dataclass(frozen=True)
class Holdings(Record):
    """Who holds what. For each device the rows add up to what is allocated."""

    # Largest first. Each storage counts for one row only in `own_bytes` and in the
    # sums; the last row of a device is what nobody was found for.
    holders: tuple[Holder, ...] = ()
    allocated_bytes: tuple[tuple[int, int], ...] = ()  # by device
    # by device and kind, without what an earlier kind has counted already
    sums: tuple[tuple[int, HolderKind, int], ...] = ()
    partial: bool = False  # more may belong to the names: the search was cut short
    remarks: tuple[str, ...] = ()  # what could not be looked at, in sentences


NO_HOLDINGS = Holdings()


# ---------------------------------------------------------------------- lines and cells


@dataclass(frozen=True)
class LineUse(Record):
    """What one line of the cell did."""

    place: str  # `line 3`, `train.py, line 40`; "" where no line can be found for it
    number: int  # in the cell, whose magic line is line 1; 0 for no line of it
    source: str  # as it was typed
    device: int
    backward: bool = False  # taken by a backward pass that it started
    grows: bool = False  # more of it stays with each pass of a loop
    allocated_bytes: int = 0
    freed_bytes: int = 0
    at_peak_bytes: int = 0  # of this line, and alive when the most was allocated
    left_bytes: int = 0  # of this line, and still in use at the end


@dataclass(frozen=True)
class Course(Record):
    """How much was in use on one device, from the beginning of a cell to its end.

    Each step is a piece of memory that was taken or given back, in their order; where
    there are many, a stretch of them is one entry.
    """

    device: int
    steps: int  # how many there were
    # the least in each stretch; the first is before all steps
    lowest_bytes: tuple[int, ...]
    highest_bytes: tuple[int, ...]  # the most
    peak_bytes: int  # the most of all
    peak_place: str  # the line that reached it first; "" where none can be found
    # what was in use then, the largest first: `in model`, `from line 3`
    at_peak: tuple[tuple[str, int], ...] = ()


# ---------------------------------------------------------- what is probably not wanted


class LeakKind(enum.Enum):
    """Who keeps alive what nobody wants any more."""

    ERROR = "an error"  # its frames, of the last one in three places
    OUTPUT = "shown results"  # Out[n], _, __, ___ and the hidden ones
    GRAPH = "a graph for a backward pass"  # e.g. of losses that are added up


@dataclass(frozen=True)
class Leak(Record):
    """One holder of memory that is probably not wanted."""

    kind: LeakKind
    where: str  # what holds it: `Out[12]`, `logits in train_step of the last error`
    device: int
    nbytes: int
    undo: str = ""  # what to type to let go of this alone
    lost: str = ""  # what is lost by that: `%debug`, `Out[12]`


# ---------------------------------------------------------------------- what lies where


class BlockState(enum.Enum):
    """What a block of a segment is."""

    ALLOCATED = "allocated"
    PENDING = "pending"  # given back, awaited by another stream
    FREE = "free"


@dataclass(frozen=True)
class Block(Record):
    """A piece of a segment."""

    offset_bytes: int
    nbytes: int
    state: BlockState
    names: tuple[str, ...] = ()  # variables of the notebook that lie there
    line: CodeLine | None = None  # where it was allocated, where that was recorded


@dataclass(frozen=True)
class Segment(Record):
    """A piece of memory that was taken from the driver."""

    device: int
    address: int
    nbytes: int
    # the stream that may use its free parts, as a small number: 0 is the default one
    stream: int
    pool: str  # "small" or "large"; of a graph or a pool of the user's its number
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def allocated_bytes(self) -> int:
        """In use."""
        return sum(b.nbytes for b in self.blocks if b.state is BlockState.ALLOCATED)


@dataclass(frozen=True)
class HeldBack(Record):
    """Segments that are free in part, and that the same blocks are in the way of."""

    names: tuple[str, ...]  # whose blocks these are, the largest first
    others: int  # blocks of a segment that have not the first name
    device: int
    place: str  # the pool, and the stream if it is not the default one
    blocks: int = 0
    segments: int = 0
    used_bytes: int = 0
    free_bytes: int = 0  # what they hold back
    hole_bytes: int = 0  # the largest free piece

    @property
    def holders(self) -> str:
        """The largest of the blocks by name, and how many others there are."""
        if not self.names:
            nameless = "block without a name", "blocks without a name"
            return count_text(self.others, *nameless)
        more = f" and {count_text(self.others, 'other block')}" if self.others else ""
        return f"{short(self.names[0])}{more}"


# -------------------------------------------------------- requests, and why they failed


class Cause(enum.Enum):
    """Which sentence an out-of-memory error comes down to; none where nothing tells."""

    NEVER_FITS = "more than the device has"
    TOO_MUCH_LIVE = "too much is alive"
    FRAGMENTED = "enough is free, but in no piece that is large enough"
    OTHERS = "others on the device hold much"
    LEAKED = "freeing likely leaks would be enough"


@dataclass(frozen=True)
class Answer(Record):
    """Whether a request fits now, and where."""

    device: int = 0
    rounded_bytes: int = 0  # what the allocator would make of the request
    # the largest free piece of the right pool and stream
    hole_bytes: int | None = None
    device_free_bytes: int | None = None
    releasable_bytes: int | None = None  # free segments that could be given back first
    cap_left_bytes: int | None = None
    # "hole", "driver", "after releasing" or "nowhere"; None is unknown
    place: str | None = None


NO_ANSWER = Answer()


@dataclass(frozen=True)
class OomFacts(Record):
    """What is known of an out-of-memory error, from its text and from that moment."""

    text: str = ""  # none of no error
    cell: int | None = None  # the cell that was run; None outside of a notebook
    line: CodeLine | None = None  # of the user's, also in a function of another cell
    device: int | None = None
    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    called_from: CodeLine | None = None  # the cell's line, where `line` is elsewhere
    allowed_bytes: int | None = None  # the limit of this process, where there is one
    # other processes, as process number and bytes. In a container torch does not
    # recognise its own process and lists it among them: then none is told.
    others: tuple[tuple[int, int], ...] = ()

    @property
    def others_bytes(self) -> int | None:
        """What other processes held, as far as the error tells it."""
        if self.others:
            return sum(nbytes for _, nbytes in self.others)
        used = difference(self.total_bytes, self.free_bytes)
        return excess(used, self.process_bytes)


NO_OOM = OomFacts()
