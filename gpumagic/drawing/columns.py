"""How wide columns become, so that numbers stay whole and only words wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpumagic.drawing.glue import glued

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A word that is longer than this is folded rather than given a wide column.
_LONGEST_WHOLE_WORD = 16


def fit(
    wants: Sequence[int], least: Sequence[int], room: int
) -> tuple[int, ...] | None:
    """Widths that share the room, the widest giving way first.

    Args:
        wants: The width at which nothing in the column wraps.

        least: The width below which the column cannot be read.

        room: What all of them have together.

    Returns:
        The widths, or None where even the least do not fit.

    >>> fit([4, 30], [4, 10], 24), fit([20, 30], [20, 10], 24)
    ((4, 20), None)
    """
    if sum(least) > room:
        return None
    widths = [min(want, room) for want in wants]
    while sum(widths) > room:
        giving = [place for place, width in enumerate(widths) if width > least[place]]
        widths[max(giving, key=widths.__getitem__)] -= 1
    return tuple(widths)


def widest(texts: Iterable[str]) -> int:
    """The width at which none of these texts wraps."""
    return max((cell_len(text) for text in texts), default=1)


def widest_word(texts: Iterable[str]) -> int:
    """The width at which words and numbers stay whole, except for very long ones."""
    words = (word for text in texts for word in glued(text).split())
    return max(2, min(widest(words), _LONGEST_WHOLE_WORD))
