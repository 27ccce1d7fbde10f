"""Finds the user's lines in stacks that were recorded on another machine.

Nothing of that machine is here to be looked at. So paths alone decide what is Python's,
torch's and a library's, and nobody knows what was typed in a line, unless a compiler
has noted it: then its own file gives way to what it was made of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_events import Spot
from gpumagic.devices.memory_history import users_spot
from gpumagic.gpu_mem.lines import StackPlaces
from gpumagic.report.places import CodeLine, line_in, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LONGEST_NAME = 80
_LONGEST_TRACE = 20_000
# torch, and what Python brings along, wherever they are installed.
_FOUNDATION = re.compile(
    r"""
      (?:^|/)lib(?:64)?/python\d                   # /usr/lib/python3.11/threading.py
    | (?:^|/)python[\d.]*(?:\.zip|/lib)/           # C:/Python311/Lib/threading.py
    | /(?:\w*conda\d?|envs/[^/]+)/lib/[^/]+\.py$   # C:/miniconda3/Lib/random.py
    | (?:^|/)(?:site|dist)-packages/torch/
    | (?:^|/)torch/(?:                             # built from its sources
        _\w+ | amp | ao | autograd | backends | compiler | cuda | distributed | fft
        | functional\.py | fx | jit | library\.py | linalg | multiprocessing | nested
        | nn | optim | overrides\.py | profiler | random\.py | serialization\.py
        | sparse | storage\.py | utils | xpu
    )(?:/|\.py$|$)
    | importlib/_bootstrap | (?:^|/)fx_generated_[^/]*\.py$
    | ^<(?!ipython-input|stdin)                    # <frozen ...>, <string>, fx's own
    """,
    re.VERBOSE | re.IGNORECASE,
)
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/", re.IGNORECASE)
_ORIGINAL = "fx_original_trace"
_ORIGINAL_FRAME = re.compile(
    r"""File "([^"\n]{1,1000})", line (\d{1,7}), in [^\n]*(?:\n +([^\n]{0,500}))?"""
)
# The engine runs a pass on threads of its own, without a frame of Python.
_BACKWARD, _ENGINE = Spot("<backward>", None), "torch::autograd::Engine::"
_IPYTHON_CELL = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_CELL = re.compile(r"/ipykernel_\d+/(\d+)\.py$")


class _UsersPlaces(StackPlaces):
    """What was written by whoever ran the program."""

    def _judge(self, filename: str) -> bool:
        path = filename.replace("\\", "/")
        verdict = self.users[filename] = (
            super()._judge(filename)
            and _FOUNDATION.search(path) is None
            and _INSTALLED.search(path) is None
        )
        return verdict


class _LibraryPlaces(StackPlaces):
    """What was installed, but not what all programs stand on."""

    def _judge(self, filename: str) -> bool:
        path = filename.replace("\\", "/")
        package = _INSTALLED.search(path)
        verdict = self.users[filename] = (
            package is not None
            and path.endswith(".py")
            and _FOUNDATION.search(path, package.start()) is None
        )
        return verdict


class RecordedLines:
    """The user's innermost line of each stack, named so that no two look alike.

    A stack without a line of the user's has the innermost of the library that called
    torch: programs may be installed. Without that, one of C++ frames may still tell
    that it was the backward pass.

    Args:
        stacks: All that may be asked for; they are kept, and told apart by identity.
    """

    def __init__(self, stacks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        self._users, self._libraries = _UsersPlaces(), _LibraryPlaces()
        self._spots: dict[int, Spot | None] = {}
        self._kept: list[object] = []
        self._origins: dict[str, list[Mapping[str, Any]]] = {}
        self._sources: dict[tuple[str, int], str] = {}
        for stack in stacks:
            if id(stack) not in self._spots:
                self._kept.append(stack)
                self._spots[id(stack)] = self._spot_in(stack)
        self._lines = _named(set(self._spots.values()) - {None}, self._sources)

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
        if not stack:
            return None
        try:
            frames = stack
            if any(_ORIGINAL in frame for frame in stack):
                frames = list(self._unfolded(stack))
            found = users_spot(frames, self._users)
            found = users_spot(frames, self._libraries) if found is None else found
        except (KeyError, TypeError, AttributeError):  # no frames of torch's
            return None
        if found is None:
            names = (str(frame.get("name"))[:_LONGEST_NAME] for frame in frames)
            return _BACKWARD if any(_ENGINE in name for name in names) else None
        return found if type(found.line) is int else found._replace(line=None)

    def _unfolded(
        self, stack: Iterable[Mapping[str, Any]]
    ) -> Iterator[Mapping[str, Any]]:
        """With the frames that code was generated from, in the place of its own."""
        for frame in stack:
            yield frame
            text = frame.get(_ORIGINAL)
            if isinstance(text, str):
                if text not in self._origins:
                    self._origins[text] = list(self._frames_in(text))
                yield from self._origins[text]

    def _frames_in(self, text: str) -> Iterator[Mapping[str, Any]]:
        found = _ORIGINAL_FRAME.findall(text[:_LONGEST_TRACE])
        for file, line, typed in reversed(found):
            if typed:
                self._sources[file, int(line)] = typed.strip()
            yield {"filename": file, "line": int(line)}


def _named(
    spots: Iterable[Any], sources: Mapping[tuple[str, int], str]
) -> dict[Spot, CodeLine]:
    """Files of one name are told apart by their folders."""
    spots = list(spots)
    files_of: defaultdict[str, set[str]] = defaultdict(set)
    for spot in spots:
        files_of[_last(spot.file, 1)].add(spot.file)
    return {
        spot: _line(
            spot, 1 if len(files_of[_last(spot.file, 1)]) == 1 else 2, sources.get(spot)
        )
        for spot in spots
    }


def _line(spot: Spot, parts: int, source: str | None) -> CodeLine:
    if spot is _BACKWARD:
        return CodeLine("the backward pass")
    if name_of(spot.file).startswith("In ["):  # a cell of the notebook that asks
        return line_in(spot.file, spot.line)
    name = _cell_name(spot.file) or _last(spot.file, parts)
    if len(name) > _LONGEST_NAME:
        name = f"...{name[-_LONGEST_NAME:]}"
    return CodeLine(name if spot.line is None else f"{name}, line {spot.line}", source)


def _cell_name(file: str) -> str | None:
    """Cells of a notebook elsewhere: IPython's are numbered, a kernel's are not."""
    numbered = _IPYTHON_CELL.match(file)
    if numbered is not None:
        return f"In [{numbered[1]}]"
    hashed = _KERNEL_CELL.search(file.replace("\\", "/"))
    return None if hashed is None else f"cell {hashed[1]}"


def _last(file: str, parts: int) -> str:
    return "/".join(re.split(r"[\\/]", file)[-parts:])
