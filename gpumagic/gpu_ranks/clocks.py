"""Puts the clocks of several machines together, by messages back and forth.

Rank 0 asks one rank of each other clock for its time, again and again. In the quickest
round the answer was given half way between question and answer, give or take half that
round (Cristian, 1989). What the clocks drift apart from the beginning of a block to its
end is part of the error.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.report.collectives import Offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROUNDS = 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def now_ns() -> int:
    """The moment, by the clock by which torch's recorders write."""
    return time.time_ns()


def own_clock() -> str:
    """The same for all processes that share a clock, also in several containers."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def compare(
    clocks: Sequence[str], group: Any, rank: int, *, rounds: int = ROUNDS
) -> dict[str, Offset]:
    """How the clocks stand to that of rank 0; all ranks call this together.

    Args:
        clocks: What `own_clock` says on each rank.

        group: Of gloo, with all ranks.

        rank: This one.

        rounds: How often each is asked; the quickest counts.

    Returns:
        On rank 0, what is added to each clock to have its own; else nothing.
    """
    found = {clocks[0]: Offset(0, 0)}
    for clock in dict.fromkeys(clocks[1:]):
        asked = clocks.index(clock)
        if asked == 0:
            continue
        if rank == 0:
            found[clock] = _ask(asked, group, rounds)
        elif rank == asked:
            _answer(group, rounds)
    return found if rank == 0 else {}


def _ask(rank: int, group: Any, rounds: int) -> Offset:
    import torch
    import torch.distributed as dist

    slot = torch.zeros(1, dtype=torch.int64)
    best: tuple[int, int] | None = None
    for _ in range(rounds):
        asked_ns = now_ns()
        dist.send(slot, rank, group=group)
        dist.recv(slot, rank, group=group)
        answered_ns = now_ns()
        middle_ns = (asked_ns + answered_ns) // 2
        this = answered_ns - asked_ns, middle_ns - int(slot.item())
        best = this if best is None else min(best, this)
    return Offset(0, None) if best is None else Offset(best[1], best[0] // 2 + 1)


def _answer(group: Any, rounds: int) -> None:
    import torch
    import torch.distributed as dist

    slot = torch.zeros(1, dtype=torch.int64)
    for _ in range(rounds):
        dist.recv(slot, 0, group=group)
        slot[0] = now_ns()
        dist.send(slot, 0, group=group)


def between(
    first: Mapping[str, Offset], last: Mapping[str, Offset]
) -> dict[str, Offset]:
    """What is right in the middle of a block, from its beginning and its end.

    Args:
        first: By clock, as it was compared at the beginning.

        last: Likewise at the end; a clock that is missing there stays as it was.
    """
    return {clock: _middle(each, last.get(clock)) for clock, each in first.items()}


def _middle(first: Offset, last: Offset | None) -> Offset:
    if last is None:
        return first
    drifted_ns = abs(last.ns - first.ns)
    error_ns = max(first.error_ns or 0, last.error_ns or 0) + drifted_ns // 2
    return Offset((first.ns + last.ns) // 2, error_ns)
