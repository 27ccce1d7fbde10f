"""Says of one of very many ranks what matters, in a kilobyte. Pure.

The least and the most that each collective took over all ranks come from a reduction
among the ranks; with these, each rank knows its own waits and what it was waited for.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.report.collectives import union_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NS = 1_000_000_000
_STEP = 1.02  # of the buckets: figures are known to two per cent
_MOST_BYTES = 1_000
_MOST_LETTERS = 200
_ARRIVED, _ENDED, _BESIDE = 4, 5, 7  # places in a row of a collective


def durations(done: Mapping[str, Any]) -> list[int]:
    """How long each collective took on this rank, in nanoseconds, in their order.

    Args:
        done: What it says of a cell; see `answers`.
    """
    return [row[_ENDED] - row[_ARRIVED] for row in done.get("collectives") or ()]


def sums_of(
    done: Mapping[str, Any], least_ns: Sequence[int], most_ns: Sequence[int]
) -> dict[str, Any]:
    """What goes out instead of all that a rank did with others.

    Args:
        done: What it says of a cell.

        least_ns: What each collective took on the rank where it took least.

        most_ns: Likewise most.
    """
    began_ns, ended_ns = done["began_ns"], done["ended_ns"]
    together, waits, buckets = [], [], Counter[int]()
    blamed_ns = last = 0
    rows = done.get("collectives") or ()
    for row, least, most in zip(rows, least_ns, most_ns, strict=True):
        from_ns = row[_ARRIVED] + (row[_BESIDE] if len(row) > _BESIDE else 0)
        together.append((from_ns, row[_ENDED]))
        waited_ns = row[_ENDED] - least - from_ns
        if waited_ns > 0:
            waits.append((from_ns, from_ns + waited_ns))
            buckets[round(math.log(waited_ns, _STEP))] += 1
        if row[_ENDED] - row[_ARRIVED] == least < most:
            blamed_ns += most - least
            last += 1
    all_ns = union_ns(together, began_ns, ended_ns)
    waits_ns = union_ns(waits, began_ns, ended_ns)
    error = done.get("error")
    said = {
        "version": VERSION,
        "kind": "sums",
        "rank": done["seat"]["rank"],
        "elapsed_s": (ended_ns - began_ns) / _NS,
        "own_s": (ended_ns - began_ns - all_ns) / _NS,
        "waits_s": waits_ns / _NS,
        "moves_s": (all_ns - waits_ns) / _NS,
        "blamed_s": blamed_ns / _NS,
        "last": last,
        **(done.get("memory") or {}),
        "error": None if error is None else str(error)[:_MOST_LETTERS],
        "buckets": {str(each): count for each, count in buckets.most_common()},
    }
    return _fitting(said)


def _fitting(said: dict[str, Any]) -> dict[str, Any]:
    """Without the rarest buckets, if it would be too long."""
    while len(json.dumps(said)) > _MOST_BYTES and said["buckets"]:
        said["buckets"].popitem()
    return said
