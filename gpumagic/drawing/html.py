"""HTML elements and pictures as strings, escaped by construction.

Whatever becomes `Html` went through `escape` or was built by `element`; a name
with a `<` in it cannot become markup by being forgotten.

JupyterLab drops `<svg>` from a notebook that somebody else reopens and keeps it inside
`<img>`. There it follows the theme of the operating system, not of JupyterLab; so
pictures hold fills proven on white and on black, and no text of their own except on a
fill. Names and axes stand around them in HTML.
"""

from __future__ import annotations

import base64
import html
import re
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NewType

from gpumagic.drawing.ink import clean
from gpumagic.drawing.palette import text_on

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.drawing.palette import Swatch

Html = NewType("Html", str)

# What stands beside tables begins where the text in their cells does.
INSET = ".45em"

# Prose ends where the widest tables do.
WIDEST_EM = 72

_LONG_NAME, _LONG_WORD = 24, 32

# Part of a number or a version, which two lines would make into two.
_IN_NUMBER = re.compile(r"\d[.,]\d|\d{6}")

# Up to 16 characters, or less where a separator offers itself.
_PIECE = re.compile(r".{1,15}?[._/:,-]+|.{1,16}")

# An option such as --step: a hyphen is where a line may break.
_OPTION = re.compile(r"--(?=\w)")

# What stands between two backticks, in sentences.
_CODE = re.compile(r"`([^`\s](?:[^`]*[^`\s])?)`")

_VOID = frozenset({"br", "img", "path", "circle"})


def escape(text: str) -> Html:
    """Any text as safe HTML, on one line.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return Html(html.escape(clean(text)))


def words(text: str) -> Html:
    """Text to be read: like `escape`, with places where a very long word may break.

    Names of tensors and kernels run to a hundred characters without a blank;
    unbroken, one of them pushes all numbers of its table out of sight. An option
    with its hyphens stays whole.
    """
    return _readable(clean(text))


def sentences(text: str) -> Html:
    """Like `words`, with what stands in backticks as code.

    >>> sentences("type `x.to(device)` again")
    'type <code>x.to(device)</code> again'
    """
    pieces = map(_readable, _CODE.split(clean(text)))
    # A pattern with one group splits into what is around it and what is in it, in turn.
    return Html(
        "".join(
            element("code", piece) if number % 2 else piece
            for number, piece in enumerate(pieces)
        )
    )


def _readable(cleaned: str) -> Html:
    return Html(" ".join(map(_breakable, cleaned.split(" "))))


def _breakable(word: str) -> str:
    most = _LONG_WORD if _IN_NUMBER.search(word) else _LONG_NAME
    if len(word) <= most:
        if _OPTION.search(word):
            return element("span", escape(word), style="white-space:nowrap")
        return escape(word)
    return "<wbr/>".join(map(escape, _PIECE.findall(word)))


def unbroken(text: str) -> Html:
    """Like `escape`, with a number kept on one line with its unit.

    `white-space: nowrap` would do, were it not 25 bytes for each cell.
    """
    if len(text) > _LONG_WORD:
        return words(text)
    return Html(escape(text).replace(" ", "\N{NO-BREAK SPACE}"))


def element(name: str, *children: Html, **attributes: str | int) -> Html:
    """One element; an attribute with an empty value is left out.

    >>> element("td", escape("1 < 2"), align="right")
    '<td align="right">1 &lt; 2</td>'
    """
    start = name + "".join(
        f' {key.replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    if name in _VOID:
        return Html(f"<{start}/>")
    return Html(f"<{start}>{''.join(children)}</{name}>")


def axis_html(marks: Iterable[str]) -> Html:
    """What a picture is measured by: its beginning, its middle and its end."""
    spans = (element("span", words(mark)) for mark in marks)
    style = "display:flex;justify-content:space-between;font-weight:normal"
    return element("div", Html(" ".join(spans)), style=style)


def lines(pieces: Iterable[str]) -> Html:
    """Pieces of HTML under each other, so that a stored output can be compared."""
    return Html("\n".join(piece for piece in pieces if piece))


def page(title: str, body: Html) -> str:
    """A file that a browser opens, light or dark as its reader has it."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        '<body style="font:14px/1.4 system-ui,sans-serif;max-width:1100px;'
        f'margin:1.5em auto;padding:0 1em">\n{body}\n</body></html>\n'
    )


# ------------------------------------------------------------------- pictures

_SVG = "http://www.w3.org/2000/svg"


def picture(width: int, height: int, title: str, *shapes: Html) -> str:
    """An SVG document; the title names it where the picture is opened alone."""
    return element(
        "svg",
        element("title", escape(title)),
        *shapes,
        xmlns=_SVG,
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
    )


def path(data: str, fill: str, *, edge: bool = False) -> Html:
    """A filled shape; many spans of one colour are one path, which keeps it small."""
    hair = {"stroke": "#fffa", "vector_effect": "non-scaling-stroke"} if edge else {}
    return element("path", d=data, fill=fill, **hair)


def outline(
    steps: Iterable[tuple[float, int]], height: int, room: int | None = None
) -> str:
    """The area under steps, each a share of the room and so many pixels long.

    What is there at all can be seen.
    """
    room = height if room is None else room
    tops = (
        (height - max(round(share * room), 1) if share > 0 else height, length)
        for share, length in steps
    )
    runs = groupby(tops, key=itemgetter(0))
    data = (f"V{top}h{sum(length for _, length in run)}" for top, run in runs)
    return f"M0 {height}{''.join(data)}V{height}z"


# What lies on a fill, in a square that is laid beside itself again and again.
_SQUARE = 6
_WHITE = {
    "stripes": "M0 6L6 0H4.4L0 4.4zM6 6V4.4L4.4 6z",
    "counterstripes": "M0 0L6 6V4.4L1.6 0zM0 6V4.4L1.6 6z",
    "dots": "M1 1h2v2H1zM4 4h2v2H4z",
    "rows": "M0 2h6v1.4H0z",
    "columns": "M1 0v6h1.2V0zM4 0v6h1.2V0z",
    "grid": "M0 0h6v1.2H0zM0 0h1.2v6H0z",
}
# Through its other half, what is behind it is seen.
_HATCHES = "M0 0L6 6V3L3 0zM0 6V3L3 6z"


def filled(data: str, swatch: Swatch, *, edge: bool = False) -> Html:
    """A shape in the colour and the pattern of what it stands for."""
    if not swatch.pattern:
        return path(data, swatch.fill, edge=edge)
    name = swatch.pattern[0] + swatch.fill[1:]
    tile = element(
        "pattern",
        *_tile(swatch),
        id=name,
        width=_SQUARE,
        height=_SQUARE,
        patternUnits="userSpaceOnUse",
    )
    return Html(tile + path(data, f"url(#{name})", edge=edge))


def _tile(swatch: Swatch) -> tuple[Html, ...]:
    if swatch.pattern == "hatches":
        return (path(_HATCHES, swatch.fill),)
    return path("M0 0h6v6H0z", swatch.fill), path(_WHITE[swatch.pattern], "#fff")


_FONT: dict[str, str | int] = {"font_size": 11, "font_family": "sans-serif"}


def texts(labels: Iterable[Html], fill: str) -> Html:
    """Labels in the middle of their places, all in one colour, which contrasts."""
    return element("g", *labels, fill=fill, **_FONT, text_anchor="middle")


_FITTING = "max-width:100%;vertical-align:middle"


def image(
    svg: str, alt: str, width: int, height: int, *, style: str = _FITTING
) -> Html:
    """The picture as an element that survives; `alt` tells what it shows."""
    data = base64.b64encode(svg.encode()).decode()
    return element(
        "img",
        alt=clean(alt),
        src=f"data:image/svg+xml;base64,{data}",
        width=width,
        height=height,
        style=style,
    )


def patch(swatch: Swatch) -> Html:
    """What a legend shows, as small as can be; a letter is also what is said of it."""
    width, height = (22, 14) if swatch.mark.isalpha() else (15, 10)
    shapes = [filled(f"M0 0h{width}v{height}H0z", swatch)]
    shapes += letter(swatch, 5) if swatch.mark.isalpha() else ()
    drawn = element("svg", *shapes, xmlns=_SVG)
    alt = swatch.mark if swatch.mark.isalpha() else swatch.name
    return image(drawn, alt, width, height, style="vertical-align:middle")


LETTER_WIDTH, LETTER_HEIGHT = 13, 14


def letter(swatch: Swatch, left: int = 0) -> tuple[Html, ...]:
    """The mark of a swatch on its plain fill, as no pattern lets it be read."""
    box = f"M{left} 0h{LETTER_WIDTH}v{LETTER_HEIGHT}h-{LETTER_WIDTH}z"
    at = {"x": left + LETTER_WIDTH // 2, "y": LETTER_HEIGHT - 3}
    text = element("text", escape(swatch.mark), **at)
    return path(box, swatch.fill), texts((text,), text_on(swatch.fill))


def wide_picture(width: int, height: int, title: str, *shapes: Html) -> str:
    """A picture that a page may draw out: its shapes grow wider, its letters do not."""
    held = [shape for shape in shapes if shape.startswith("<svg")]
    drawn_out = [shape for shape in shapes if shape not in held]
    return element(
        "svg",
        element("title", escape(title)),
        element(
            "svg",
            *drawn_out,
            width="100%",
            height="100%",
            viewBox=f"0 0 {width} {height}",
            preserveAspectRatio="none",
        ),
        *held,
        xmlns=_SVG,
    )


def written(text: str, left: float, share: float, base: int, fill: str) -> Html:
    """Words in a wide picture, cut where their fill ends."""
    box = {"x": f"{100 * left:.2f}%", "width": f"{100 * share:.2f}%"}
    return element(
        "svg", element("text", escape(text), x=4, y=base, fill=fill, **_FONT), **box
    )


def wide_image(
    svg: str, alt: str, width: int, height: int, *over: Html, most_em: int
) -> Html:
    """The picture in all the width that is left beside what is written."""
    drawn = image(svg, alt, width, height, style=f"width:100%;height:{height}px")
    # As with bars, a column that may shrink to nothing keeps no cell wide.
    columns = f"grid-template-columns:minmax(0,{most_em}em)"
    return element("div", drawn, *over, style=f"display:grid;{columns};min-width:8em")
