"""What a race is, which bytes can have one, and how it is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.report.record import Record
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = 0  # the host is the stream that was there first
_STEPS = 65_536  # spent on finding out whether two views overlap

# Byte offset, sizes, byte strides and item size of a strided view.
Layout: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...], int]"
# First byte, byte behind the last, and how what lies between is used: None is all.
Bytes: TypeAlias = "tuple[int, int, Layout | None]"


class Kind(enum.Enum):
    """Which order was needed and not given."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"
    MEMORY_REUSED = "memory reused"  # the earlier access was a former owner's
    CHANGED_UNSEEN = "changed unseen"  # later is where the change was noticed


@dataclass(frozen=True)
class Race(Record):
    """Two accesses of the same bytes that nothing orders.

    Earlier and later are meant as typed. The places are the caller's own tokens.
    The bytes count from the start of the storage; between strided views they are
    the bounds within which the two meet.
    """

    kind: Kind
    earlier_stream: int
    earlier_place: Any
    earlier_writes: bool
    later_stream: int
    later_place: Any
    later_writes: bool
    low: int
    high: int


def problem_and_hint(
    race: Race,
    stream_name: Callable[[int], str],
    place_name: Callable[[Any], str],
) -> tuple[str, str]:
    """What is wrong, with both places, in one sentence; and what to type where."""
    later, earlier = place_name(race.later_place), place_name(race.earlier_place)
    size, other = bytes_text(race.high - race.low), stream_name(race.earlier_stream)
    on_host = race.later_stream == HOST
    where = "the host" if on_host else stream_name(race.later_stream)
    verb = "writes" if race.later_writes else "reads"
    before = "writes" if race.earlier_writes else "reads"
    said = (
        f"{later} {verb} {size} on {where} that {earlier} {before} on {other}, and "
        "nothing makes it wait"
    )
    filler = later
    if race.kind is Kind.MEMORY_REUSED:
        said = (
            f"{later} {'writes to' if race.later_writes else verb} {size} on {where} "
            f"that were given back while another stream still used them: {earlier} "
            f"{before} them on {other}"
        )
        if on_host:
            return said, f"{other}.synchronize() before the tensor is deleted"
        return said, (
            f"x.record_stream({other}) while x, the deleted tensor, is still there; or "
            f"{where}.wait_stream({other}) before deleting it"
        )
    if race.kind is Kind.CHANGED_UNSEEN:
        filler = "anything"
        said = (
            f"{later} finds that the host changed some of the {size} of pinned memory "
            f"of {earlier} before they were "
            f"{'written' if race.earlier_writes else 'read'} on {other}"
        )
    if not on_host:
        return said, f"{where}.wait_stream({other}) before {later}"
    if race.later_writes:
        return said, (
            f"event = {other}.record_event() after {earlier}, and event.synchronize() "
            f"before {filler} fills the buffer again; or take turns with two buffers"
        )
    return said, (
        f"{other}.synchronize() before {later}, since a non_blocking copy returns "
        f"before the data is there"
    )


# ----------------------------------------------------------------- shared bytes


def overlap(one: Bytes, other: Bytes) -> bool:
    """Whether two views of one storage have a byte in common.

    The answer is exact unless it would take unreasonably many steps; then it is yes.
    """
    if max(one[0], other[0]) >= min(one[1], other[1]):
        return False
    if one[2] is None and other[2] is None:
        return True
    steps = enumerate(_search(_comb(one), _comb(other)))
    return any(met or step >= _STEPS for step, met in steps)


class _Comb(NamedTuple):
    """Runs of bytes at regular distances."""

    start: int
    run: int
    teeth: tuple[tuple[int, int], ...]  # distance and count, the nearest first

    def end(self) -> int:
        """The byte behind the last."""
        reach = sum(distance * (count - 1) for distance, count in self.teeth)
        return self.start + self.run + reach

    def pieces(self, start: int, end: int) -> Iterator[_Comb]:
        """The comb without its widest distance, where it may meet these bytes."""
        *teeth, (distance, count) = self.teeth
        size = self.end() - self.start - distance * (count - 1)
        first = max(0, (start - self.start - size) // distance + 1)
        last = min(count - 1, (end - self.start - 1) // distance)
        for index in range(first, last + 1):
            yield _Comb(self.start + index * distance, self.run, tuple(teeth))


def _comb(view: Bytes) -> _Comb:
    """The bytes of a view, neighbours joined."""
    low, high, layout = view
    if layout is None:
        return _Comb(low, high - low, ())
    start, sizes, strides, run = layout
    teeth = []
    for distance, count in sorted(zip(map(abs, strides), sizes, strict=True)):
        if distance <= run:
            run += distance * (count - 1)
        elif count > 1:
            teeth.append((distance, count))
    start += sum(min(0, step) * (n - 1) for step, n in zip(strides, sizes, strict=True))
    return _Comb(start, run, tuple(teeth))


def _search(one: _Comb, other: _Comb) -> Iterator[bool]:
    """Look for a common byte, one answer for each pair of parts looked at."""
    if one.start >= other.end() or other.start >= one.end() or _apart(one, other):
        yield False
    elif not one.teeth and not other.teeth:
        yield True
    else:
        yield False
        if one.teeth[-1:] < other.teeth[-1:]:
            one, other = other, one
        for piece in one.pieces(other.start, other.end()):
            yield from _search(piece, other)


def _apart(one: _Comb, other: _Comb) -> bool:
    """Whether the two never meet because they are out of step, like two columns."""
    pitch = gcd(*(distance for distance, _ in one.teeth + other.teeth))
    if pitch == 0:
        return False
    lead = (other.start - one.start) % pitch
    return one.run <= lead and lead + other.run <= pitch
