"""A watched cell in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.sections.phrases import listed
from gpumagic.report.units import bytes_text, part_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.pin_loader.records.watched import CopyLine, DataWait
    from gpumagic.pin_loader.report import WatchReport

NO_LINE = "no line of the cell"
_LONGEST_ERROR = 80


def watch_headline(report: WatchReport) -> str:
    """How much of the time it waited for data, and where copies came from."""
    said = "; ".join((_waiting(report), _copying(report.copies)))
    if report.failed is not None:
        failed = report.failed
        if len(failed) > _LONGEST_ERROR:
            failed = f"{failed[: _LONGEST_ERROR - 3]}..."
        said = f"{said}; the code failed ({failed})"
    return said


def waited_s(waits: Sequence[DataWait]) -> float:
    """All waits for all loaders."""
    return sum(wait.total_s for wait in waits)


def share_of(part_s: float, whole_s: float) -> float | None:
    """A share of a time; None where there was none."""
    return part_s / whole_s if whole_s > 0 else None


def _waiting(report: WatchReport) -> str:
    if not report.waits:
        return "No DataLoader was waited for"
    return f"{_whose(report.waits)} waited {_long(report)}for {_names(report.waits)}"


def _long(report: WatchReport) -> str:
    """A share of the time; of a simulated device the time itself.

    How long such a device takes on this machine says nothing of any loop.
    """
    waited = waited_s(report.waits)
    if report.setting.label:
        return f"{seconds_text(waited)} "
    share = share_of(waited, report.host_s)
    return "" if share is None else f"{share_text(share)} of the time "


def _whose(waits: Sequence[DataWait]) -> str:
    return "The loop" if len(waits) == 1 else "The loops"


def _names(waits: Sequence[DataWait]) -> str:
    longest = sorted(waits, key=lambda wait: wait.total_s, reverse=True)
    return listed(list(dict.fromkeys(wait.loader for wait in longest)), most=2)


def _copying(copies: Sequence[CopyLine]) -> str:
    if not copies:
        return "nothing was copied to a device"
    whole = sum(copy.nbytes for copy in copies)
    known = list(_pageable(copies))
    if not known:
        return f"{bytes_text(whole)} were copied to the device"
    pageable = sum(known)
    least = "at least " if len(known) < len(copies) else ""
    if not pageable and not least:
        return f"all {bytes_text(whole)} were copied from pinned memory"
    said = f"{least}{part_text(pageable, whole)}"
    if pageable == whole:
        said = f"all {bytes_text(whole)}"
    return f"{said} were copied from pageable memory"


def _pageable(copies: Sequence[CopyLine]) -> Iterator[int]:
    return (c.pageable_bytes for c in copies if c.pageable_bytes is not None)
