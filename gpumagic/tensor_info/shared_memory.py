"""The memory that several tensors lie in, with a lane for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.tensor_info.diagram.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.diagram.lane_cells import few_places, lane_cells
from gpumagic.tensor_info.diagram.sight import sight_of
from gpumagic.tensor_info.diagram.lane_cells import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import CompareReport, Pair, TensorReport


def shared_memories(report: CompareReport) -> Iterator[Part]:
    """A figure for each memory that more than one of the tensors lies in."""
    for numbers in _groups(len(report.tensors), report.pairs):
        lanes = _lanes([report.tensors[number] for number in numbers])
        if len(lanes) < 2:
            continue
        yield (
            lane_cells(lanes)
            if few_places(lanes)
            else _bars(lanes, [report.tensors[number] for number in numbers])
        )


def _groups(count: int, pairs: Sequence[Pair]) -> list[list[int]]:
    """Tensors that lie in one memory, directly or through another tensor."""
    group = list(range(count))
    for pair in pairs:
        if pair.same_storage or pair.storage_ranges_intersect:
            old, new = sorted((group[pair.first], group[pair.second]), reverse=True)
            group = [new if each == old else each for each in group]
    return [
        [number for number in range(count) if group[number] == each]
        for each in sorted(set(group))
    ]


def _lanes(tensors: Sequence[TensorReport]) -> list[Lane]:
    """The tensors with the place of their storages in the memory they share."""
    sights = [sight_of(each) for each in tensors]
    starts = _starts(tensors)
    return [
        Lane(tensor.expression, sight, start)
        for tensor, sight, start in zip(tensors, sights, starts, strict=True)
        if sight is not None
    ]


def _starts(tensors: Sequence[TensorReport]) -> list[int]:
    """Where each tensor's storage begins, from the lowest on, by address if known."""
    found = []
    for each in tensors:
        if each.address is None:
            return [0] * len(tensors)
        offset_bytes = (each.storage_offset or 0) * (each.itemsize or 1)
        found.append(each.address - offset_bytes)
    return [start - min(found) for start in found]


def _bars(lanes: Sequence[Lane], tensors: Sequence[TensorReport]) -> LaneBars:
    ends = [
        lane.start_byte + (tensor.storage_bytes or 0)
        for lane, tensor in zip(lanes, tensors, strict=False)
    ]
    total = max(*ends, *(lane.last_byte for lane in lanes))
    by_name = {tensor.expression: tensor for tensor in tensors}
    bars = tuple(
        BarLane(
            lane.name,
            lane.first_byte,
            lane.last_byte,
            by_name[lane.name].holes_in_span == 0,
            _where(lane, by_name[lane.name]),
        )
        for lane in lanes
    )
    return LaneBars("One memory, a lane for each tensor", bars, total)


def _where(lane: Lane, tensor: TensorReport) -> str:
    said = f"byte {lane.first_byte:,} to {lane.last_byte:,}"
    if tensor.holes_in_span:
        return f"{said}, {tensor.holes_in_span:,} el between are not its own"
    return said
