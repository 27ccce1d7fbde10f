"""What the colours of a picture mean: a patch and words for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, element, words
from gpumagic.drawing.lanes import KIND_FILLS

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZE = 9

# Said aloud, and shown where pictures are not: as far apart as the colours are.
_NAMES = ("blue", "orange", "green", "pink", "grey")


def legend_html(said: Iterable[tuple[int, str]]) -> Html:
    """A patch and its words for each kind, in a row.

    The patch is a picture like those that it explains: where a site takes colours
    from the page, it leaves them in pictures.

    Args:
        said: The number of each kind's colour, and what it means.
    """
    return Html(" &nbsp; ".join(_entry(number, text) for number, text in said))


def _entry(number: int, text: str) -> Html:
    """Patch and words; a browser would break the line between the two."""
    first, *rest = text.split(" ", 1)
    held = _patch(number) + Html("\N{NO-BREAK SPACE}") + words(first)
    begun = element("span", Html(held), style="white-space:nowrap")
    return Html(" ".join((begun, *map(words, rest))))


def _patch(number: int) -> Html:
    """As small as can be, for a legend may have five of them."""
    shape = element("path", d="M0 0h9v9H0z", fill=KIND_FILLS[number])
    drawn = element("svg", shape, xmlns="http://www.w3.org/2000/svg")
    return svg.image(drawn, _NAMES[number], _SIZE, _SIZE)
