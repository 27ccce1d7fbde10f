"""A number and its unit stay on one line."""

from __future__ import annotations

import re

# As wide as a space, but nobody breaks a line there. It never leaves the layout.
_GLUE = "\ue000"

_BETWEEN = re.compile(
    r"(?<=\d) (?=(?:[num]?s|min|h|%|[KMGTPE]?i?B(?:/s)?|[kMGTPE]?FLOPs?(?:/s)?)(?!\w))"
)


def glued(text: str) -> str:
    """The text with numbers bound to their units.

    >>> len(glued("391 us of 12 runs").split())
    4
    """
    return _BETWEEN.sub(_GLUE, text)


def loose(text: str) -> str:
    """The same text as it is read."""
    return text.replace(_GLUE, " ")
