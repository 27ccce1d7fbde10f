"""A horizontal bar that is filled to a share, in HTML and in text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.glyphs import glyphs_for
from gpumagic.drawing.html import Html, element
from gpumagic.drawing.palette import TRACK

if TYPE_CHECKING:
    from rich.console import ConsoleOptions


def bar_html(stops: str, width_em: int, height: str, *, least_em: int = 0) -> Html:
    """A bar as a gradient, the one kind of picture that CSS draws everywhere.

    In a window too narrow for the table around it, the bar gives way before the
    numbers beside it do.

    Args:
        stops: Colours, each with where it begins or ends, as CSS has them.

        width_em: How wide the bar is where there is room.

        height: With its unit.

        least_em: How wide it stays; 0 where words in the same cell keep it wide.
    """
    # A cell never becomes narrower than a `width` in it, whatever `max-width` says;
    # of a column that may shrink to nothing it asks nothing. Where JupyterLab, before
    # 4.4, drops such columns from what it does not trust, `min-width` is left.
    least = f"min-width:{least_em}em;" if least_em else ""
    return element(
        "span",
        style=f"display:inline-grid;grid-template-columns:minmax(0,{width_em}em);"
        f"{least}height:{height};border-radius:.15em;vertical-align:-.1em;"
        f"background:linear-gradient(90deg,{stops})",
    )


def track_html(share: float, fill: str, width_em: int, *, least_em: int = 0) -> Html:
    """The bar on its track, which begins where the fill ends."""
    share = held(share)
    # As in text, neither end is reached by rounding.
    end = f"{min(max(100 * share, 1.0), 99.0) if 0 < share < 1 else 100 * share:.1f}%"
    # A stop before the last one stands where that one does.
    stops = f"{fill} {end},{TRACK} 0%"
    return bar_html(stops, width_em, ".9em", least_em=least_em)


def track_ink(share: float, cells: int, options: ConsoleOptions) -> Text:
    """The bar on its track, in whole cells: neither end is reached by rounding."""
    glyphs, share = glyphs_for(options), held(share)
    filled = round(share * cells)
    if 0 < share < 1:
        filled = min(max(filled, 1), cells - 1)
    return Text(glyphs.full * filled + glyphs.empty * (cells - filled))


def bar_ink(share: float, cells: int, options: ConsoleOptions) -> Text:
    """The bar alone, to an eighth of a cell; what is above zero can be seen."""
    glyphs, share = glyphs_for(options), held(share)
    steps = len(glyphs.parts) + 1
    length = round(share * cells * steps)
    whole, rest = divmod(max(length, 1) if share > 0 else 0, steps)
    return Text(glyphs.full * whole + (glyphs.parts[rest - 1] if rest else ""))


def held(share: float) -> float:
    """The share held between none and all; what is no number draws nothing."""
    return 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)
