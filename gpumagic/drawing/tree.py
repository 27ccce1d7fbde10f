"""What lies within what, with its share: lines that open, and lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

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
_MOST_HTML_LINES = {False: 100, True: 400}  # where the whole was asked for, more
_NAME_EM, _STEP_EM = 24, 1.2
_INDENTED = f"padding-left:{_STEP_EM}em"
_UNFOLDED = "padding-left:1.07em"  # as wide as the triangle before what opens


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

    HTML opens level by level. Text has what is in sight from the first, and the whole
    where it is asked for.
    """

    caption: str  # what lies within what
    headings: tuple[str, ...]  # of the figures
    root: Branch  # the whole
    whole: bool = False  # whether all of it is in sight

    def _in_sight(
        self, branch: Branch, level: int = 0
    ) -> Iterator[tuple[int, Branch, str]]:
        """Each line with its level, and what else is said of it."""
        is_open = branch.is_open or self.whole
        # Tensors of a module are not announced: that is what a module has.
        has_parts = any(each.below for each in branch.below) and not is_open
        more = count_text(len(branch.below), "part") if has_parts else ""
        yield level, branch, "; ".join(filter(None, (branch.said, more)))
        for each in branch.below if is_open else ():
            yield from self._in_sight(each, level + 1)

    def html(self) -> Html:
        """Lines that open; of very many the upper levels."""
        caption = element("div", words(self.caption), style="font-weight:600")
        return element(
            "div",
            lines((caption, self._html(self.root, 0, self._html_depth()))),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _html_depth(self) -> int:
        """How many levels a notebook can hold, one below the root at least."""
        most = _MOST_HTML_LINES[self.whole]
        level, count, depth = list(self.root.below), 1, 0
        while level and (count := count + len(level)) <= most:
            level = [each for branch in level for each in branch.below]
            depth += 1
        return max(depth, 1)

    def _html(self, branch: Branch, level: int, depth: int) -> Html:
        if not branch.below:
            return element("div", self._line_html(branch, level), style=_UNFOLDED)
        # What is in sight from the first is always there.
        if level >= depth and not branch.is_open:
            parts = count_text(len(branch.below), "part")
            parts += "" if self.whole else ", by --show tree"
            line = self._line_html(branch, level, parts)
            return element("div", line, style=_UNFOLDED)
        shown = branch.below[: _MOST_HTML_LINES[self.whole]]
        inside = [self._html(each, level + 1, depth) for each in shown]
        if more := len(branch.below) - len(shown):
            said = words(f"... and {count_text(more, 'line')}")
            inside.append(element("div", said, style=_UNFOLDED))
        return element(
            "details",
            element("summary", self._line_html(branch, level), style="cursor:pointer"),
            element("div", lines(inside), style=_INDENTED),
            open="open" if branch.is_open or self.whole or not level else "",
        )

    def _line_html(self, branch: Branch, level: int, more: str = "") -> Html:
        figures = ", ".join(
            f"{figure} {heading}".rstrip()
            for heading, figure in zip(self.headings, branch.figures, strict=True)
            if figure
        )
        width = max(_NAME_EM - _STEP_EM * level, 8)
        name = element(
            "span",
            words(branch.name),
            style=f"display:inline-block;min-width:{width:.4g}em",
        )
        percent = f"{min(max(branch.share, 0), 1) * 100:.1f}%"
        bar = element(
            "span",
            style="display:inline-block;width:5em;height:.7em;margin-right:.6em;"
            f"background:linear-gradient(90deg,{BLUE} {percent},{TRACK} {percent})",
        )
        told = "; ".join(filter(None, (figures, branch.said, more)))
        # Where styles are taken away, a blank alone keeps a name from its figures.
        return Html(f"{name} {bar} {escape(told)}")

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        glyphs = glyphs_for(options)
        heads = [ink(heading, options, "bold") for heading in self.headings]
        rows = [[Text(), *heads, Text()]]
        for level, branch, said in self._in_sight(self.root):
            name = Text("  " * level, overflow="fold")
            beside = Text(_bar(branch.share, glyphs), overflow="fold")
            if said:
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


def _bar(share: float, glyphs: Glyphs) -> str:
    """As many whole characters as fit, and one in part where there are such."""
    steps = len(glyphs.parts) + 1
    whole, rest = divmod(min(round(share * _BAR * steps), _BAR * steps), steps)
    part = glyphs.parts[rest - 1] if rest else ""
    return glyphs.full * whole + part + glyphs.gap * (_BAR - whole - len(part))
