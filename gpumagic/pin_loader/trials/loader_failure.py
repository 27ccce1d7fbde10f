"""An error of the user's loader or dataset in a few words, without its traceback.

The original is let go: its frames would keep the loader's workers and its batches.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

from gpumagic.errors import GpuMagicError
from gpumagic.report.places import name_of

# What stands in the error itself, and what to do about it.
_HINTS = (
    (
        "Bus error",
        (
            "shared memory is full: use fewer workers, or start the container with a "
            "larger --shm-size"
        ),
    ),
    (
        "killed by signal",
        "the system may have ended it for want of memory: use fewer workers",
    ),
    (
        "timed out",
        (
            "a worker hangs or is very slow: try with --workers 0, where Ctrl-C shows "
            "the line it is at"
        ),
    ),
    (
        "exited unexpectedly",
        (
            "the system may have ended it for want of memory, or it could not import "
            "a dataset that a notebook defines: its standard error says which"
        ),
    ),
    (
        "Too many open files",
        'call torch.multiprocessing.set_sharing_strategy("file_system") first',
    ),
)
_HINT = "`for batch in loader: pass` shows the whole traceback"
_IN_WORKER = re.compile(r"^Caught \w+ in (DataLoader worker process|pin memory thread)")
_PLACE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>.+)$')
_NOT_THE_USERS = re.compile(
    r"[\\/](site-packages|dist-packages|torch[\\/]utils|gpumagic|multiprocessing)[\\/]"
)
_LONGEST = 300
# What torch raises where a worker dies between sending a batch and its memory.
_HANDING_OVER = (ConnectionError, EOFError, FileNotFoundError)


class LoaderFailed(GpuMagicError):
    """The loader, or the dataset behind it, has raised.

    Attributes:
        batch: The number of the batch that could not be had; the first is 0.
    """

    def __init__(self, problem: str, hint: str = "", *, batch: int = 0) -> None:
        super().__init__(problem, hint)
        self.batch = batch


def is_death_of_worker(error: BaseException) -> bool:
    """Whether torch says by this error that a worker has died."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


def failure_of(error: BaseException, batch: int) -> LoaderFailed:
    """The failure that this error is; it holds nothing of the error.

    Args:
        error: What iterating has raised.

        batch: The number of the batch that was asked for; the first is 0.
    """
    said, places = _said_and_places(error)
    place = next((each for each in reversed(places) if not _foreign(each)), None)
    if isinstance(error, _HANDING_OVER) and places and _hands_over(places[-1]):
        said = f"a worker exited unexpectedly while it handed over ({said})"
    at = f" ({name_of(place[0])}, line {place[1]}, in {place[2]})" if place else ""
    hints = (hint for fragment, hint in _HINTS if fragment in said)
    return LoaderFailed(
        f"the loader failed at batch {batch}: {said}{at}",
        next(hints, _HINT),
        batch=batch,
    )


def _said_and_places(error: BaseException) -> tuple[str, list[tuple[str, str, str]]]:
    """Its line, and the places it came through, innermost last.

    An error from a worker is raised here again: its first line names the worker, then
    the original traceback follows as text, the error's own line last.
    """
    lines = str(error).strip().splitlines()
    if not lines or not _IN_WORKER.match(lines[0]):
        frames = traceback.extract_tb(error.__traceback__)
        places = [(each.filename, str(each.lineno), each.name) for each in frames]
        first = next((line for line in lines if line.strip()), "")
        return _short(
            f"{type(error).__name__}: {first}" if first else _kind(error)
        ), places
    matches = [match for line in lines if (match := _PLACE.match(line))]
    said = [line for line in lines[1:] if line and not line[0].isspace()]
    said = [line for line in said if not line.startswith(("Original Tr", "Traceback"))]
    places = [(match["file"], match["line"], match["name"]) for match in matches]
    return _short(said[0] if said else lines[0]), places


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _foreign(place: tuple[str, str, str]) -> bool:
    libraries = ("<frozen", sysconfig.get_path("stdlib"))
    return place[0].startswith(libraries) or _NOT_THE_USERS.search(place[0]) is not None


def _hands_over(place: tuple[str, str, str]) -> bool:
    return "multiprocessing" in Path(place[0]).parts


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
