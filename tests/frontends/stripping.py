"""Does to the HTML of an output what a front end does to it."""

from __future__ import annotations

import html
from fnmatch import fnmatchcase
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.frontends.rules import FrontEnd

# Of other elements that are dropped, the words stay.
_DROPPED_WITH_ALL_IN_THEM = frozenset({"script", "style"})


def stripped(markup: str, front_end: FrontEnd) -> str:
    """What is left of some HTML."""
    strip = _Strip(front_end)
    strip.feed(markup)
    strip.close()
    return "".join(strip.kept)


class _Strip(HTMLParser):
    def __init__(self, front_end):
        super().__init__(convert_charrefs=True)
        self._drops = front_end.drops
        self._silent = 0
        self.kept = []

    def handle_starttag(self, tag, attrs):
        if self._drops_any(tag):
            self._silent += tag in _DROPPED_WITH_ALL_IN_THEM
            return
        # In a fixed order: converters write attributes in one of their own.
        kept = "".join(self._attribute(tag, *each) for each in sorted(attrs))
        self.kept.append(f"<{tag}{kept}>")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if self._drops_any(tag):
            self._silent -= tag in _DROPPED_WITH_ALL_IN_THEM
        else:
            self.kept.append(f"</{tag}>")

    def handle_data(self, data):
        if not self._silent:
            self.kept.append(html.escape(data, quote=False))

    def _attribute(self, tag, name, value):
        if self._drops_any(f"@{name}"):
            return ""
        if name == "style":
            value = ";".join(filter(self._keeps, value.split(";")))
        data = name == "src" and value.startswith("data:")
        if data and self._drops_any(f"{tag}:data"):
            return ""
        return f' {name}="{html.escape(value or "")}"'

    def _keeps(self, declaration):
        name, _, value = declaration.strip().partition(":")
        words = (drop[1:] for drop in self._drops if drop[0] == "=")
        return not (
            self._drops_any(f":{name}") or any(word in value.lower() for word in words)
        )

    def _drops_any(self, selector):
        return _matches(selector, self._drops)


@cache
def _matches(selector, drops):
    return any(fnmatchcase(selector, drop) for drop in drops)
