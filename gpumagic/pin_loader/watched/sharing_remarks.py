"""What device and host did beside each other, and what could be done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.remark import Remark
from gpumagic.report.units import seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.pin_loader.watched.traced_copies import TracedCopies

_MUCH_COPYING = 0.05  # of the time
_WELL_HIDDEN = 0.5
_MUCH_UNEXPLAINED = 0.3


def sharing_remarks(  # noqa: PLR0913 -- each is a word of its own
    copies: Sequence[SeenCopy],
    traced: TracedCopies | None,
    *,
    elapsed_s: float,
    waited_s: float | None,
    name: str | None = None,
    copied_ahead: bool = False,
) -> tuple[Remark, ...]:
    """What the trace has to say beyond the lines.

    Args:
        copies: All that went to the device.

        traced: The sums of the trace.

        elapsed_s: How long it took altogether.

        waited_s: How much of that were waits for data; None is unknown.

        name: What the notebook calls the loader.

        copied_ahead: Whether that is a prefetcher already.
    """
    if traced is None or elapsed_s <= 0:
        return ()
    remarks = []
    if not copied_ahead:
        remarks += _queued(copies, traced, elapsed_s, name or "NAME")
    if waited_s is not None:
        explained_s = traced.kernel_s + waited_s + sum(each.held_s for each in copies)
        remarks += _unexplained(elapsed_s - explained_s, elapsed_s)
    return tuple(remarks)


def _queued(
    copies: Sequence[SeenCopy], traced: TracedCopies, elapsed_s: float, name: str
) -> list[Remark]:
    """Copies that could run beside kernels, but wait in the same stream."""
    free = sum(each.nbytes for each in copies if each.pinned and each.non_blocking)
    if free * 2 <= sum(each.nbytes for each in copies):
        return []
    could_s = min(traced.copying_s, traced.kernel_s)  # no more can be hidden
    if could_s < elapsed_s * _MUCH_COPYING or traced.hidden_s >= could_s * _WELL_HIDDEN:
        return []
    return [
        Remark(
            f"copies do not hold the host, and yet only "
            f"{share_text(traced.hidden_s / traced.copying_s)} of their "
            f"{seconds_text(traced.copying_s)} were hidden behind kernels: in one "
            "stream a copy waits for the kernels before it, and those after it wait",
            f"%pin_loader {name} makes a loader that copies ahead, on its own stream",
        )
    ]


def _unexplained(left_s: float, elapsed_s: float) -> list[Remark]:
    if left_s < elapsed_s * _MUCH_UNEXPLAINED:
        return []
    return [
        Remark(
            f"for {share_text(left_s / elapsed_s)} of the time no kernel ran, and "
            "neither loading nor copying to the device explains it",
            "%%cuda_sync_time --syncs shows what waits (.item(), .cpu(), printing), "
            "and --profile what the host does",
        )
    ]
