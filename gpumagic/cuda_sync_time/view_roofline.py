"""How near a run came to what its device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import rate_text
from gpumagic.drawing import Column, Meter, Note, Paragraph, Plane, Property, Table
from gpumagic.report.units import share_of, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import Peaks, Roofline
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
    rows = []
    if roofline.flops is not None:
        rows.append(
            (
                "floating point operations",
                rate_text(roofline.flops, "FLOP"),
                rate_text(roofline.flops_per_s, "FLOP/s"),
                *_held_against(
                    roofline.flops_per_s, roofline.peak_flops_per_s, "FLOP/s"
                ),
            )
        )
    if roofline.nbytes is not None:
        rows.append(
            (
                "memory, as declared",
                rate_text(roofline.nbytes, "B"),
                rate_text(roofline.bytes_per_s, "B/s"),
                *_held_against(roofline.bytes_per_s, roofline.peak_bytes_per_s, "B/s"),
            )
        )
    columns = (
        Column("What"),
        Column("In one run", number=True),
        Column("Achieved", number=True),
        Column("Peak", number=True),
        Column("Share of it"),
    )
    who = _those(roofline)
    caption = f"Against what {who}{_where(roofline.peaks)}"
    return Table(caption, columns, tuple(rows))


def _those(roofline: Roofline) -> str:
    if roofline.devices == 1:
        return "the device can do"
    return f"{roofline.devices} devices can do together"


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
            f"It reached {share} the most that {_who(roofline)}. --bytes SIZE "
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
        f"{does}, computing is the limit: {_doing(roofline)} {most}, and the run "
        f"reached {share} that."
    )


def _whose(roofline: Roofline) -> str:
    one = roofline.devices == 1
    return "this device" if one else f"these {roofline.devices} devices"


def _who(roofline: Roofline) -> str:
    if roofline.devices == 1:
        return "this device computes"
    return f"these {roofline.devices} devices compute together"


def _doing(roofline: Roofline) -> str:
    one = roofline.devices == 1
    return "the device does" if one else f"the {roofline.devices} devices do"


def _memory_binds(roofline: Roofline) -> bool:
    peak, roof = roofline.peak_flops_per_s, roofline.roof_flops_per_s
    return peak is not None and roof is not None and roof < peak


def _intensity(intensity: float) -> str:
    if intensity >= _LARGE:
        return f"{float(f'{intensity:.3g}'):,.0f} FLOP"
    return f"{intensity:.3g} FLOP"


def _picture(roofline: Roofline) -> Plane | None:
    """The roof and the run, where both limits and both counts are known."""
    most, fastest = roofline.peak_flops_per_s, roofline.peak_bytes_per_s
    x, y = roofline.intensity, roofline.flops_per_s
    if not (most and fastest and x and y):
        return None
    ridge = most / fastest
    left, right = min(x, ridge) / _DECADE, max(x, ridge) * _DECADE
    low = min(left * fastest, y)
    roof = ((left, left * fastest), (ridge, most), (right, most))
    share = share_of(y / (roofline.roof_flops_per_s or y))
    return Plane(
        f"The roof of {_whose(roofline)}, and where the run is under it",
        roof,
        (x, y),
        across=(
            f"FLOP for each byte, from {_intensity(left)} to {_intensity(right)}; the "
            f"roof bends at {_intensity(ridge)}"
        ),
        upward=(
            f"FLOP/s, from {rate_text(low, 'FLOP/s')} to "
            f"{rate_text(max(most, y), 'FLOP/s')}"
        ),
        told=(
            f"the run, at {_intensity(x)} for each byte, reached "
            f"{rate_text(y, 'FLOP/s')}: {share} the roof above it"
        ),
    )


def _operations(roofline: Roofline) -> Table:
    def share(count: int) -> float | None:
        return count / roofline.flops if roofline.flops else None

    properties = (
        Property(Column("Operation"), lambda counted: counted[0]),
        Property(
            Column("Counted", number=True),
            lambda counted: rate_text(counted[1], "FLOP"),
        ),
        Property(
            Column("Share"),
            lambda counted: Meter(share(counted[1]), share_text(share(counted[1]))),
        ),
    )
    return Table.of(
        "Floating point operations by kind",
        properties,
        roofline.counted[:_SHOWN],
        len(roofline.counted),
    )
