"""Reads the entries of a trace from text that arrives in pieces.

The standard library's decoder reads them some hundred at a time: that takes half of
the time of reading the whole at once and hardly any memory, it shows where a file that
was cut off ends, and one entry that is no JSON (`inf`, as Kineto writes some figures)
costs that entry alone.
"""

from __future__ import annotations

import codecs
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_EVENTS = "traceEvents"
_AT_ONCE = 2**16  # characters of entries that are decoded together
_MOST_OF_ONE = 2**26  # characters of one entry, or of what stands beside them
# Characters that are gone through in vain before a file is given up: one can be made in
# which each of a million beginnings has to be followed far.
_MOST_IN_VAIN = 2**28
_LONGEST_WORD = 16  # a piece may end within -Infinity, or within \\ud83d\\ude00
_OVERLAP = 200
# Microseconds that a float tells to the nanosecond: 101 days. Torch 2.2 and 2.3 count
# them from 1970 on.
_EXACT_US = 2**43

_blank = re.compile(r"[\s,]*").match
_between = re.compile(r"\}\s*,\s*\{").match
_LONG_TIME = re.compile(r'"ts"\s*:\s*(\d{13,})\.\d')
_NEXT = re.compile(
    r',\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:\s*["\d])'
)


class Entries:
    """The entries of a trace, which can be gone through once, many at a time.

    Attributes:
        values: What stands beside the list of them, of the keys that were asked for.

        count: How many have been read.

        left_out: How many could not be.

        place: How many characters the last of them that could be read ends after.

        is_listed: Whether the end of the list was there.

        is_cut: Whether the end of the file was not.

        is_damaged: Whether what came after could not be read.
    """

    def __init__(self, pieces: Iterable[bytes], keys: frozenset[str]) -> None:
        self.values: dict[str, Any] = {}
        self.count = self.left_out = self.place = 0
        self.is_cut = self.is_damaged = self.is_listed = False
        self._keys = keys
        self._text = _Text(pieces)
        self._between = ""  # what stands between two entries in this file
        self._singly_until = 0  # characters; so far one of them is no JSON

    def __iter__(self) -> Iterator[list[Any]]:
        try:
            yield from self._whole()
        except _EndsHere:
            self.is_cut = True
        except _Unreadable:
            self.is_damaged = True

    @property
    def nbytes(self) -> int:
        """How much has arrived."""
        return self._text.nbytes

    def _whole(self) -> Iterator[list[Any]]:
        """A file is an object with the list in it, or the list alone."""
        text = self._text
        opening = text.next()
        text.at += 1
        if opening == "[":
            yield from self._listed()
            return
        while text.next() != "}":
            key = text.value()
            if text.next(":") == "[" and key == _EVENTS:
                text.at += 1
                yield from self._listed()
            else:
                value = text.value()
                if isinstance(key, str) and key in self._keys:
                    self.values[key] = value

    def _listed(self) -> Iterator[list[Any]]:
        text = self._text
        text.reach(_AT_ONCE)
        text.look_for_long_times()
        while text.next() != "]":
            entries = self._many() or self._one()
            self.count += len(entries)
            self.place = text.place
            yield entries
        text.at += 1
        self.is_listed = True

    def _many(self) -> list[Any] | None:
        """Those whose ends are surely in sight; None where it is not so easy."""
        text = self._text
        if not self._between or text.place < self._singly_until:
            return None
        text.reach(_AT_ONCE)
        end = text.text.rfind(self._between, text.at, text.at + _AT_ONCE) + 1
        if not end:
            return None
        entries = text.list_until(end)
        if entries is None:
            self._singly_until = text.place + end - text.at
        return entries

    def _one(self) -> list[Any]:
        """The next one; none if it is no JSON but others come."""
        text = self._text
        try:
            entry = text.value()
        except _Unreadable:
            if text.in_vain > _MOST_IN_VAIN or not text.skip_to(_NEXT):
                raise
            self.left_out += 1
            return []
        found = _between(text.text, text.at - 1)
        self._between = found[0] if found else self._between
        return [entry]


class _EndsHere(Exception):
    """The text ends within something."""


class _Unreadable(Exception):
    """What comes next is no JSON, or not of a kind that can be read."""


def _scanner(number: type) -> Callable[[str, int], tuple[Any, int]]:
    """Reads the value that begins at a place."""
    decoder: Any = json.JSONDecoder(strict=False, parse_float=number)
    scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once
    return scan


class _Text:
    """The part of a text that is not read yet, as far as it has arrived.

    Attributes:
        text: That part, and some that has been read.

        at: What of it has been read.

        nbytes: How much has arrived altogether.

        in_vain: How many characters were gone through without coming to an end.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.text = ""
        self.at = 0
        self.nbytes = self.in_vain = 0
        self._gone = 0
        self._pieces: Iterator[bytes] | None = iter(pieces)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = _scanner(float)

    @property
    def place(self) -> int:
        """How many characters have been read altogether."""
        return self._gone + self.at

    def look_for_long_times(self) -> None:
        """Read numbers digit by digit if times would not be exact as floats."""
        long_time = _LONG_TIME.search(self.text, self.at)
        if long_time and int(long_time[1][:20]) >= _EXACT_US:
            self._scan = _scanner(Decimal)

    def reach(self, characters: int) -> None:
        """Have so many that are not read yet, if there are."""
        if len(self.text) - self.at < characters:
            self._more()

    def next(self, also: str = "") -> str:
        """The next character but blanks and commas, and but another once."""
        while True:
            self.at = _blank(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                character = self.text[self.at]
                if character != also:
                    return character
                self.at, also = self.at + 1, ""
            elif not self._more():
                raise _EndsHere

    def value(self) -> Any:
        """The value that begins here, whatever it is."""
        while True:
            try:
                value, end = self._scan(self.text, self.at)
            except StopIteration as stop:
                may_go_on = self._stopped(stop.value)
            except json.JSONDecodeError as error:
                may_go_on = self._stopped(error.pos)
                may_go_on = may_go_on or error.msg.startswith("Unterminated")
            except (ValueError, ArithmeticError, RecursionError):
                self._stopped(self.at + _AT_ONCE)  # it is not told where
                raise _Unreadable from None
            else:
                may_go_on = end == len(self.text) and self._pieces is not None
                if not may_go_on:
                    self.at = end
                    return value
            if not may_go_on or len(self.text) - self.at > _MOST_OF_ONE:
                raise _Unreadable
            if not self._more():
                raise _EndsHere

    def list_until(self, end: int) -> list[Any] | None:
        """All that comes before an end, if it is a list without its brackets."""
        whole = f"[{self.text[self.at : end]}]"
        try:
            values, length = self._scan(whole, 0)
        except (StopIteration, ValueError, ArithmeticError, RecursionError):
            return None
        if length != len(whole):
            return None
        self.at = end
        return values  # type: ignore[no-any-return]

    def skip_to(self, pattern: re.Pattern[str]) -> bool:
        """Go to where a pattern ends that begins after the next character, if any."""
        self.at += 1
        while True:
            found = pattern.search(self.text, self.at)
            if found:
                self.at = found.end()
                return True
            self.at = max(min(self.at, len(self.text)), len(self.text) - _OVERLAP)
            if not self._more():
                return False

    def _stopped(self, place: int) -> bool:
        """Whether it may only be for want of more text."""
        self.in_vain += place - self.at
        return place >= len(self.text) - _LONGEST_WORD

    def _more(self) -> bool:
        """Let as much arrive as is left, or a piece; False if nothing comes."""
        if self._pieces is None:
            return False
        arrived: list[str] = []
        wanted = len(self.text) - self.at
        for piece in self._pieces:
            self.nbytes += len(piece)
            arrived.append(self._decode(piece))
            wanted -= len(arrived[-1])
            if wanted < 0:
                break
        else:
            self._pieces = None
            arrived.append(self._decode(b"", final=True))
        self._gone += self.at
        self.text = self.text[self.at :] + "".join(arrived)
        self.at = 0
        return True
