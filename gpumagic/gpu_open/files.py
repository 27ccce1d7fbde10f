"""Opens recordings, plain or gzip, and says what is in them.

What a file is, is told by its first bytes and not by its name.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
import re
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.gpu_open.records import FileRead
from gpumagic.report.units import bytes_text, printable, shortened, with_article

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["trace", "snapshot"]
ENDINGS = (".json", ".gz", ".pickle", ".pkl")  # of recordings
AGAIN = "copy it again, or open the file of another rank or step"
_MOST_BYTES = 2 << 30  # unpacked: it is read whole
_PIECE = 1 << 22
_HEAD = 1 << 20  # what stands before the events of a job with many process groups
_MOST_SHOWN = 60  # characters of what somebody else has named

_KEY = re.compile(
    rb'"(traceEvents|schemaVersion|deviceProperties|distributedInfo|ph|'
    rb'segments|device_traces)"\s*:'
)
_OF_SNAPSHOTS = (b"segments", b"device_traces")
HOW = (
    "open what prof.export_chrome_trace('trace.json.gz') or "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') has written"
)
_OTHERWISE = (  # how other files begin, and what to do then
    (rb"PK|.{257}ustar", "unpack it, and open what was in it"),
    (rb"version https://git-lfs", "type: !git lfs pull, which fetches the file itself"),
    (rb"", HOW),
)
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class Opened(NamedTuple):
    """A whole file, unpacked."""

    name: str  # without its folder
    kind: Kind  # what is in it
    data: bytearray
    folder: str = ""  # as it was named; "" is the current one


def opened(path: str | Path) -> Opened:
    """Unpack a file whole."""
    path = Path(path)
    with _unpacked(path) as file:
        data = _whole(file, path.name)
    folder = str(path.parent) * (path.parent != Path())
    return Opened(path.name, _kind(bytes(data[:_HEAD]), path.name), data, folder)


def _whole(file: Any, name: str) -> bytearray:
    data = bytearray()
    while piece := file.read(_PIECE):
        data += piece
        if len(data) > _MOST_BYTES:
            raise GpuMagicError(
                f"{_shown(name)} is larger than {bytes_text(_MOST_BYTES)}, unpacked",
                "record fewer steps: torch.profiler.schedule(wait=1, active=3)",
            )
    return data


def kind_of(path: str | Path) -> Kind:
    """What is in a file, by its beginning."""
    path = Path(path)
    with _unpacked(path) as file:
        return _kind(file.read(_HEAD), path.name)


def ends_early(name: str) -> GpuMagicError:
    """The error of a file that was cut off, as jobs are killed while they write."""
    return GpuMagicError(f"{_shown(name)} ends in the middle", AGAIN)


def _shown(name: str | Path) -> str:
    return shortened(str(name), _MOST_SHOWN)


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Any]:
    """A file of the disk as it was before it was packed."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise GpuMagicError(
                f"{_shown(path)} is not a regular file",
                "name a file, or a folder with recordings",
            )
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if is_packed else file
    except _DAMAGED as error:
        raise ends_early(path.name) from error
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from error


def _kind(head: bytes, name: str) -> Kind:
    """What begins like this."""
    start = head.lstrip(b" \t\r\n")
    if head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}:
        return "snapshot"
    if not start.strip(b"\0"):
        raise GpuMagicError(f"{_shown(name)} is empty", AGAIN)
    key = start[:1] in {b"{", b"["} and _KEY.search(head)
    if not key:
        begins = printable(start[:20].decode("utf-8", "replace"), _MOST_SHOWN)
        problem = f"{_shown(name)} is no recording of torch: it begins with {begins!r}"
        hints = (hint for begin, hint in _OTHERWISE if re.match(begin, head, re.DOTALL))
        raise GpuMagicError(problem, next(hints))
    return "snapshot" if key[1] in _OF_SNAPSHOTS else "trace"


# -------------------------------------------------------------------------- finding


def found(names: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that are meant: of a pattern all it fits, of a folder the recordings.

    Each file is there once, whatever leads to it.
    """
    files: dict[str, Path] = {}
    for name in names:
        try:
            path = Path(os.path.expanduser(name))  # noqa: PTH111 -- nobody's ~ stays
        except TypeError:
            raise GpuMagicError(
                f"{with_article(type(name).__name__)} is not the path of a file",
                "of several files: gpumagic.gpu_open.read(*files)",
            ) from None
        try:
            files |= _meant(path)
        except (OSError, ValueError) as error:
            raise _unopened(path, error) from error
    return list(files.values())


def _meant(path: Path) -> dict[str, Path]:
    inside, folder = [path], path.parent
    if path.is_dir():
        folder = path
        named = (each for each in path.iterdir() if each.name.endswith(ENDINGS))
        inside = [each for each in named if each.name[0] != "." and each.is_file()]
        problem = f"there is no recording in {_shown(path)}"
    elif glob.has_magic(str(path)) and not path.exists():
        paths = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
        inside = list(filter(Path.is_file, paths))
        problem = f"no file fits {_shown(path)}"
    if not inside:
        raise GpuMagicError(problem, f"type: %ls {printable(str(folder), 200)}")
    # Rank 2 comes before rank 10.
    inside.sort(key=lambda each: (len(str(each)), str(each)))
    return {os.path.realpath(each): each for each in inside}


def by_kind(files: Iterable[Path]) -> tuple[Kind, list[Path], list[FileRead]]:
    """The traces among files, or the snapshots where there are none; and the others."""
    kinds: dict[Kind, list[Path]] = {"trace": [], "snapshot": []}
    errors: dict[str, GpuMagicError] = {}
    for path in files:
        try:
            kinds[kind_of(path)].append(path)
        except GpuMagicError as error:
            if not path.is_file():
                raise
            errors.setdefault(path.name, error)
    left_out = {name: error.problem for name, error in errors.items()}
    kind: Kind = "trace" if kinds["trace"] else "snapshot"
    if not kinds[kind]:
        raise next(iter(errors.values()))
    if kind == "trace":
        for path in kinds["snapshot"]:
            left_out[path.name] = f"{_shown(path.name)} is a memory snapshot, no trace"
    others = [FileRead(name, 0, 0, why) for name, why in left_out.items()]
    return kind, kinds[kind], others


def _unopened(path: Path, error: Exception) -> GpuMagicError:
    shown = printable(str(path), 200)
    if not isinstance(error, FileNotFoundError):
        why = getattr(error, "strerror", None) or error  # without the name once more
        return GpuMagicError(f"{shown} cannot be read: {why}", f"type: !ls -l {shown}")
    if re.match(r"\w\w+:/", shown):
        return GpuMagicError(
            f"{shown} is not a file of this machine", "download it, and open the copy"
        )
    if not path.parent.is_dir():
        return GpuMagicError(
            f"there is no folder {printable(str(path.parent), 200)}",
            f"the current one is {Path.cwd()}; type: %ls",
        )
    near = did_you_mean(path.name, (each.name for each in path.parent.iterdir()))
    return GpuMagicError(
        f"there is no file {shown}", near or f"type: %ls {path.parent}"
    )
