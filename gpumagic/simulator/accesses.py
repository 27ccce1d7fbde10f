"""The accesses of one storage: kept as long as a later one may conflict with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.races import Layout

NOBODY, SEVERAL = -1, -2  # in the place of a stream
KEPT = 128  # accesses of a storage, for reads and writes each
_LEFT = 64  # when there were more

Span: TypeAlias = "tuple[int, int, int, Layout | None]"  # stream, low, high, layout
Access: TypeAlias = "tuple[int, Any, bool]"  # number, place, of a former owner
# What an operation reads or writes: storage, first byte, byte behind the last, layout.
Operand: TypeAlias = "tuple[Accesses, int, int, Layout | None]"


class Accesses:
    """The accesses of one storage that a later one may still conflict with.

    Args:
        size_bytes: The storage's size; a dense write of all of it makes whatever
            came before irrelevant.
    """

    __slots__ = ("reads", "size_bytes", "stream", "writes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.stream = NOBODY  # the only one that the accesses below come from
        self.reads: dict[Span, Access] = {}
        self.writes: dict[Span, Access] = {}

    def join(self, stream: int) -> None:
        """Another stream's access is about to be kept."""
        self.stream = stream if self.stream == NOBODY else SEVERAL

    def kept(self) -> Iterator[tuple[bool, Span, Access]]:
        """All accesses, each with whether it writes."""
        for writes, spans in ((False, self.reads), (True, self.writes)):
            for span, access in spans.items():
                yield writes, span, access


def trim(accesses: Accesses, host: list[int]) -> None:
    """Drop what no later access can miss, then the oldest."""
    newest = max(accesses.writes.items(), key=_number, default=None)
    for spans in (accesses.reads, accesses.writes):
        left = [
            item
            for item in spans.items()
            if item[1][0] > host[item[0][0]] and not (newest and _within(item, newest))
        ]
        left.sort(key=_number)
        spans.clear()
        spans.update(left[-_LEFT:])


def _within(item: tuple[Span, Access], write: tuple[Span, Access]) -> bool:
    """Whether a later dense write took the place of an access."""
    (_, low, high, _), (number, *_) = item
    (_, first, end, layout), (latest, *_) = write
    return layout is None and number < latest and first <= low and high <= end


def _number(item: tuple[Span, Access]) -> int:
    return item[1][0]


def moved(span: Span, first: int, end: int, by: int) -> Span:
    """The part of an access between two bytes, counted from another start."""
    stream, low, high, layout = span
    if layout is not None:
        layout = (layout[0] + by, *layout[1:])
    return stream, max(low, first) + by, min(high, end) + by, layout
