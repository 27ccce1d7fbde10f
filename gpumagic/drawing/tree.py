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

    def lines(self, level: int = 0, *, all_of_them: bool) -> Iterator[_Line]:
        """This line and those below it that are in sight."""
        hidden = 0 if all_of_them or self.is_open else len(self.below)
        yield _Line(level, self, hidden)
        for each in () if hidden else self.below:
            yield from each.lines(level + 1, all_of_them=all_of_them)


@dataclass(frozen=True)
class _Line:
    level: int
    branch: Branch
    hidden: int


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
        most = 2 * _MOST_HTML_LINES if self.whole else _MOST_HTML_LINES
        shown = _nearest(self.root, most)
        caption = element("div", words(self.caption), style="font-weight:600")
        return element(
            "div",
            lines((caption, self._html(self.root, 0, shown))),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _html(self, branch: Branch, level: int, shown: set[int]) -> Html:
        line = self._line_html(branch, level)
        below = [each for each in branch.below if id(each) in shown]
        if not below:
            return element("div", line, style="padding-left:1em")
        inside = [self._html(each, level + 1, shown) for each in below]
        if len(below) < len(branch.below):
            inside.append(element("div", words("... more by --show tree")))
        is_open = branch.is_open or self.whole
        return element(
            "details",
            element("summary", line, style="cursor:pointer"),
            element("div", lines(inside), style=f"padding-left:{_STEP_EM}em"),
            open="open" if is_open else "",
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
        for line in self.root.lines(all_of_them=self.whole):
            branch = line.branch
            name = Text("  " * line.level, overflow="fold")
            beside = Text(_bar(branch.share, glyphs), overflow="fold")
            if said := _said(line):
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


def _said(line: _Line) -> str:
    within = any(each.below for each in line.branch.below)
    more = count_text(line.hidden, "part") if line.hidden and within else ""
    return "; ".join(filter(None, (line.branch.said, more)))


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


def _nearest(root: Branch, most: int) -> set[int]:
    """The lines that are drawn: level by level, as far as there is room."""
    shown = {id(root)}
    level = [root]
    while level:
        below = [each for branch in level for each in branch.below]
        if len(shown) + len(below) > most:
            # What is in sight from the first is always there.
            shown |= _in_sight(root)
            break
        shown |= {id(each) for each in below}
        level = below
    return shown


def _in_sight(branch: Branch) -> set[int]:
    found = {id(branch)}
    for each in branch.below if branch.is_open else ():
        found |= _in_sight(each)
    return found


@dataclass(frozen=True)
class AllLevels(Details):
    """A tree with all of its levels, for text; in HTML the one in sight has them."""

    def html(self) -> Html:
        """Nothing, unless it was asked for."""
        return super().html() if self.is_open else Html("")
