"""One copy between pinned memory and a device, and the memory that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.simulator.backend.spans import operand_of
from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    import weakref
    from collections.abc import Iterator

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.backend.pinning import PinnedBuffer
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.races import Bytes


class Stretch(NamedTuple):
    """The geometry of a tensor, to be laid over a storage again."""

    dtype: Any
    offset: int
    size: Any
    stride: Any

    @classmethod
    def of(cls, tensor: Any) -> Stretch:
        """That of this tensor."""
        return cls(
            tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def on(self, storage: Any, torch: Any) -> Any:
        """A tensor of this geometry on a storage of the CPU."""
        empty = torch.empty(0, dtype=self.dtype, device="cpu")
        return empty.set_(storage, self.offset, self.size, self.stride)


class Flight:
    """One copy under way; it lives as long as the pinned memory does.

    Attributes:
        order: The stream that carries it out, in the tracker.

        mark: Where it stands in that stream.

        place: Where the user asked for it.

        span: Its bytes of the pinned memory.

        stretch: Its geometry there.

        arriving: What will be in the pinned memory once it has come, where readers
            that come too early are given poison.

        arrives: Whether it writes the pinned memory.

        expected: What is there as long as the host leaves it alone; None where
            there was no room to remember it, or enough is known.

        told: Whether its user knows that it is not waited for.

        target: The device's storage that it is sent to, and the geometry there.

        arrays: The numpy arrays of it that were made meanwhile, and where.
    """

    __slots__ = (
        "arrays",
        "arrives",
        "arriving",
        "expected",
        "mark",
        "order",
        "place",
        "span",
        "stretch",
        "target",
        "told",
    )

    def __init__(
        self,
        order: int,
        mark: Mark,
        place: PlaceMark | None,
        span: Bytes,
        stretch: Stretch,
        *,
        arrives: bool,
    ) -> None:
        self.order = order
        self.mark = mark
        self.place = place
        self.span = span
        self.stretch = stretch
        self.arrives = arrives
        self.arriving: Any = None
        self.expected: Any = None
        self.told = False
        self.target: tuple[weakref.ref[Any], Stretch] | None = None
        self.arrays: list[tuple[weakref.ref[Any], PlaceMark | None]] = []

    def meets(self, span: Bytes) -> bool:
        """Whether it has a byte in common with these."""
        return (
            self.span[0] < span[1]
            and span[0] < self.span[1]
            and overlap(self.span, span)
        )

    def race(
        self, place: PlaceMark | None, span: Bytes, *, writes: bool, found: bool = False
    ) -> Race:
        """What it is to touch its memory before it is done.

        Args:
            place: Where that was done, or noticed.

            span: What was touched.

            writes: Whether it was written.

            found: Whether only the change was found, not who has made it.
        """
        kind = Kind.WRITE_AFTER_READ
        if found:
            kind = Kind.CHANGED_UNSEEN
        elif self.arrives:
            kind = Kind.WRITE_AFTER_WRITE if writes else Kind.READ_AFTER_WRITE
        return Race(
            kind=kind,
            earlier_stream=self.order,
            earlier_place=self.place,
            earlier_writes=self.arrives,
            later_stream=HOST,
            later_place=place,
            later_writes=writes,
            low=max(self.span[0], span[0]),
            high=min(self.span[1], span[1]),
        )


def span_of(tensor: Any, buffer: PinnedBuffer) -> Bytes:
    """The bytes of a tensor on pinned memory."""
    return operand_of(tensor, buffer)[0][1:]


def read_as_arrays(flight: Flight) -> Iterator[Race]:
    """Reads by arrays that were made and let go before anything was there."""
    places = [place for reference, place in flight.arrays if reference() is None]
    for place in places[:1]:
        yield flight.race(place, flight.span, writes=False)


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors of one type and shape have the same bytes."""
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    word = words[one.element_size()]
    if _in_long_words(one) and _in_long_words(other):  # three times as fast as bytes
        one, other, word = one.view(-1), other.view(-1), torch.int64
    return bool(torch.equal(one.view(word), other.view(word)))


def _in_long_words(tensor: Any) -> bool:
    """Whether a tensor's bytes are whole words of eight, one behind the other."""
    item = tensor.element_size()
    begin, end = tensor.storage_offset() * item, tensor.numel() * item
    return bool(tensor.is_contiguous() and begin % 8 == end % 8 == 0)
