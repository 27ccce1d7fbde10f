"""What a rank has called together with others, by torch's flight recorder.

The recorder keeps the newest calls in a ring, with the moment of each, and costs
nothing that was not paid before. It does not say when a collective has ended; but none
ends before the last rank has called it, which is enough for waits once clocks are put
together.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks import flight_recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

_RING = 2_000  # calls that the recorder keeps unless one of these says otherwise
_RING_IN = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_BYTES = {"Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4}
_BYTES |= dict.fromkeys(("Byte", "Char", "Bool"), 1)
_LARGE = 8  # bytes of an element of all other kinds


def is_recorded() -> bool:
    """Whether this torch has a recorder for all backends, and it is on."""
    said = [os.environ.get(each, "") for each in _RING_IN]
    ring = next((int(each) for each in said if each.isdecimal()), _RING)
    return ring > 0 and flight_recorder.is_there()


def recorded(since_ns: int) -> tuple[list[list[Any]], int | None]:
    """The calls since a moment; and from when on, where the recorder has lost some."""
    there = flight_recorder.calls()
    entries = [each for each in there if _created_ns(each) >= since_ns]
    # All that is there is new: so what came before it is gone.
    is_lost = len(entries) == len(there) and bool(there) and there[0]["record_id"] > 0
    rows = [row for each in entries if (row := _row(each)) is not None]
    return rows, rows[0][4] if is_lost and rows else None


def _row(entry: Mapping[str, Any]) -> list[Any] | None:
    """As a collective travels; None for what only two have to do with."""
    group = flight_recorder.group_of(entry)
    if entry.get("is_p2p") or not group:
        return None
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    number, at_ns = int(entry.get("collective_seq_id", 0)), _created_ns(entry)
    return [group, number, name, _nbytes(entry), at_ns, at_ns]


def _created_ns(entry: Mapping[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))


def _nbytes(entry: Mapping[str, Any]) -> int | None:
    """What it put in; None where sizes are not told."""
    sizes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    each = zip(sizes, kinds, strict=False)
    its = (math.prod(size) * _BYTES.get(str(kind), _LARGE) for size, kind in each)
    return int(sum(its))
