"""Finds the user's line in a stack that torch has recorded.

A recording that the user has switched on has frames of C++ as well, unless they have
said `stacks="python"`: those of torch, and of the interpreter itself, come first.
"""

from __future__ import annotations

from typing import Any

from gpumagic.report.places import Places

_NOT_PYTHON = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".inc", "??")
_LIBRARY = ".so"  # named in the place of a source, where that is not known
_UNKNOWN = "<unknown>"


class StackPlaces(Places):
    """`Places` for which no file is the user's that is not Python's."""

    def is_users(self, filename: str) -> bool:
        """Whether a file is the user's."""
        return _is_python(filename) and super().is_users(filename)


def places_beside(torch: Any) -> StackPlaces:
    """What finds the user's lines.

    Args:
        torch: The torch module, whose files are nobody's own; None where there is none.
    """
    return StackPlaces(tuple(map(str, getattr(torch, "__path__", ()))))


def _is_python(filename: str) -> bool:
    name = filename.rpartition("/")[2]
    is_other = name.endswith(_NOT_PYTHON) or _LIBRARY in name or name == _UNKNOWN
    return bool(name) and not is_other
