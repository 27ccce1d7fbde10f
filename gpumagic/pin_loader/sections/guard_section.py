"""What pinning and workers take of the machine, against what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Details, Note, Paragraph, Table, Tone
from gpumagic.pin_loader.records.guard import Severity
from gpumagic.pin_loader.sections.phrases import amount_text, device_text
from gpumagic.report.units import bytes_text, count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.guard import Guard, Limit
    from gpumagic.pin_loader.records.setting import Setting

TONES: dict[Severity, Tone] = {
    Severity.FINE: "ok",
    Severity.WARN: "warning",
    Severity.REFUSE: "problem",
    Severity.INFORM: "note",
    Severity.UNKNOWN: "unknown",
}
_LOUD = (Severity.WARN, Severity.REFUSE)


def guard_parts(guard: Guard, setting: Setting, told: str = "") -> Iterator[Part]:
    """The limits that warn, with what to do; those that are fine are details.

    Args:
        guard: What was found.

        setting: Where.

        told: The hint that the reader has had already.
    """
    sentences = " ".join(_sentences(guard, setting))
    if not is_loud(guard):
        said = Paragraph("\n".join((*map(_line, guard.limits), sentences)))
        yield Details("What it takes of the machine", (said,))
        return
    yield _table(guard)
    yield Paragraph(sentences)
    for limit in guard.limits:
        if limit.severity in _LOUD and limit.hint not in ("", told):
            refused = limit.severity is Severity.REFUSE
            yield Note("problem" if refused else "warning", _needs(limit), limit.hint)


def is_loud(guard: Guard | None) -> bool:
    """Whether a reader has to see it at once."""
    return guard is not None and any(each.severity in _LOUD for each in guard.limits)


def _table(guard: Guard) -> Table:
    return Table(
        "What it takes of the machine, at most (estimated)",
        (
            Column("What"),
            Column("Needed", number=True),
            Column("Available", number=True),
            Column("Share", number=True),
            Column("Verdict"),
            Column("Read from"),
        ),
        tuple(map(_row, guard.limits)),
    )


def _row(limit: Limit) -> tuple[Cell, ...]:
    return (
        limit.kind.value,
        amount_text(limit.kind, limit.needed),
        _available(limit),
        "-" if limit.share is None else share_text(limit.share),
        Badge(limit.severity.value, TONES[limit.severity]),
        limit.source or "-",
    )


def _available(limit: Limit) -> str:
    if limit.available is None and limit.severity in (Severity.FINE, Severity.INFORM):
        return "no limit"
    return amount_text(limit.kind, limit.available)


def _needs(limit: Limit) -> str:
    needed = amount_text(limit.kind, limit.needed)
    return f"{limit.kind.value}: {needed} needed, {_available(limit)} available"


def _line(limit: Limit) -> str:
    """A limit in a line, where none needs to be looked at twice."""
    share = "" if limit.share is None else f" ({share_text(limit.share)})"
    source = f", read from {limit.source}" if limit.source else ""
    return f"{_needs(limit)}{share}: {limit.severity.value}{source}"


def _sentences(guard: Guard, setting: Setting) -> Iterator[str]:
    batches = count_text(guard.batches, "batch", "batches")
    if guard.locked_bytes:
        yield (
            f"At most {batches} can be under way, in {bytes_text(guard.locked_bytes)} "
            "of pinned memory (estimated: each tensor is rounded up to a power of two)."
        )
    if guard.measured_bytes is not None:
        held = bytes_text(guard.measured_bytes)
        yield f"torch holds {held} pinned after the trial (measured)."
    if guard.device_bytes and setting.device is not None:
        more, where = bytes_text(guard.device_bytes), device_text(setting)
        yield f"Batches copied ahead take {more} of {where} (estimated)."
