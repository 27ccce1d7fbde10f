"""What somebody reads of HTML: words, tables, and the words within pictures."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")
_INLINE = frozenset({"span", "wbr", "strong", "small", "em", "abbr"})
_VOID = frozenset({"br", "img", "wbr", "hr", "link", "meta", "input"})
_SVG = "data:image/svg+xml;base64,"
_LABEL = re.compile(r"<text[^>]*>([^<]*)</text>")


@dataclass
class Read:
    """What is in some HTML."""

    # its words as they stand there, and those that a picture is told by
    said: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)  # the words within its pictures
    # of each table, how many cells wide its rows are
    tables: list[list[int]] = field(default_factory=list)
    pictures: int = 0
    bare: int = 0  # pictures that nothing is said of
    # elements that end where they should not
    faults: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that is said, with single blanks."""
        return " ".join("".join(self.said).split())

    def lacks(self, text: str, *, also: str = "") -> set[str]:
        """The words and numbers of a text that are neither here nor in `also`.

        A long name is broken in the text where it has to be; its pieces are looked
        for in what is said without blanks. A number must be there as a whole.
        """
        mine = f"{self.text} {also}"
        whole, run = set(_WORD.findall(mine)), re.sub(r"\W", "", mine)
        return {
            word
            for word in set(_WORD.findall(text)) - whole
            if _NUMBER.fullmatch(word) or word not in run
        }


def read(markup: str) -> Read:
    """What somebody reads of some HTML."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    reader.read.faults += [f"<{tag}> is not closed" for tag in reader.open]
    return reader.read


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.read = Read()
        self.open = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag not in _INLINE:
            self.read.said.append(" ")
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self.read.tables.append([])
        elif tag == "tr":
            self.read.tables[-1].append(0)
        elif tag in ("td", "th"):
            self.read.tables[-1][-1] += int(given.get("colspan", 1))
        elif tag == "img":
            self._look_at(given)

    def handle_endtag(self, tag):
        if tag not in _INLINE:
            self.read.said.append(" ")
        if tag not in _VOID and (not self.open or self.open.pop() != tag):
            self.read.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        self.read.said.append(data)

    def _look_at(self, given):
        alt, src = given.get("alt") or "", given.get("src") or ""
        self.read.pictures += bool(src)
        self.read.bare += not alt.strip()
        self.read.said.append(f" {alt} ")
        if src.startswith(_SVG):
            picture = base64.b64decode(src.removeprefix(_SVG)).decode()
            self.read.drawn.append(" ".join(_LABEL.findall(picture)))
