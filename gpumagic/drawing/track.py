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


def track_html(share: float, fill: str, width_em: int) -> Html:
    """The bar as a gradient, the one kind of picture that CSS draws everywhere."""
    share = held(share)
    # As in text, neither end is reached by rounding.
    end = f"{min(max(100 * share, 1.0), 99.0) if 0 < share < 1 else 100 * share:.1f}%"
    return element(
        "span",
        style=f"display:inline-block;width:{width_em}em;max-width:100%;height:.9em;"
        f"border-radius:.15em;vertical-align:-.1em;"
        f"background:linear-gradient(90deg,{fill} {end},{TRACK} {end})",
    )


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
