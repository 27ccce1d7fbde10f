"""How near a run came to what its device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import rate_text
from gpumagic.drawing import Column, Meter, Note, Paragraph, Plane, Table
from gpumagic.units import share_of, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records.roofline import Peaks, Roofline
    from gpumagic.drawing import Part

_COUNTED = (
    "Operations were counted in one more run of the code, after the timed one: matrix "
    "products, convolutions and attention only."
)
_SHOWN = 8
_DECADE = 10.0
_LARGE = 100


def roof_parts(roofline: Roofline) -> Iterator[Part]:
    """What was achieved, which limit binds, and what it rests on."""
    if roofline.problem:
        yield Note(
            "warning",
            f"operations could not be counted: {roofline.problem}",
            roofline.hint or "",
        )
    if roofline.flops is None and roofline.nbytes is None:
        return
    yield _achieved(roofline)
    if verdict := _verdict(roofline):
        yield Paragraph(verdict)
    if picture := _picture(roofline):
        yield picture
    if roofline.flops is not None:
        yield Paragraph(_COUNTED)
    if roofline.counted:
        yield _operations(roofline)


def _achieved(roofline: Roofline) -> Table:
    peaks = roofline.peaks
    rows = []
    if roofline.flops is not None:
        rows.append(
            (
                "floating point operations",
                rate_text(roofline.flops, "FLOP"),
                rate_text(roofline.flops_per_s, "FLOP/s"),
                *_held_against(
                    roofline.flops_per_s, peaks.flops_per_s if peaks else None, "FLOP/s"
                ),
            )
        )
    if roofline.nbytes is not None:
        rows.append(
            (
                "memory, as declared",
                rate_text(roofline.nbytes, "B"),
                rate_text(roofline.bytes_per_s, "B/s"),
                *_held_against(
                    roofline.bytes_per_s, peaks.bytes_per_s if peaks else None, "B/s"
                ),
            )
        )
    columns = (
        Column("What"),
        Column("In one run", number=True),
        Column("Achieved", number=True),
        Column("Peak", number=True),
        Column("Share of it"),
    )
    caption = f"Against what the device can do{_where(peaks)}"
    return Table(caption, columns, tuple(rows))


def _where(peaks: Peaks | None) -> str:
    if peaks is None:
        return ""
    how = "as the model does it" if peaks.simulated else "measured here"
    return f" in {peaks.dtype}, {how}"


def _held_against(
    achieved: float | None, peak: float | None, unit: str
) -> tuple[str, Meter]:
    share = achieved / peak if achieved is not None and peak else None
    return rate_text(peak, unit), Meter(share, share_text(share))


def _verdict(roofline: Roofline) -> str:
    roof, achieved = roofline.roof_flops_per_s, roofline.flops_per_s
    if not roof or achieved is None:
        return ""
    share = share_of(achieved / roof)
    if roofline.intensity is None:
        return (
            f"It reached {share} the most that this device computes. --bytes SIZE "
            "says how much one run reads and writes; then the memory's limit is known "
            "as well."
        )
    most = rate_text(roof, "FLOP/s")
    does = f"With {_intensity(roofline.intensity)} for each byte"
    if _memory_binds(roofline):
        return (
            f"{does}, the memory is the limit: it allows {most}, and the run reached "
            f"{share} that."
        )
    return (
        f"{does}, computing is the limit: the device does {most}, and the run reached "
        f"{share} that."
    )


def _memory_binds(roofline: Roofline) -> bool:
    peak = roofline.peaks.flops_per_s if roofline.peaks else None
    roof = roofline.roof_flops_per_s
    return peak is not None and roof is not None and roof < peak


def _intensity(intensity: float) -> str:
    if intensity >= _LARGE:
        return f"{float(f'{intensity:.3g}'):,.0f} FLOP"
    return f"{intensity:.3g} FLOP"


def _picture(roofline: Roofline) -> Plane | None:
    """The roof and the run, where both limits and both counts are known."""
    peaks, x, y = roofline.peaks, roofline.intensity, roofline.flops_per_s
    if peaks is None or not (peaks.flops_per_s and peaks.bytes_per_s and x and y):
        return None
    ridge = peaks.flops_per_s / peaks.bytes_per_s
    left, right = min(x, ridge) / _DECADE, max(x, ridge) * _DECADE
    low = min(left * peaks.bytes_per_s, y)
    roof = (
        (left, left * peaks.bytes_per_s),
        (ridge, peaks.flops_per_s),
        (right, peaks.flops_per_s),
    )
    share = share_of(y / (roofline.roof_flops_per_s or y))
    return Plane(
        "The roof of this device, and where the run is under it",
        roof,
        (x, y),
        across=(
            f"FLOP for each byte, from {_intensity(left)} to {_intensity(right)}; the "
            f"roof bends at {_intensity(ridge)}"
        ),
        upward=(
            f"FLOP/s, from {rate_text(low, 'FLOP/s')} to "
            f"{rate_text(max(peaks.flops_per_s, y), 'FLOP/s')}"
        ),
        told=(
            f"the run, at {_intensity(x)} for each byte, reached "
            f"{rate_text(y, 'FLOP/s')}: {share} the roof above it"
        ),
    )


def _operations(roofline: Roofline) -> Table:
    whole = roofline.flops or 0
    rows = tuple(
        (
            name,
            rate_text(count, "FLOP"),
            Meter(
                count / whole if whole else None,
                share_text(count / whole if whole else None),
            ),
        )
        for name, count in roofline.counted[:_SHOWN]
    )
    columns = (Column("Operation"), Column("Counted", number=True), Column("Share"))
    caption = "Floating point operations by kind"
    return Table(caption, columns, rows, total_rows=len(roofline.counted))
