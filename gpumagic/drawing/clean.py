"""Text from anywhere as one line that every front end shows alike."""

from __future__ import annotations

import unicodedata

_UNSHOWABLE = "\N{REPLACEMENT CHARACTER}"

# XML, and so SVG, has no place for these two, though Unicode counts them as unassigned.
_NONCHARACTERS = "\ufffe\uffff"


def clean(text: str) -> str:
    r"""The text on one line, without what could move, hide or break it.

    Names come from users, from drivers and from other people's files. Control
    characters would reach the terminal as commands, direction marks would turn
    the rest of the line around, and lone surrogates cannot be encoded.

    >>> clean("two\nlines,\tone   gap"), clean("\x1b[31mred")
    ('two lines, one gap', '\ufffd[31mred')
    """
    return " ".join("".join(map(_shown, text)).split())


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("Z") or (category == "Cc" and character.isspace()):
        return " "
    if category in ("Cc", "Cs") or character in _NONCHARACTERS:
        return _UNSHOWABLE
    return "" if category == "Cf" else character
