"""What ranks send: plain dictionaries of a version, checked before they are believed.

A rank may run another gpumagic, be cut off in mid-sentence, or not be a rank at all.
What cannot be true makes all of an answer garbage, by name and never by an exception.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpumagic.report.collectives import Part
from gpumagic.report.places import CodeLine
from gpumagic.report.record import Garbage, Record, read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MIME = "application/vnd.gpumagic.rank+json"  # no front end shows it
VERSION = 3
MOST_BYTES = 4_000_000
FOR_EVER = 1 << 62  # nanoseconds
# Collectives of a rank, and of all: so many are analysed in a few seconds.
MOST, MOST_IN_ALL = 20_000, 200_000
_UNTRUE = (TypeError, ValueError, OverflowError, RecursionError)

EVERYBODYS = "0"  # what torch calls the group that all ranks are in
CELL_END = "the end of the cell"
RECORDER = "flight recorder"  # what tells of collectives without any profile
# Engines have no magics of ours until they are told to.
LOAD = "`%px %load_ext gpumagic` once, then"
DOCTOR = f"{LOAD} `%px %gpu_doctor` tells what is missing on each"


@dataclass(frozen=True)
class Seat(Record):
    """Where one rank sits."""

    name: int  # its rank; where there is no group yet, its place among the engines
    rank: int | None = None  # its number in the group; None without one
    engine: int | None = None  # its number in a cluster; None without one
    host: str = "?"  # the machine, by name
    pid: int = 0
    local_rank: int | None = None  # its number on its host, as its launcher says
    gpu: str = ""  # the UUID of its current device; empty for none
    gpu_name: str = ""
    gpu_number: int | None = None  # as nvidia-smi numbers it on its host
    confirmed: bool = False  # whether the driver says so; else it is a prediction
    also_on: tuple[str, ...] = ()  # UUIDs of other GPUs on which it holds memory
    simulated: bool = False  # whether its GPU is a simulated one
    backend: str = ""  # of its group, "nccl" or "gloo"; empty without one
    machine: str = ""  # tells apart those of one name; empty if unknown


@dataclass(frozen=True)
class RankMemory(Record):
    """The memory of one rank's fullest device after a cell."""

    peak_bytes: int  # the most that was allocated
    limit_bytes: int  # what its device has
    name: int = 0  # which rank

    @property
    def left_bytes(self) -> int:
        """How far the peak stayed below the limit."""
        return self.limit_bytes - self.peak_bytes


class Call(NamedTuple):
    """A collective that a rank has called."""

    group: str
    number: int
    name: str
    sizes: str = ""  # what it put in, as torch writes it; "" if unknown


@dataclass(frozen=True)
class Flight(Record):
    """Where a rank is in the order of its collectives."""

    under_way: tuple[Call, ...] = ()
    last: tuple[Call, ...] = ()


class Collective(NamedTuple):
    """What a rank did together with others, by its own clock."""

    group: str
    number: int | None  # None for what only two have to do with
    name: str
    nbytes: int | None  # what this rank put in; None if unknown
    arrived_ns: int
    ended_ns: int
    during: str = ""  # "forward", "backward", ...
    # when it did something else meanwhile: from, until, from, ... since it came
    beside: tuple[int, ...] = ()

    def part(self) -> Part:
        """The same as it is compared."""
        ends = [self.arrived_ns + each for each in self.beside]
        key = None if self.number is None else (self.name, self.number)
        spans = list(zip(ends[::2], ends[1::2], strict=True))
        part = Part(self.group, key, self.arrived_ns, self.ended_ns)
        return part.with_work(spans, sum(until - since for since, until in spans))


@dataclass(frozen=True)
class Done:
    """What a rank says of a cell that it has run."""

    seat: Seat
    began_ns: int
    ended_ns: int
    elapsed_s: float = 0.0  # by its timing, also of what no trace shows; 0 if unknown
    by_model: bool = False  # whether its clock is that of a simulated machine
    error: str = ""  # as in "ValueError: x"
    error_line: CodeLine | None = None
    collectives: tuple[Collective, ...] = ()
    has_ends: bool = True  # whether it is known when collectives ended
    told_by: str = ""  # what has told of them: "flight recorder", ...
    from_ns: int = -FOR_EVER  # from when on it is known what was done with others
    until_ns: int = FOR_EVER  # likewise until when
    # what its own timing found: in a word, and in a sentence
    flags: dict[str, str] = field(default_factory=dict)
    memory: RankMemory | None = None
    phases: dict[str, float] = field(default_factory=dict)
    steps_s: tuple[float, ...] = ()
    flight: Flight | None = None

    def __post_init__(self) -> None:
        if self.ended_ns < self.began_ns:
            raise Garbage("it ended before it began")
        for each in self.collectives:
            ends = each.beside
            if each.ended_ns < each.arrived_ns or len(ends) % 2 or min((*ends, 0)) < 0:
                raise Garbage("one of its collectives ended before it began")

    @property
    def name(self) -> int:
        """Its rank, or its place where it has none."""
        return self.seat.name

    @property
    def took_s(self) -> float:
        """How long it ran, also what is known in part."""
        return self.elapsed_s or (self.ended_ns - self.began_ns) / 1e9

    @property
    def line(self) -> CodeLine:
        """Where it is: where it failed, or at the end."""
        return self.error_line or CodeLine(CELL_END)

    def within(self, first_ns: int, last_ns: int) -> Done:
        """What it did between two moments."""
        began_ns = min(max(self.began_ns, first_ns), self.ended_ns)
        ended_ns = max(min(self.ended_ns, last_ns), began_ns)
        kept = tuple(
            each
            for each in self.collectives
            if began_ns <= each.arrived_ns and each.ended_ns <= ended_ns
        )
        return replace(self, began_ns=began_ns, ended_ns=ended_ns, collectives=kept)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Its collectives as they are compared."""
        return tuple(each.part() for each in self.collectives)


@dataclass(frozen=True)
class Alive(Record):
    """What a rank says while it runs."""

    name: int
    flight: Flight | None = None  # None without a recorder
    line: CodeLine | None = None
    inside: str = ""  # the function of torch.distributed that it is in
    stuck_s: float = 0.0  # for how long it has been in the same collective
    deaf: bool = False  # whether it was sent Ctrl-C, and has not come back

    @property
    def doing(self) -> str:
        """As in "in recv", or that it does something else."""
        return f"in {self.inside}" if self.inside else "at work"


@dataclass(frozen=True)
class Unfinished(Record):
    """A rank that gave no whole answer."""

    name: int  # which one
    # "raised", "died", "silent", "interrupted", "refused" or "garbage"; "lost" where
    # it raised only because another was gone; "deaf" where it does not hear Ctrl-C
    why: str
    text: str = ""  # what it said last, in a line
    line: CodeLine | None = None  # where it was, where that is known


def label_of(seats: Collection[Seat]) -> str:
    """What a report says of itself: that its GPUs are simulated."""
    is_simulated = seats and all(each.simulated for each in seats)
    return "simulated" if is_simulated else ""


Answer: TypeAlias = "Done | Alive | Seat | Unfinished"


def read_answer(said: object, place: int) -> Answer:
    """Read what a rank has sent; `place` is its name where it has no rank."""
    try:
        return _read(said, place)
    except Garbage as error:
        return Unfinished(place, "garbage", str(error))
    except _UNTRUE:  # nested without end, numbers of thousands of digits, no JSON
        return Unfinished(place, "garbage", "its answer is no valid JSON")


def _read(said: object, place: int) -> Answer:
    if not isinstance(said, dict):
        raise Garbage(f"it sent {type(said).__name__}")
    if said.get("version") != VERSION or isinstance(said["version"], bool):
        told = f"version {str(said.get('version'))[:30]} of its answers"
        raise Garbage(f"{told} is not {VERSION}: install the same gpumagic everywhere")
    if (nbytes := len(json.dumps(said))) > MOST_BYTES:
        raise Garbage(f"its answer has {nbytes:,} bytes")
    kind = said.get("kind")
    if kind == "seat":
        return _seat(said, place)
    if kind == "done":
        return read(Done, said, seat=_seat(said.get("seat"), place))
    if kind == "alive":
        return read(Alive, said, name=_seat(said, place).name, deaf=False)
    if kind == "absent" and said.get("why") in {"died", "silent"}:
        return read(Unfinished, said)
    raise Garbage(f"it sent {str(kind)[:30]!r}")


def _seat(said: object, place: int) -> Seat:
    """Where it sits; its name is its rank, if it has one."""
    seat = read(Seat, said or {}, name=place)
    return seat if seat.rank is None else replace(seat, name=seat.rank)


def each_once(read: Iterable[Answer]) -> list[Answer]:
    """One answer for each rank: of two that call themselves the same, the first."""
    found: dict[int, Answer] = {}
    twice: list[Answer] = []
    for place, each in enumerate(read):
        if each.name in found:
            text = f"it calls itself rank {each.name}, as another does"
            twice.append(Unfinished(place, "garbage", text))
        else:
            found[each.name] = each
    return [*found.values(), *twice]
