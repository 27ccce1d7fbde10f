"""How near a run came to what its device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Meter,
    Note,
    Paragraph,
    Plane,
    Property,
    Table,
)
from gpumagic.report.units import rate_text, share_of, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import Peaks, Roofline
    from gpumagic.drawing import Part

_COUNTED = (
    "Operations were counted in one more run of the code, after the timed one. Only "
    "matrix products, convolutions and attention count."
)
_SHOWN = 8
_FASTER_TYPES = {
    "float64": "float32 computes faster, where it is exact enough",
    "float32": "bfloat16 computes faster, as in torch.autocast",
    "tf32": "bfloat16 computes faster, as in torch.autocast",
}
_DECADE = 10.0
_LARGE = 100


def roof_reached(roofline: Roofline | None) -> str:
    """How near it came to the limit that binds, for a headline."""
    if roofline is None:
        return ""
    roof, achieved = roofline.roof_flops_per_s, roofline.flops_per_s
    if roof and achieved is not None:
        limit = f"what {_whose(roofline)} can compute"
        if _memory_binds(roofline):
            limit = f"what the memory of {_whose(roofline)} allows"
        return f"{share_of(achieved / roof)} {limit}"
    peak, moved = roofline.peak_bytes_per_s, roofline.bytes_per_s
    if peak and moved is not None:
        limit = f"the memory bandwidth of {_whose(roofline)}"
        return f"{share_of(moved / peak)} {limit}"
    return ""


def roof_notes(roofline: Roofline) -> Iterator[Note]:
    """Which limit binds, or why that is not known."""
    if roofline.problem:
        yield Note(
            "warning",
            f"operations could not be counted: {roofline.problem}",
            roofline.hint or "",
        )
    if not roofline.roof_flops_per_s or roofline.flops_per_s is None:
        return
    if roofline.intensity is None:
        yield Note(
            "note",
            "the limit of the memory is not known: how much one run moves was not said",
            "--bytes SIZE says how much it reads and writes",
            "no bytes",
        )
        return
    most = rate_text(roofline.roof_flops_per_s, "FLOP/s")
    dtype = "" if roofline.peaks is None else roofline.peaks.dtype
    does = f"with {_intensity(roofline.intensity)} for each byte"
    if _memory_binds(roofline):
        text = f"{does} the memory is the limit, at {most}"
        yield Note("note", text, "fuse operations, so that less is read and written")
    else:
        text = f"{does} computing is the limit, at {most}"
        yield Note("note", text, _FASTER_TYPES.get(dtype, ""))


def roof_table(roofline: Roofline) -> Table | None:
    """What was achieved, against what can be."""
    if roofline.flops is None and roofline.nbytes is None:
        return None
    return _achieved(roofline)


def roof_details(roofline: Roofline) -> Iterator[Details]:
    """The operations, and how they were counted."""
    if roofline.flops is not None:
        parts: list[Part] = [Paragraph(_COUNTED)]
        if roofline.counted:
            parts.append(_operations(roofline))
        yield Details("Which operations were counted", tuple(parts), "operations")


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
        return "the GPU can do"
    return f"{roofline.devices} GPUs can do together"


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


def _whose(roofline: Roofline) -> str:
    one = roofline.devices == 1
    return "this GPU" if one else f"these {roofline.devices} GPUs"


def _memory_binds(roofline: Roofline) -> bool:
    peak, roof = roofline.peak_flops_per_s, roofline.roof_flops_per_s
    return peak is not None and roof is not None and roof < peak


def _intensity(intensity: float) -> str:
    if intensity >= _LARGE:
        return f"{float(f'{intensity:.3g}'):,.0f} FLOP"
    return f"{intensity:.3g} FLOP"


def roof_picture(roofline: Roofline | None) -> Plane | None:
    """The roof and the run, where both limits and both counts are known."""
    if roofline is None:
        return None
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
        "",
        properties,
        roofline.counted[:_SHOWN],
        len(roofline.counted),
    )
