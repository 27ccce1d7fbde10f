"""How a tensor lies in memory, as pictures: by index, by place, several at once.

One key holds everywhere: a number is a place in the storage, in elements, and a
colour is the index along the slowest dim that moves. What is drawn is found in
closed form, so that a picture costs what is drawn and not what the tensor holds.
"""

from __future__ import annotations

from gpumagic.tensor_info.diagram.figure import Figure
from gpumagic.tensor_info.diagram.index_panel import index_panel
from gpumagic.tensor_info.diagram.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.diagram.lane_cells import few_places, lane_cells
from gpumagic.tensor_info.diagram.memory_strip import memory_strip
from gpumagic.tensor_info.diagram.sight import Sight, sight_of

__all__ = [
    "BarLane",
    "Figure",
    "LaneBars",
    "Sight",
    "few_places",
    "index_panel",
    "lane_cells",
    "memory_strip",
    "sight_of",
]
