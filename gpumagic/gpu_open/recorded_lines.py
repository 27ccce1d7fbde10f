"""Finds the user's lines in stacks that were recorded on another machine.

Nothing of that machine is here to be looked at. So paths alone decide what is Python's,
torch's and a library's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_history import Spot
from gpumagic.report.places import CodeLine, line_in, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LONGEST_NAME = 80
# torch, and what Python brings along, wherever they are installed.
_FOUNDATION = re.compile(
    r"""
      (?:^|/)lib(?:64)?/python\d(?!.*/(?:site|dist)-packages/)
    | (?:^|/)python[\d.]*(?:\.zip|/lib)/(?!.*site-packages/)  # C:/Python311/Lib/
    | /(?:\w*conda\d?|envs/[^/]+)/lib/[^/]+\.py$   # C:/miniconda3/Lib/random.py
    | (?:^|/)(?:site|dist)-packages/torch/ | (?:^|/)gpumagic/
    | (?:^|/)torch/(?:                             # built from its sources
        _\w+ | amp | ao | autograd | backends | compiler | cuda | distributed | fft
        | functional\.py | fx | jit | library\.py | linalg | multiprocessing | nested
        | nn | optim | overrides\.py | profiler | random\.py | serialization\.py
        | sparse | storage\.py | utils | xpu
    )(?:/|\.py$|$)
    | importlib/_bootstrap | (?:^|/)fx_generated_[^/]*\.py$ | torchinductor_
    | ^<(?!ipython-input|stdin)                    # <frozen ...>, <string>, fx's own
    """,
    re.VERBOSE | re.IGNORECASE,
)
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/", re.IGNORECASE)
# Frames of C++ have no file, or a library; a script may have no ending.
_PYTHON = re.compile(r"(?:\.py|>)$|(?:^|/)(?!\?\?$)[^./]+$")
# The engine runs a pass on threads of its own, without a frame of Python.
_BACKWARD, _ENGINE = Spot("<backward>", None), "torch::autograd::Engine::"


class RecordedLines:
    """The user's innermost line of each stack, named so that no two look alike.

    A stack without a line of the user's has the innermost of the library that called
    torch: programs may be installed. Without that, one of C++ frames may still tell
    that it was the backward pass. Stacks are kept, and told apart by identity.
    """

    def __init__(self, stacks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        self._written: dict[str, str] = {}  # by whom each file is: user, library, ""
        self._spots: dict[int, Spot | None] = {}
        self._kept: list[object] = []
        for stack in stacks:
            if id(stack) not in self._spots:
                self._kept.append(stack)
                self._spots[id(stack)] = self._spot_in(stack)
        files_of: defaultdict[str, set[str]] = defaultdict(set)
        known = {spot for spot in self._spots.values() if spot is not None}
        for spot in known:
            files_of[_last(spot.file, 1)].add(spot.file)
        # Files of one name are told apart by their folders.
        self._lines = {
            spot: _line(spot, min(len(files_of[_last(spot.file, 1)]), 2))
            for spot in known
        }

    def spot(self, stack: Sequence[Mapping[str, Any]] | None) -> Spot | None:
        """File and line, as they were recorded; None where none is the user's."""
        return self._spots.get(id(stack))

    def line(self, spot: Spot | None) -> CodeLine | None:
        """A spot in words."""
        return None if spot is None else self._lines[spot]

    def line_of(self, stack: Sequence[Mapping[str, Any]]) -> CodeLine | None:
        """The line of a stack in words."""
        return self.line(self.spot(stack))

    def _spot_in(self, stack: Sequence[Mapping[str, Any]]) -> Spot | None:
        try:
            return self._first_of(stack)
        except (KeyError, TypeError, AttributeError):  # no frames of torch's
            return None

    def _first_of(self, stack: Sequence[Mapping[str, Any]]) -> Spot | None:
        for whose in ("user", "library"):
            for frame in stack:
                if self._whose(frame["filename"]) == whose:
                    line = frame.get("line")
                    return Spot(frame["filename"], line if type(line) is int else None)
        names = (str(frame.get("name"))[:_LONGEST_NAME] for frame in stack)
        return _BACKWARD if any(_ENGINE in name for name in names) else None

    def _whose(self, filename: str) -> str:
        known = self._written.get(filename)
        if known is None:
            path, known = filename.replace("\\", "/"), ""
            if _PYTHON.search(path) and not _FOUNDATION.search(path):
                known = "library" if _INSTALLED.search(path) else "user"
            self._written[filename] = known
        return known


def _line(spot: Spot, parts: int) -> CodeLine:
    if spot is _BACKWARD:
        return CodeLine("the backward pass")
    if name_of(spot.file).startswith("In ["):  # a cell of the notebook that asks
        return line_in(spot.file, spot.line)
    name = _last(spot.file, parts)
    if len(name) > _LONGEST_NAME:
        name = f"...{name[-_LONGEST_NAME:]}"
    return CodeLine(name if spot.line is None else f"{name}, line {spot.line}")


def _last(file: str, parts: int) -> str:
    return "/".join(re.split(r"[\\/]", file)[-parts:])
