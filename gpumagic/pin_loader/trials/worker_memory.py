"""Memory that worker processes have for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.host import ROOT, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PRIVATE = ("Private_Clean:", "Private_Dirty:")


def private_bytes(pids: Iterable[int], root: Path = ROOT) -> int | None:
    """What these processes share with nobody, all together.

    Pages that a forked worker has only read are still its parent's. Those it has
    written to are its own: touching an object's use count is writing.

    Args:
        pids: Processes of this user.

        root: Where /proc is found.

    Returns:
        None without processes, or where one of them cannot be looked at.
    """
    parts = [_of_process(root / "proc" / str(pid) / "smaps_rollup") for pid in pids]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _of_process(rollup: Path) -> int | None:
    lines = [line.split() for line in lines_of(rollup)]
    sizes = [int(words[1]) for words in lines if words and words[0] in _PRIVATE]
    return sum(sizes) * 1024 if sizes else None
