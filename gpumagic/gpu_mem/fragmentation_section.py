"""How usable the free memory is: each figure with the sentence that it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Paragraph, Table
from gpumagic.gpu_mem.device_words import device_name
from gpumagic.report.units import bytes_text, count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.blocks import Fragmentation
    from gpumagic.gpu_mem.records.setting import Setting

_MOST_DEVICES = 4

_Figure = tuple[str, "Callable[[Fragmentation], Cell]", str]

_FIGURES: tuple[_Figure, ...] = (
    (
        "reserved",
        lambda of: bytes_text(of.reserved_bytes),
        "taken from the driver",
    ),
    (
        "free in it",
        lambda of: bytes_text(of.free_bytes),
        "not in use, and kept by torch",
    ),
    (
        "idle",
        lambda of: _share(of.idle_share),
        "of what is reserved: slack, which by itself is nothing bad",
    ),
    (
        "stuck",
        lambda of: _share(of.stuck_share),
        "of what is reserved is free beside blocks in use: it cannot be given back",
    ),
    (
        "largest hole",
        lambda of: bytes_text(of.largest_hole_bytes),
        "the largest tensor that may fit without asking the driver",
    ),
    (
        "fragmented",
        lambda of: _share(of.external),
        "of the free memory lies outside the largest hole: 0 % is one hole",
    ),
    (
        "spread",
        lambda of: _share(of.spread),
        "near 100 %: many holes of like size; 0 %: one hole",
    ),
    (
        "rounding",
        lambda of: _share(of.rounding_share),
        "of what is in use was handed out beyond what was asked for",
    ),
    (
        "stranded",
        lambda of: bytes_text(of.stranded_bytes),
        "free, but only for another stream or pool than most of the memory",
    ),
)


def fragmentation_parts(
    figures: Sequence[Fragmentation], setting: Setting
) -> Iterator[Part]:
    """One table, a column for each of the devices that have most."""
    if not figures:
        return
    most = sorted(figures, key=lambda each: each.reserved_bytes, reverse=True)
    shown = sorted(most[:_MOST_DEVICES], key=lambda each: each.device)
    columns = (
        Column("Figure"),
        *(Column(device_name(setting, each.device), number=True) for each in shown),
        Column("What it says"),
    )
    rows = tuple(
        (name, *(figure(each) for each in shown), meaning)
        for name, figure, meaning in _FIGURES
    )
    yield Table("Fragmentation", columns, rows)
    if more := len(figures) - len(shown):
        yield Paragraph(f"... and {count_text(more, 'device')} with less reserved")


def _share(share: float | None) -> str | None:
    return None if share is None else share_text(share)
