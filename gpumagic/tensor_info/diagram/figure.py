"""A figure of tiles, as a picture in HTML and as characters in text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.html import INSET, Html, element, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.table import INDENT, caption_ink, indented
from gpumagic.tensor_info.diagram.characters import bands_ink, spelled
from gpumagic.tensor_info.diagram.picture import bands_svg
from gpumagic.tensor_info.diagram.tiles import Key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.tensor_info.diagram.tiles import Matrix


@dataclass(frozen=True)
class Figure:
    """Matrices of tiles under one caption.

    Args:
        caption: What a tile is.

        bands: Matrices that stand beside each other, band by band.

        keys: How to read it, each in a few words; a `Key` where that depends on
            the form.

        remarks: What is not drawn.
    """

    caption: str
    bands: tuple[tuple[Matrix, ...], ...]
    keys: tuple[str | Key, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def legend(self) -> str:
        """The keys of the picture and the remarks in one line."""
        drawn = (key.drawn if isinstance(key, Key) else key for key in self.keys)
        return "; ".join((*drawn, *self.remarks))

    def html(self) -> Html:
        """Caption, picture, and how to read it."""
        drawn, width, height = bands_svg(self.caption, self.bands)
        alt = ". ".join(part for part in (self.caption, self.legend) if part)
        br = element("br")
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            br,
            svg.image(drawn, alt, width, height),
            *((br, words(self.legend)) if self.legend else ()),
            style=f"margin:0 0 .9em {INSET};line-height:1.8",
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        room = options.max_width - INDENT
        for line in bands_ink(self.bands, room, console, options):
            yield indented(line)
        for said in (*self._spelled_keys(), *self.remarks):
            yield indented(ink(spelled(said, options), options))

    def _spelled_keys(self) -> Iterator[str]:
        """The keys of what characters show."""
        for key in self.keys:
            said = key.spelled if isinstance(key, Key) else key
            if said:
                yield said
