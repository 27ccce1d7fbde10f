"""Is a printed block still what the program shows? Judged part by part."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\b(In|Out) ?\[\d+\]")  # how often a reader has run cells before
_RULE = re.compile("─+")  # under a heading, as long as what stands in the column
_CUT = "..."  # a line of its own: something is left out here


def missing(printed, shown):
    """The first part of a printed block that is not shown in that order; or None.

    Figures are compared as well: those of the simulated GPU are the same everywhere.
    Only the numbers of cells, the breaks of lines and the widths of columns may differ.
    """
    rest = _alike(shown)
    for part in _parts(printed):
        found = re.search(rf"(?<![\w.]){re.escape(_alike(part))}(?!\w|\.\d)", rest)
        if not found:
            return part
        rest = rest[found.end() :]
    return None


def _parts(printed):
    parts = [[]]
    for line in printed.rstrip("\n").split("\n"):
        if line.strip() == _CUT:
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(part) for part in parts if part]


def _alike(text):
    return " ".join(_RULE.sub("─", _PLACE.sub(r"\1[n]", text)).split())
