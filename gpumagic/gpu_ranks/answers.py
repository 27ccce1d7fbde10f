"""What ranks send: plain dictionaries of a version, checked before they are believed.

A rank may run another gpumagic, be cut off in mid-sentence, or not be a rank at all. So
what it says is read field by field: what is missing is None, what is too much is cut,
and what cannot be true makes all of it garbage, by name and never by an exception.
Whoever draws it makes it harmless to draw, as with every other text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.gpu_ranks.records import RankMemory, Seat, Unfinished
from gpumagic.report.collectives import Part
from gpumagic.report.places import CodeLine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MIME = "application/vnd.gpumagic.rank+json"  # no front end shows it
FREE = "gpumagic_free_request"  # what an engine is told beside the line that it runs
VERSION = 1
MOST_BYTES = 2_000_000
MOST_COLLECTIVES = 20_000
_MOST_LETTERS = 300
_MOST_STEPS, _MOST_NAMES, _MOST_FLAGS = 1_000, 50, 20
_OF_A_COLLECTIVE = 7  # fields that each has
_LARGEST = 1 << 63  # of nanoseconds and of bytes: beyond it, a figure is a mistake
_UNTRUE = (TypeError, ValueError, OverflowError, RecursionError)


class Garbage(ValueError):
    """Something that no rank can have meant."""


@dataclass(frozen=True)
class Done:
    """What a rank says of a cell that it has run."""

    name: int  # its rank, or its place where it has none
    seat: Seat
    elapsed_s: float | None
    clock: str  # "host" or "simulated"
    began_ns: int
    ended_ns: int
    # what is added to its clock to have that of rank 0; None if unknown
    offset_ns: int | None
    offset_error_ns: int | None
    error: str | None
    error_line: CodeLine | None
    parts: tuple[Part, ...]  # what it did together with others
    during: tuple[str, ...]  # for each of these "forward", "backward", ... or "".
    # for each of these its name, and what this rank put in; None if unknown
    calls: tuple[tuple[str, int | None], ...]
    flags: tuple[str, ...]
    memory: RankMemory | None
    phases: Mapping[str, float]
    steps_s: tuple[float, ...]
    flight: Flight | None
    # from when on it is known what was done with others; None for all of it
    from_ns: int | None = None
    until_ns: int | None = None  # likewise until when


@dataclass(frozen=True)
class Alive:
    """What a rank says while it runs."""

    name: int
    since_s: float  # for how long the cell has been running
    flight: Flight | None
    line: CodeLine | None
    inside: str | None  # the function of torch.distributed that it is in; None for none
    progress: tuple[int, int | None] | None  # steps done, and how many there are
    working: bool | None  # whether it works rather than waits; None if it cannot tell
    # for how long at least it has been in the very same collective; None where that
    # cannot be told
    stuck_s: float | None = None
    timeout_s: float | None = None  # after how long its group lets nobody wait any more
    # bytes in use on its GPU, by whomever, and how many that has
    memory: tuple[int, int] | None = None
    # whether it has been sent Ctrl-C, and has not come back; not its own word
    deaf: bool = False


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called."""

    group: str
    number: int
    name: str
    sizes: str = ""  # what it put in, as torch writes it; "" if unknown


@dataclass(frozen=True)
class Flight:
    """Where a rank is in the order of its collectives."""

    under_way: tuple[Call, ...]
    last: tuple[Call, ...]
    by: str = ""  # who has told; "" for torch's flight recorder


@dataclass(frozen=True)
class Sums:
    """What one of very many ranks says: sums instead of all it did with others."""

    name: int
    seat: Seat | None
    elapsed_s: float
    own_s: float
    waits_s: float
    moves_s: float
    blamed_s: float
    last: int
    memory: RankMemory | None
    error: str | None
    clock: str = "host"
    # how many collectives were found on all ranks of their groups; the same on all
    # ranks
    matched: int = 0
    unmatched: int = 0  # how many were not
    more_s: float = 0.0  # how much longer it may have waited, at most
    phases: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    # by name how often, bytes, waits and moves in nanoseconds, and how often it came
    # last
    collectives: tuple[tuple[str, int, int | None, int, int, int], ...] = ()


Answer: TypeAlias = "Done | Alive | Sums | Seat | Unfinished"


def from_text(text: str | bytes, place: int) -> Answer:
    """Read an answer that came as JSON."""
    if len(text) > MOST_BYTES:
        return _garbage(place, f"its answer has {len(text):,} bytes")
    try:
        return read(json.loads(text), place)
    except _UNTRUE:
        return _garbage(place, "its answer is no JSON")


def read(said: object, place: int) -> Answer:
    """Read an answer."""
    try:
        return _read(said, place)
    except Garbage as error:
        return _garbage(place, str(error))
    except _UNTRUE:  # nested without end, numbers of thousands of digits, no JSON
        return _garbage(place, "its answer is no JSON")


def _read(said: object, place: int) -> Answer:
    if not isinstance(said, dict):
        raise Garbage(f"it sent {type(said).__name__}")
    version, kind = said.get("version"), said.get("kind")
    if version != VERSION or isinstance(version, bool):
        told = f"version {_cut(version)} of its answers is not {VERSION}"
        raise Garbage(f"{told}: install the same gpumagic everywhere")
    kinds: dict[str, Callable[[_Fields, int], Answer]] = {
        "seat": _seat,
        "done": _done,
        "alive": _alive,
        "sums": _sums,
    }
    if not isinstance(kind, str) or kind not in kinds:
        raise Garbage(f"it sent {_cut(kind)!r}")
    nbytes = len(json.dumps(said))
    if nbytes > MOST_BYTES:
        raise Garbage(f"its answer has {nbytes:,} bytes")
    return kinds[kind](_Fields(said), place)


def _garbage(place: int, text: str) -> Unfinished:
    return Unfinished(place, "garbage", text)


# ------------------------------------------------------------------------- fields


class _Fields:
    """One dictionary; a field that is missing or null is None.

    Args:
        said: The dictionary.
    """

    def __init__(self, said: Mapping[Any, Any]) -> None:
        self._said = said

    def text(self, key: str) -> str | None:
        value = self._typed(key, str)
        return None if value is None else _cut(value, _MOST_LETTERS)

    def flag(self, key: str) -> bool | None:
        value: bool | None = self._typed(key, bool)
        return value

    def whole(self, key: str, least: int = -_LARGEST) -> int | None:
        value = self._said.get(key)
        return None if value is None else _whole(value, key, least)

    def number(self, key: str) -> float | None:
        value = self._said.get(key)
        return None if value is None else _number(value, key)

    def inner(self, key: str) -> _Fields | None:
        value = self._typed(key, dict)
        return None if value is None else _Fields(value)

    def listed(self, key: str, most: int) -> list[Any]:
        return (self._typed(key, list) or [])[:most]

    def pairs(self, key: str, most: int) -> list[tuple[str, Any]]:
        inner = self._typed(key, dict) or {}
        return [(str(name), each) for name, each in list(inner.items())[:most]]

    def _typed(self, key: str, kind: type) -> Any:
        value = self._said.get(key)
        if value is not None and not isinstance(value, kind):
            raise Garbage(f"its {key} is {type(value).__name__}")
        return value


def _cut(value: object, most: int = 30) -> str:
    r"""The beginning of a text, on one line and without control characters.

    >>> _cut("two\nlines"), _cut("\x1b[31mred")
    ('two lines', ' [31mred')
    """
    if isinstance(value, list | dict):
        raise Garbage(f"one of its texts is {type(value).__name__}")
    text = str(value)[:most]
    return "".join(each if each.isprintable() else " " for each in text)


def _whole(value: object, what: str, least: int = -_LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Garbage(f"its {what} is no whole number")
    if not least <= value < _LARGEST:
        raise Garbage(f"its {what} is beyond all measure")
    return value


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Garbage(f"its {what} is no number")
    if not math.isfinite(value) or not 0 <= value < _LARGEST:
        raise Garbage(f"its {what} is beyond all measure")
    return float(value)


def _needed(value: float | None, what: str) -> float:
    if value is None:
        raise Garbage(f"it does not say its {what}")
    return value


# -------------------------------------------------------------------------- kinds


def _seat(fields: _Fields, place: int) -> Seat:
    gpu = fields.inner("gpu") or _Fields({})
    rank = fields.whole("rank", 0)
    return Seat(
        name=place if rank is None else rank,
        rank=rank,
        engine=fields.whole("engine", 0),
        host=fields.text("host") or "?",
        pid=fields.whole("pid", 0) or 0,
        local_rank=fields.whole("local_rank", 0),
        gpu=gpu.text("uuid"),
        gpu_name=gpu.text("name"),
        gpu_number=gpu.whole("number", 0),
        confirmed=gpu.flag("confirmed") or False,
        also_on=tuple(_cut(each, 60) for each in fields.listed("also_on", 64)),
        driver=fields.text("driver"),
        torch=fields.text("torch"),
        network_far=fields.flag("network_far"),
        simulated=fields.flag("simulated") or False,
        world_size=fields.whole("world_size", 0),
        backend=fields.text("backend"),
        machine=fields.text("machine"),
    )


def _done(fields: _Fields, place: int) -> Done:
    seat = _seat(fields.inner("seat") or _Fields({}), place)
    rows = fields.listed("collectives", MOST_COLLECTIVES)
    beside = dict(map(_beside, fields.listed("beside", MOST_COLLECTIVES)))
    parts = [_part(each, beside.get(at, ())) for at, each in enumerate(rows)]
    began_ns = int(_needed(fields.whole("began_ns"), "beginning"))
    ended_ns = int(_needed(fields.whole("ended_ns"), "end"))
    if ended_ns < began_ns:
        raise Garbage("it ended before it began")
    return Done(
        name=seat.name,
        seat=seat,
        elapsed_s=fields.number("elapsed_s"),
        clock=fields.text("clock") or "host",
        began_ns=began_ns,
        ended_ns=ended_ns,
        offset_ns=fields.whole("offset_ns"),
        offset_error_ns=fields.whole("offset_error_ns", 0),
        error=fields.text("error"),
        error_line=_line(fields.inner("error_line")),
        parts=tuple(part for part, _, _ in parts),
        during=tuple(during for _, during, _ in parts),
        calls=tuple(call for _, _, call in parts),
        flags=_flags(fields),
        memory=_memory(fields.inner("memory"), seat.name),
        phases=_phases(fields),
        steps_s=tuple(
            _number(each, "steps") for each in fields.listed("steps_s", _MOST_STEPS)
        ),
        flight=_flight(fields.inner("flight")),
        from_ns=fields.whole("from_ns"),
        until_ns=fields.whole("until_ns"),
    )


def _flags(fields: _Fields) -> tuple[str, ...]:
    return tuple(_cut(each) for each in fields.listed("flags", _MOST_FLAGS))


def _phases(fields: _Fields) -> dict[str, float]:
    return {
        _cut(name): _number(each, "phases") for name, each in fields.pairs("phases", 10)
    }


def _part(
    row: object, spans: Sequence[tuple[int, int]]
) -> tuple[Part, str, tuple[str, int | None]]:
    """A collective: group, number, name, bytes, arrived, ended, during, beside."""
    if not isinstance(row, list) or len(row) < _OF_A_COLLECTIVE:
        raise Garbage("one of its collectives is none")
    group, number, told, nbytes, arrived, ended, during, *beside = row
    name, size = _cut(told, 60), None if nbytes is None else _whole(nbytes, "bytes", 0)
    arrived_ns, ended_ns = _whole(arrived, "arrival"), _whole(ended, "end")
    if ended_ns < arrived_ns:
        raise Garbage("one of its collectives ended before it began")
    key = None if number is None else (name, _whole(number, "number"))
    part = Part(_cut(group, 60), key, arrived_ns, ended_ns).with_work(
        [(arrived_ns + from_ns, arrived_ns + until_ns) for from_ns, until_ns in spans],
        _whole((*beside, 0)[0], "overlap", 0),
    )
    return part, _cut(during or ""), (name, size)


def _beside(row: object) -> tuple[int, list[tuple[int, int]]]:
    """Which collective, and pairs of from and until."""
    if not isinstance(row, list) or len(row) % 2 == 0:
        raise Garbage("one of its overlaps is none")
    place, *its = (_whole(each, "overlap", 0) for each in row)
    spans = list(zip(its[::2], its[1::2], strict=True))
    if any(until_ns < from_ns for from_ns, until_ns in spans):
        raise Garbage("one of its overlaps ended before it began")
    return place, spans


def _memory(fields: _Fields | None, name: int) -> RankMemory | None:
    if fields is None:
        return None
    return RankMemory(
        name,
        allocated_bytes=fields.whole("allocated_bytes", 0),
        reserved_bytes=fields.whole("reserved_bytes", 0),
        peak_bytes=fields.whole("peak_bytes", 0),
        limit_bytes=fields.whole("limit_bytes", 0),
        ooms=fields.whole("ooms", 0),
    )


def _line(fields: _Fields | None) -> CodeLine | None:
    where = None if fields is None else fields.text("where")
    return (
        None if fields is None or not where else CodeLine(where, fields.text("source"))
    )


def _alive(fields: _Fields, place: int) -> Alive:
    rank = fields.whole("rank", 0)
    progress = fields.listed("progress", 2)
    return Alive(
        name=place if rank is None else rank,
        since_s=_needed(fields.number("since_s"), "time"),
        flight=_flight(fields.inner("flight")),
        line=_line(fields.inner("line")),
        inside=fields.text("inside"),
        progress=_progress(progress) if progress else None,
        working=fields.flag("working"),
        stuck_s=fields.number("stuck_s"),
        timeout_s=fields.number("timeout_s"),
        memory=_filled(fields.listed("memory", 2)),
    )


def _filled(row: Sequence[object]) -> tuple[int, int] | None:
    if not row:
        return None
    if len(row) != 2:
        raise Garbage("its memory is none")
    return _whole(row[0], "memory", 0), _whole(row[1], "memory", 1)


def _progress(row: Sequence[object]) -> tuple[int, int | None]:
    if len(row) != 2:
        raise Garbage("its progress is none")
    total = None if row[1] is None else _whole(row[1], "progress", 0)
    return _whole(row[0], "progress", 0), total


def _flight(fields: _Fields | None) -> Flight | None:
    if fields is None:
        return None
    under_way, last = (
        tuple(map(_call, fields.listed(key, 20))) for key in ("under_way", "last")
    )
    return Flight(under_way, last, fields.text("by") or "")


def _call(row: object) -> Call:
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise Garbage("one of its collectives is none")
    group, number, name, *sizes = row
    texts = [_cut(each, 60) for each in (group, name, *sizes)]
    return Call(texts[0], _whole(number, "number", 0), texts[1], *texts[2:])


def _sums(fields: _Fields, place: int) -> Sums:
    rank = fields.whole("rank", 0)
    name = place if rank is None else rank
    elapsed_s, own_s, waits_s, moves_s, blamed_s = (
        _needed(fields.number(each), each)
        for each in ("elapsed_s", "own_s", "waits_s", "moves_s", "blamed_s")
    )
    seat = fields.inner("seat")
    return Sums(
        name,
        None if seat is None else _seat(seat, name),
        elapsed_s,
        own_s,
        waits_s,
        moves_s,
        blamed_s,
        last=fields.whole("last", 0) or 0,
        memory=_memory(fields, name),
        error=fields.text("error"),
        clock=fields.text("clock") or "host",
        matched=fields.whole("matched", 0) or 0,
        unmatched=fields.whole("unmatched", 0) or 0,
        more_s=fields.number("more_s") or 0.0,
        phases=_phases(fields),
        flags=_flags(fields),
        collectives=tuple(
            _of_a_name(each) for each in fields.listed("collectives", _MOST_NAMES)
        ),
    )


def _of_a_name(row: object) -> tuple[str, int, int | None, int, int, int]:
    """What a rank did under one name."""
    if not isinstance(row, list) or len(row) != 6:
        raise Garbage("one of its collectives is none")
    name, count, nbytes, *rest = row
    size = None if nbytes is None else _whole(nbytes, "bytes", 0)
    waits, moves, last = (_whole(each, "collectives", 0) for each in rest)
    return _cut(name, 60), _whole(count, "collectives", 0), size, waits, moves, last
