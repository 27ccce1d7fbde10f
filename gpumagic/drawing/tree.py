"""What lies within what, with its share: lines that open, and lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.document import Details
from gpumagic.drawing.html import INSET, Html, element, escape, lines, words
from gpumagic.drawing.ink import GAP, fit, glyphs_for, ink, widest
from gpumagic.drawing.palette import BLUE, TRACK
from gpumagic.drawing.table import INDENT, caption_ink, rows_ink
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.ink import Glyphs

_BAR, _NAME = 8, 8  # characters, of a name at least
_MOST_HTML_LINES = 60
_NAME_EM, _STEP_EM = 24, 1.2


@dataclass(frozen=True)
class Branch:
    """One line of a tree, and the lines below it."""

    name: str  # what it is called, and what it is
    figures: tuple[str, ...]  # one for each heading
    share: float  # of the whole, from 0 to 1
    said: str = ""  # what else is to be said of it
    below: tuple[Branch, ...] = ()  # what lies in it
    is_open: bool = False  # whether that is in sight from the first


@dataclass(frozen=True)
class Tree:
    """Things within things, such as the modules of a model.

    Text has what is in sight from the first, as it cannot be opened; `AllLevels` beside
    the tree has the rest.
    """

    caption: str  # what lies within what
    headings: tuple[str, ...]  # of the figures
    root: Branch  # the whole
    whole: bool = False  # whether the text has all of it

    def html(self) -> Html:
        """Lines that open; where there are very many, the upper levels."""
        # What is in sight from the first is always there.
        level, count, depth = [self.root], 1, 0
        while level := [each for branch in level for each in branch.below]:
            count += len(level)
            if count > _MOST_HTML_LINES * (1 + self.whole):
                break
            depth += 1
        caption = element("div", words(self.caption), style="font-weight:600")
        return element(
            "div",
            lines((caption, self._html(self.root, 0, depth))),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _html(self, branch: Branch, level: int, depth: int) -> Html:
        line = self._line_html(branch, level)
        if not branch.below or (level >= depth and not branch.is_open):
            return element("div", line, style="padding-left:1em")
        inside = [self._html(each, level + 1, depth) for each in branch.below]
        return element(
            "details",
            element("summary", line, style="cursor:pointer"),
            element("div", lines(inside), style=f"padding-left:{_STEP_EM}em"),
            open="open" if branch.is_open or self.whole else "",
        )

    def _line_html(self, branch: Branch, level: int) -> Html:
        width = max(_NAME_EM - _STEP_EM * level, 8)
        figures = ", ".join(
            f"{figure} {heading}" if heading else figure
            for heading, figure in zip(self.headings, branch.figures, strict=True)
            if figure
        )
        said = f"{figures}; {branch.said}" if branch.said else figures
        name = element(
            "span",
            words(branch.name),
            style=f"display:inline-block;min-width:{width:.4g}em",
        )
        # Where styles are taken away, a blank alone keeps a name from its figures.
        return Html(f"{name} {_bar_html(branch.share)} {escape(said)}")

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        glyphs = glyphs_for(options)
        heads = [ink(heading, options, "bold") for heading in self.headings]
        rows = [[Text(), *heads, Text()]]
        for level, branch, hidden in self._in_sight(self.root, 0):
            name = Text("  " * level, overflow="fold")
            beside = Text(_bar(branch.share, glyphs), overflow="fold")
            if said := "; ".join(filter(None, (branch.said, hidden))):
                beside.append(GAP).append_text(ink(said, options))
            figures = [ink(figure, options) for figure in branch.figures]
            rows.append([name.append_text(ink(branch.name, options)), *figures, beside])
        wants = [
            widest(each.plain for each in column) for column in zip(*rows, strict=True)
        ]
        least = [min(wants[0], _NAME), *wants[1:-1], min(wants[-1], 2 * _BAR)]
        room = options.max_width - INDENT - len(GAP) * (len(wants) - 1)
        widths = fit(wants, least, room) or least
        right = [False, *(True for _ in heads), False]
        yield from rows_ink(rows, widths, console, right=right)

    def _in_sight(
        self, branch: Branch, level: int
    ) -> Iterator[tuple[int, Branch, str]]:
        """Each line with its level, and how many parts with parts it does not show."""
        is_open = branch.is_open or self.whole
        has_parts = any(each.below for each in branch.below) and not is_open
        yield level, branch, count_text(len(branch.below), "part") if has_parts else ""
        for each in branch.below if is_open else ():
            yield from self._in_sight(each, level + 1)


def _bar(share: float, glyphs: Glyphs) -> str:
    """As many whole characters as fit, and one in part where there are such."""
    steps = len(glyphs.parts) + 1
    whole, rest = divmod(min(round(share * _BAR * steps), _BAR * steps), steps)
    part = glyphs.parts[rest - 1] if rest else ""
    return glyphs.full * whole + part + glyphs.gap * (_BAR - whole - len(part))


def _bar_html(share: float) -> Html:
    percent = f"{min(max(share, 0), 1) * 100:.1f}%"
    colours = f"{BLUE} {percent},{TRACK} {percent}"
    return element(
        "span",
        style="display:inline-block;width:5em;height:.7em;margin-right:.6em;"
        f"background:linear-gradient(90deg,{colours})",
    )


@dataclass(frozen=True)
class AllLevels(Details):
    """A tree with all of its levels, for text; in HTML the one in sight has them."""

    def html(self) -> Html:
        """Nothing, unless it was asked for."""
        return super().html() if self.is_open else Html("")
