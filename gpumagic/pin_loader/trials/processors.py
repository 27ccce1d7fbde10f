"""How many processors this process may use, also inside a container."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpumagic.devices.host import ROOT, levels, lines_of, number_in

if TYPE_CHECKING:
    from pathlib import Path


def usable(root: Path = ROOT) -> int:
    """The processors it is bound to, or fewer if its share of time is limited.

    A share of one and a half processors counts as one.

    Args:
        root: Where /proc and /sys are found.
    """
    bound = _bound()
    quotas = [quota for folder in levels("cpu", root) if (quota := _quota(folder))]
    return max(int(min([bound, *quotas])), 1)


def _bound() -> int:
    ask = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    return len(ask(0)) if ask is not None else os.cpu_count() or 1


def _quota(folder: Path) -> float | None:
    """Processors' worth of time by one control group; None is no limit."""
    words = " ".join(lines_of(folder / "cpu.max")).split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        quota, period = map(int, words)
    else:
        quota = number_in(folder / "cpu.cfs_quota_us") or 0
        period = number_in(folder / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None
