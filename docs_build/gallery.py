"""The gallery's pages: each sample of a room as a notebook shows it, and as text."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import TYPE_CHECKING

from docs_build import rooms
from docs_build.frame import framed, place

if TYPE_CHECKING:
    from gpumagic.drawing import Drawing

_INTRODUCTION = """# What {title} can say

Each is drawn by the program from a report that was written by hand, so that rare
answers can be seen, too. In a notebook an answer looks as in the frame; a terminal
shows its text. The guide is [here](../{guide}).
"""
_INDEX = """# Gallery

What the magics can answer, as a notebook shows it. All are drawn by the program from
reports that were written by hand, the rare ones among them; its tests hold each of
them to the letter.

| Magic | Answers |
| --- | --- |
{rows}
"""


@cache
def _samples() -> dict[str, Drawing]:
    from tests.gallery.samples import everything

    return dict(everything())


def _of(folder: str) -> dict[str, Drawing]:
    """The samples of a room by their names in it."""
    start = f"{folder}-"
    return {
        name.removeprefix(start): drawing
        for name, drawing in _samples().items()
        if name.startswith(start)
    }


def _headings(folder: str) -> dict[str, str]:
    """A sentence for each sample of a room, by its name."""
    from tests.gallery.headings import of_room

    return of_room(folder)


def pages() -> dict[str, str]:
    """A page for each room, and one that leads to them."""
    rows = "\n".join(
        f"| [{room.title}]({room.folder}.md) | {len(_of(room.folder))} |"
        for room in rooms.every()
    )
    each = {f"gallery/{room.folder}.md": _page(room) for room in rooms.every()}
    return {"gallery/index.md": _INDEX.format(rows=rows)} | each


def _page(room: rooms.Room) -> str:
    parts = [_INTRODUCTION.format(title=room.title, guide=room.guide)]
    headings = _headings(room.folder)
    for name in _of(room.folder):
        # The search would find all of these before the guides.
        anchor = f"{{ #{name} data-search-exclude }}"
        parts.append(f"## {headings[name]} {anchor}\n\n{place(name)}")
    return "\n\n".join(parts)


def answers(folder: str) -> str:
    """A section for the guide: what the magic can say, each a link to its picture."""
    headings = _headings(folder)
    told = "\n".join(
        f"- [{headings[name]}](gallery/{folder}.md#{name}): {_plain(drawing.title)}"
        for name, drawing in _of(folder).items()
        if "hostile" not in name
    )
    return f"## What it can say\n\nEach leads to its picture in the gallery.\n\n{told}"


def with_drawings(page: str, folder: str) -> str:
    """The HTML of a gallery page with each drawing in its place."""
    for name, drawing in _of(folder).items():
        text = f"<pre>{html.escape(drawing.text())}</pre>"
        page = page.replace(
            place(name),
            f"{framed(drawing.html())}<details class='as-text'>"
            f"<summary>As text</summary>{text}</details>",
        )
    return page


def _plain(title: str) -> str:
    """A sentence that Markdown leaves as it is."""
    return re.sub(r"([\\`*_<>\[\]{}])", r"\\\1", " ".join(title.split()))
