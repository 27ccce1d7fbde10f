"""Finds what is in use in one memory snapshot and was not in an earlier one, by line.

What matters is how much a line holds: where its memory lies changes all the time.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.gpu_open.memory_pieces import stacks_of, trace_of
from gpumagic.gpu_open.memory_records import Growth
from gpumagic.gpu_open.recorded_lines import RecordedLines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpumagic.devices.memory_events import Spot
    from gpumagic.gpu_open.snapshot_file import Snapshot


class _Held(NamedTuple):
    address: int
    nbytes: int
    spot: Spot | None


def grown(first: Snapshot, second: Snapshot) -> tuple[Growth, ...]:
    """By device and line, what the second holds more than the first; most first."""
    devices = sorted({*first.devices, *second.devices})
    stacks = (_stacks(each, n) for each in (first, second) for n in devices)
    lines = RecordedLines(chain.from_iterable(stacks))
    found = (each for n in devices for each in _grown_on(n, first, second, lines))
    return tuple(sorted(found, key=lambda each: each.before_bytes - each.after_bytes))


def _grown_on(
    device: int, first: Snapshot, second: Snapshot, lines: RecordedLines
) -> Iterable[Growth]:
    before = _by_line(_held(first, device, lines, {}))
    known = {each[:2]: each.spot for each in chain.from_iterable(before.values())}
    after = _by_line(_held(second, device, lines, known))
    for spot, pieces in after.items():
        earlier = before.get(spot, [])
        before_bytes, after_bytes = _bytes(earlier), _bytes(pieces)
        if after_bytes > before_bytes:
            there = {each.address for each in earlier}
            yield Growth(
                device=device,
                line=lines.line(spot),
                before_bytes=before_bytes,
                after_bytes=after_bytes,
                before=len(earlier),
                after=len(pieces),
                is_new=there.isdisjoint(each.address for each in pieces),
            )


def _held(
    snapshot: Snapshot,
    device: int,
    lines: RecordedLines,
    known: Mapping[tuple[Any, ...], Spot | None],
) -> Iterable[_Held]:
    """What is in use; a stack that the second has lost is that of the first."""
    taken = {
        entry["addr"]: lines.spot(entry.get("frames"))
        for entry in trace_of(snapshot, device)
        if entry["action"] == "alloc"
    }
    for segment in snapshot.segments:
        if segment["device"] != device:
            continue
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                address, nbytes = block["address"], block["size"]
                spot = lines.spot(block["frames"]) or taken.get(address)
                if spot is None and address not in taken:
                    spot = known.get((address, nbytes))
                yield _Held(address, nbytes, spot)


def _stacks(snapshot: Snapshot, device: int) -> Iterable[Any]:
    segments = (each for each in snapshot.segments if each["device"] == device)
    return stacks_of(segments, trace_of(snapshot, device))


def _by_line(held: Iterable[_Held]) -> dict[Spot | None, list[_Held]]:
    found: defaultdict[Spot | None, list[_Held]] = defaultdict(list)
    for each in held:
        found[each.spot].append(each)
    return dict(found)


def _bytes(held: Iterable[_Held]) -> int:
    return sum(each.nbytes for each in held)
