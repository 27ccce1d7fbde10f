"""Where the limits of this process's container are written down, in both versions.

A control group lies in another, and each may limit what is below it. In a container
the innermost is often mounted as if it were the outermost: its path is not there then,
and the mount itself counts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/")  # another one in tests
_MOUNT = "sys/fs/cgroup"


def levels(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders whose files limit this process, innermost first.

    Args:
        controller: What is limited: "memory", "cpu".

        root: Where /proc and /sys are found.
    """
    for line in lines_of(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mounts = [_MOUNT, f"{_MOUNT}/unified"]
        elif controller in controllers.split(","):
            mounts = [f"{_MOUNT}/{controller}", f"{_MOUNT}/{controllers}"]
        else:
            continue
        mount = next((root / each for each in mounts if (root / each).is_dir()), None)
        if mount is not None:
            yield from _upwards(mount, path)


def lines_of(path: Path) -> list[str]:
    """The lines of a small file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def number_in(path: Path) -> int | None:
    """The number that a file holds; None where there is none, as in "max"."""
    lines = lines_of(path)
    try:
        return int(lines[0]) if lines else None
    except ValueError:
        return None


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    inner = PurePosixPath(path.strip("/"))
    if ".." not in inner.parts:  # the process lies outside of what is mounted
        for each in (inner, *inner.parents):
            if str(each) != "." and (mount / each).is_dir():
                yield mount / each
    yield mount
