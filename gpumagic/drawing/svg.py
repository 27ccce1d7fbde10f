"""Pictures: a few SVG shapes, and the only way they get into a notebook.

JupyterLab drops `<svg>` from a notebook that somebody else reopens and keeps
it inside `<img>`. There it follows the theme of the operating system, not of
JupyterLab; so pictures hold fills proven on white and on black, and no text
of their own except on a fill. Names and axes stand around them in HTML.
"""

from __future__ import annotations

import base64

from gpumagic.drawing.html import Html, element, escape
from gpumagic.drawing.ink import clean


def picture(width: int, height: int, title: str, *shapes: Html) -> str:
    """An SVG document; the title names it where the picture is opened alone."""
    return element(
        "svg",
        element("title", escape(title)),
        *shapes,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
    )


def path(data: str, fill: str) -> Html:
    """A filled shape; many spans of one colour are one path, which keeps it small."""
    return element("path", d=data, fill=fill)


def polyline(points: str, stroke: str) -> Html:
    """An open line through points."""
    return element(
        "polyline", points=points, fill="none", stroke=stroke, stroke_width="2"
    )


def circle(x: float, y: float, fill: str) -> Html:
    """A dot, for a value that has no neighbour to draw a line to."""
    return element("circle", cx=_short(x), cy=_short(y), r="2", fill=fill)


def words(text: str, x: float, y: float, fill: str) -> Html:
    """A label, to be put on a fill that it contrasts with."""
    return element(
        "text",
        escape(text),
        x=_short(x),
        y=_short(y),
        fill=fill,
        font_size=11,
        font_family="sans-serif",
    )


def image(svg: str, alt: str, width: int, height: int) -> Html:
    """The picture as an element that survives; `alt` tells what it shows."""
    data = base64.b64encode(svg.encode()).decode()
    return element(
        "img",
        alt=clean(alt),
        src=f"data:image/svg+xml;base64,{data}",
        width=width,
        height=height,
        style="max-width:100%;vertical-align:middle",
    )


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
