"""What to type to let go of memory that stands in the way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.records.leaks import LeakKind
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.records.leaks import Leak

_FREE = "%gpu_mem free"
_WORTH_A_LINE_BYTES = 1 << 20
_MUCH = 0.25  # of what is alive
_MOST_NAMES = 2


class Held(NamedTuple):
    """What is held beside the variables of the user's.

    Attributes:
        leaks: What may be without need.

        own_bytes: What the frames of the error hold that is asked about.

        own: The same by name, the largest first.

        names: The variables of the user's with what they hold, the largest first.

        live_bytes: What all tensors hold; None is unknown.
    """

    leaks: tuple[Leak, ...] = ()
    own_bytes: int = 0
    live_bytes: int | None = None
    own: tuple[Leak, ...] = ()
    names: tuple[tuple[str, int], ...] = ()

    @property
    def is_much_its_own(self) -> bool:
        """Whether much of what is alive is what the failing run had made."""
        return self.own_bytes > 0 and self.own_bytes >= _MUCH * (self.live_bytes or 0)

    def ways_to_need_less(self) -> Iterator[str]:
        """What most of it is that the failing run had made, by its names."""
        for each in self.own[:_MOST_NAMES]:
            if each.nbytes >= max(_MUCH * self.own_bytes, _WORTH_A_LINE_BYTES):
                yield f"{each.where} holds {bytes_text(each.nbytes)}: {each.undo}"

    def names_to_delete(self) -> str:
        """Which variables hold most, where any of them holds much."""
        enough = max(_MUCH * (self.live_bytes or 0), _WORTH_A_LINE_BYTES)
        most = [
            f"{name} {'' if number else 'holds '}{bytes_text(nbytes)}"
            for number, (name, nbytes) in enumerate(self.names[:_MOST_NAMES])
            if nbytes >= enough
        ]
        if not most:
            return (
                "%gpu_mem shows which names hold most: del what is not needed any more"
            )
        return f"{', '.join(most)}: del what is not needed any more; %gpu_mem shows all"

    def ways_to_let_go(self) -> Iterator[str]:
        """For errors and results: one command, beside those that variables hold."""
        undone = [leak.undo for leak in self.leaks if leak.kind is not LeakKind.GRAPH]
        for undo in undone:
            if not undo.startswith(_FREE):
                yield f"{undo}, then run the cell again"
        if not undone or any(undo.startswith(_FREE) for undo in undone):
            yield f"{_FREE}, then run the cell again"

    def ways_to_cut_graphs(self) -> Iterator[str]:
        """A graph may be needed: only the user knows."""
        for leak in self.leaks:
            if leak.kind is LeakKind.GRAPH and leak.nbytes >= _WORTH_A_LINE_BYTES:
                yield f"{leak.undo}, unless {leak.lost} is still to come"

    def of_the_error_itself(self) -> Iterator[str]:
        """It comes back, and is needed again: this alone leads in a circle."""
        if self.own_bytes >= _WORTH_A_LINE_BYTES:
            yield (
                f"{_FREE} gives back the {bytes_text(self.own_bytes)} that frames of "
                "this error still hold, but the cell will need them again"
            )
