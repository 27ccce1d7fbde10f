"""Does to the HTML of an output what a front end does to it."""

from __future__ import annotations

import html
from fnmatch import fnmatchcase
from functools import cache, lru_cache
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
        kept = "".join(_attribute(self._drops, tag, *each) for each in sorted(attrs))
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

    def _drops_any(self, selector):
        return _matches(selector, self._drops)


@lru_cache(100_000)
def _attribute(drops, tag, name, value):
    if _matches(f"@{name}", drops):
        return ""
    if name == "style":
        value = ";".join(each for each in value.split(";") if _keeps(drops, each))
    data = name == "src" and value.startswith("data:")
    if data and _matches(f"{tag}:data", drops):
        return ""
    return f' {name}="{html.escape(value or "")}"'


@lru_cache(100_000)
def _keeps(drops, declaration):
    name, _, value = declaration.strip().partition(":")
    words = (drop[1:] for drop in drops if drop[0] == "=")
    return not (
        _matches(f":{name}", drops) or any(word in value.lower() for word in words)
    )


@cache
def _matches(selector, drops):
    return any(fnmatchcase(selector, drop) for drop in drops)
