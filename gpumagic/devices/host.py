"""The RAM that this process can still use, and the limits that its container sets it.

A control group lies in another, and each may limit what is below it. In a container
the innermost is often mounted as if it were the outermost: its path is not there then,
and the mount itself counts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/")  # another one in tests
_MOUNT = "sys/fs/cgroup"

# The limit, what is used, and what of that can be taken back at any time: pages of
# files, by their names in `memory.stat`.
_WORDS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
_NO_LIMIT = 1 << 60  # the first version writes a limit that no machine reaches


def levels(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders whose files limit this process, innermost first."""
    for line in lines_of(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mounts = [_MOUNT, f"{_MOUNT}/unified"]
        elif controller in controllers.split(","):
            mounts = [f"{_MOUNT}/{controller}", f"{_MOUNT}/{controllers}"]
        else:
            continue
        there = [root / each for each in mounts if (root / each).is_dir()]
        for mount in there[:1]:
            yield from _upwards(mount, path)


def lines_of(path: Path) -> list[str]:
    """The lines of a small file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def number_in(path: Path) -> int | None:
    """The number that a file holds; None where there is none, as in "max"."""
    try:
        return int(lines_of(path)[0])
    except (IndexError, ValueError):
        return None


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    inner = PurePosixPath(path.strip("/"))
    if ".." not in inner.parts:  # the process lies outside of what is mounted
        for each in (inner, *inner.parents):
            if str(each) != "." and (mount / each).is_dir():
                yield mount / each
    yield mount


class Room(NamedTuple):
    """Bytes that are left, and the file that says so."""

    nbytes: int
    source: str


def available_bytes(root: Path = ROOT) -> int | None:
    """The RAM that can still be used, also inside a container; None if untold."""
    rooms = (machine_room(root), container_room(root))
    return min((room.nbytes for room in rooms if room), default=None)


def machine_room(root: Path = ROOT) -> Room | None:
    """What the kernel says can be had without swapping; None where it says nothing."""
    for line in lines_of(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return Room(int(line.split()[1]) * 1024, "MemAvailable in /proc/meminfo")
    return None


def container_room(root: Path = ROOT) -> Room | None:
    """What the tightest control group leaves; None where none has a limit."""
    rooms = [room for folder in levels("memory", root) if (room := _room(folder, root))]
    return min(rooms, default=None, key=lambda room: room.nbytes)


def _room(folder: Path, root: Path) -> Room | None:
    for limit_name, used_name, reclaimable in _WORDS:
        limit, used = number_in(folder / limit_name), number_in(folder / used_name)
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        counted = dict(
            line.split(maxsplit=1)
            for line in lines_of(folder / "memory.stat")
            if line.partition(" ")[0] in reclaimable
        )
        pages = sum(int(each) for each in counted.values())
        source = "/" + (folder / limit_name).relative_to(root).as_posix()
        return Room(max(limit - max(used - pages, 0), 0), source)
    return None
