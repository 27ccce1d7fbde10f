"""Works out of a recorded history what was asked of the allocator, and from what state.

What was in use before the recording is what is given back in it without having been
taken, and what is there in the end without having been taken; the same holds for
segments. The size of what is given back is that of its entry, as the allocator rounds,
with the rest of up to 1 MiB that it does not split off.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from gpumagic.simulator.allocator_blocks import ALLOCATED, INACTIVE, SHARED
from gpumagic.simulator.allocator_settings import (
    LARGEST_SMALL_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_SEGMENT_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.simulator.allocator_blocks import PoolId
    from gpumagic.simulator.allocator_settings import AllocatorSettings

    Entry = Mapping[str, Any]

TAKE, GIVE_BACK, RETURN, FAIL = range(4)  # what a step is
NEVER = 1 << 62
_RETURNS = ("segment_free", "segment_unmap")
_GROWS = ("segment_alloc", "segment_map")
_NO_LIMIT = 1 << 62

_MOST_BYTES = 1 << 44  # of pages that are mapped and unmapped: far beyond any run
BEYOND = "Sizes in this history are beyond any device."
CUT = "The history and the final state disagree: some of it is missing."
POOLS_UNKNOWN = "Which pools some freed segments belonged to is not recorded."
SHORT_OR_EMPTIED = "Whether memory ran short or the program emptied the cache is open."


class HasHistory(Protocol):
    """What is needed of a snapshot; see `snapshot_file.Snapshot`."""

    @property
    def segments(self) -> Sequence[Entry]:
        """As torch tells them."""

    @property
    def device_traces(self) -> Sequence[Sequence[Entry]]:
        """The history of each device."""

    @property
    def settings(self) -> str | None:
        """As PYTORCH_CUDA_ALLOC_CONF would say them."""


class Step(NamedTuple):
    """Something that the program did to the allocator."""

    kind: int  # TAKE, GIVE_BACK, RETURN (segments to the driver) or FAIL
    at: int  # its place among all entries; -1 is before the first
    event: int  # its number among what is taken, given back or refused, from 1 on
    piece: int  # the number of the memory; -1 of what has none
    nbytes: int = 0  # what was asked for
    stream: int = 0  # for which stream
    # from which pool; SHARED unless it is a graph's or the user's own
    pool: PoolId = SHARED
    # where it was; of what failed the entry before which the device had not been
    # waited for
    address: int = 0


Group: TypeAlias = "tuple[int, str, PoolId]"  # a stream, small or large, a pool


class Taken(NamedTuple):
    """What was taken from the driver: the entry's place, where, how much, for whom."""

    at: int
    address: int
    nbytes: int
    group: Group


class Returned(NamedTuple):
    """Segments that went back to the driver at once."""

    # of the segments; None where pages of expandable ones are among them
    addresses: tuple[int, ...] | None
    level_bytes: int  # what was taken from the driver afterwards
    # what would have been taken without it, where a request followed that needed new
    # memory; None where none did
    wanted_bytes: int | None
    pools: tuple[PoolId, ...]  # private ones that nobody can have used any more
    begin: int  # the entry before which the device had not been waited for


class Held(NamedTuple):
    """Memory that was in use before the recording."""

    piece: int
    address: int
    size: int
    requested: int
    stream: int
    pool: PoolId


@dataclass
class Requests:
    """All that one device's history asks for."""

    steps: list[Step] = field(default_factory=list)  # in order
    # what went back to the driver, by the place of the step
    returned: dict[int, Returned] = field(default_factory=dict)
    # when memory that another stream used was free again, by its number
    late: dict[int, int] = field(default_factory=dict)
    pieces: int = 0  # how many pieces of memory there are
    # those before the recording, in the shape of torch's
    segments: list[dict[str, Any]] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)  # what was in use then, by address
    # what was taken from the driver, in order
    taken: list[Taken] = field(default_factory=list)
    # what this process could have, as its last error tells
    total_bytes: int | None = None
    peak_reserved_bytes: int = 0  # the most that was taken from the driver
    notes: list[str] = field(default_factory=list)  # what cannot be told, in sentences


def requests_of(
    snapshot: HasHistory, device: int, settings: AllocatorSettings
) -> Requests:
    """What a device's history asks for."""
    traces = snapshot.device_traces
    entries = traces[device] if device < len(traces) else ()
    final = [each for each in snapshot.segments if each["device"] == device]
    reader = _Reader(final, settings)
    reader.read(entries)
    reader.find_start()
    return reader.found


def is_beyond(snapshot: HasHistory, device: int) -> bool:
    """Whether so much is mapped that no device has it, as in a broken file."""
    traces = snapshot.device_traces
    moved_bytes = sum(
        entry["size"]
        for entry in (traces[device] if device < len(traces) else ())
        if entry["action"] in {"segment_map", "segment_unmap"}
    )
    held_bytes = sum(
        each["total_size"] for each in snapshot.segments if each["is_expandable"]
    )
    return bool(moved_bytes + held_bytes > _MOST_BYTES)


class _Reader:
    """Goes through the entries once, and then finds what was there before them."""

    def __init__(self, final: Sequence[Entry], settings: AllocatorSettings) -> None:
        self.found = Requests()
        self._settings = settings
        self._final = sorted(final, key=lambda each: each["address"])
        self._private = [each for each in self._final if _pool(each) != SHARED]
        self._live: dict[int, int] = {}  # the piece at an address
        self._awaited: dict[int, int] = {}  # those given back and not free as yet
        self._before: dict[int, Held] = {}  # by address, sizes as they are asked for
        self._ended: dict[int, int] = {}  # when each of these was given back
        self._waiting_before: list[int] = []  # pieces that had been given back
        self._first_taken: dict[int, int] = {}
        self._segments: dict[int, int] = {}  # taken while recorded
        self._segments_before: dict[int, Entry] = {}
        self._mapped: set[int] = set()  # pages of 2 MiB, likewise
        self._mapped_before: dict[int, Entry] = {}
        self._until: dict[Group, int] = {}  # when the last of those had gone
        self._grown: list[Taken] = []  # what was mapped while recorded
        self._private_from: dict[int, int] = {}  # when their segments were taken
        self._level = 0  # what was taken from the driver since the beginning

    # -------------------------------------------------------------- the entries

    def read(  # noqa: C901 -- one branch for each kind of entry
        self, entries: Sequence[Entry]
    ) -> None:
        """Make steps of them."""
        found, event, at, count = self.found, 0, 0, len(entries)
        actions = {entry["action"] for entry in entries}
        asked = "free_requested" in actions
        completes = "free_completed" in actions
        for place, entry in enumerate(entries):
            if entry["action"] == "segment_alloc":
                self._private_from[entry["addr"]] = place
        levels = [0]
        while at < count:
            entry = entries[at]
            action = entry["action"]
            if action == "alloc":
                event += 1
                self._take(entry, at, event)
            elif action == "free_requested" or (
                action == "free_completed" and not asked
            ):
                event += 1
                following = entries[at + 1] if at + 1 < count else None
                plain = not completes or not asked or _completes(following, entry)
                self._give_back(entry, at, event, plain=plain)
            elif action == "free_completed":
                self._complete(entry, at)
            elif action in _GROWS:
                self._grow(entry, at)
            elif action in _RETURNS:
                at = self._return(entries, at)
            elif action == "oom":
                event += 1
                self._fail(entry, at, event, _before_waiting(entries, at))
            levels.append(self._level)
            at += 1
        reserved = sum(each["total_size"] for each in self._final)
        before = reserved - self._level
        found.peak_reserved_bytes = before + max(levels)
        if before + min(levels) < 0:
            self._note(CUT)
        self._raise_levels(before)

    def _take(self, entry: Entry, at: int, event: int) -> None:
        address, stream = entry["addr"], entry["stream"]
        pool = self._pool_at(entry, address, at)
        gone = self._live.pop(address, None)
        if gone is None:
            gone = self._awaited.pop(address, None)
            if gone is not None:  # its completion is missing
                self.found.late[gone] = at - 1
        else:  # that it was given back is missing
            self.found.steps.append(Step(GIVE_BACK, at, event, gone))
            self._note(CUT)
        piece = self._live[address] = self._new_piece()
        self._first_taken.setdefault(address, at)
        nbytes = entry["size"]
        self.found.steps.append(
            Step(TAKE, at, event, piece, nbytes, stream, pool, address)
        )

    def _give_back(self, entry: Entry, at: int, event: int, *, plain: bool) -> None:
        address = entry["addr"]
        piece = self._live.pop(address, None)
        if piece is None:
            if address in self._before or address in self._first_taken:
                self._note(CUT)
                return
            piece = self._was_before(entry, at)
        self.found.steps.append(Step(GIVE_BACK, at, event, piece))
        if not plain:
            self._awaited[address] = piece
            self.found.late[piece] = NEVER

    def _complete(self, entry: Entry, at: int) -> None:
        address = entry["addr"]
        piece = self._awaited.pop(address, None)
        if piece is not None:
            self.found.late[piece] = at
        elif address not in self._before and address not in self._first_taken:
            piece = self._was_before(entry, at)
            self._waiting_before.append(piece)
            self.found.late[piece] = at

    def _was_before(self, entry: Entry, at: int) -> int:
        address, nbytes = entry["addr"], entry["size"]
        piece = self._new_piece()
        pool = self._pool_at(entry, address, -1)
        size = self._settings.rounded_bytes(max(nbytes, 1))
        held = Held(piece, address, size, nbytes, entry["stream"], pool)
        self._before[address] = held
        self._ended[address] = at
        return piece

    def _grow(self, entry: Entry, at: int) -> None:
        address, size, group = entry["addr"], entry["size"], self._group(entry)
        if entry["action"] == "segment_alloc":
            self._segments[address] = size
        else:
            self._mapped.update(_pages(address, size))
            self._grown.append(Taken(at, address, size, group))
        self._level += size
        self.found.taken.append(Taken(at, address, size, group))

    def _return(self, entries: Sequence[Entry], at: int) -> int:
        """What went back at once, up to the entry at which it ends."""
        begin, before = at, self._level
        addresses: list[int] | None = []
        pools: set[PoolId] = set()
        while at < len(entries) and entries[at]["action"] in _RETURNS:
            entry = entries[at]
            address, size = entry["addr"], entry["size"]
            pool = self._pool_at(entry, address, at)
            if pool != SHARED:
                pools.add(pool)
            self._level -= size
            if entry["action"] == "segment_unmap":
                addresses = None
                self._unmap(entry, at)
            elif self._segments.pop(address, None) is None:
                self._segments_before[address] = entry
            if addresses is not None:
                addresses.append(address)
            at += 1
        following = entries[at] if at < len(entries) else None
        wanted = None
        if following is not None and following["action"] in ("oom", *_GROWS):
            size = following["size"]
            if following["action"] == "oom":
                size = self._settings.segment_bytes(size)
            wanted = before + size
        self.found.returned[begin] = Returned(
            None if addresses is None else tuple(addresses),
            self._level,
            wanted,
            tuple(sorted(pools)),
            _before_waiting(entries, begin),
        )
        self.found.steps.append(Step(RETURN, begin, -1, -1))
        return at - 1

    def _unmap(self, entry: Entry, at: int) -> None:
        for page in _pages(entry["addr"], entry["size"]):
            if page in self._mapped:
                self._mapped.remove(page)
            elif self._mapped_before.setdefault(page, entry) is entry:
                self._until[self._group(entry)] = at

    def _fail(self, entry: Entry, at: int, event: int, begin: int) -> None:
        size, stream = entry["size"], entry["stream"]
        pool = self._pool_at(entry, None, at)
        self.found.steps.append(
            Step(FAIL, at, event, self._new_piece(), size, stream, pool, begin)
        )
        free = entry.get("device_free")
        if isinstance(free, int) and free >= 0:
            total = self._level + free
            segment = self._settings.segment_bytes(size)
            if segment <= free and not self._settings.expandable_segments:
                total = self._level + segment - 1  # a share was all that was allowed
            self.found.total_bytes = total

    def _raise_levels(self, before: int) -> None:
        """Count from what had been taken before, once that is known."""
        found = self.found
        for at, each in found.returned.items():
            wanted = each.wanted_bytes
            found.returned[at] = each._replace(
                level_bytes=each.level_bytes + before,
                wanted_bytes=None if wanted is None else wanted + before,
            )
        if found.total_bytes is not None:
            found.total_bytes += before

    def _new_piece(self) -> int:
        self.found.pieces += 1
        return self.found.pieces - 1

    def _pool_at(self, entry: Entry, address: int | None, at: int) -> PoolId:
        """The pool of an address: as the entry tells, or as the end shows."""
        told = entry.get("pool_id")
        if told is not None:
            first, second = told
            return first, second
        if address is None:
            return SHARED
        for each in self._private:
            start = each["address"]
            if start <= address < start + each["total_size"]:
                is_there = at < 0 or self._private_from.get(start, -1) < at
                return _pool(each) if is_there else SHARED
        return SHARED

    def _note(self, sentence: str) -> None:
        if sentence not in self.found.notes:
            self.found.notes.append(sentence)

    # ---------------------------------------------------------- what was before

    def find_start(self) -> None:
        """Find segments and blocks that were there before the first entry."""
        found = self.found
        exact = self._compare_end()
        segments = [*self._plain_segments(), *self._expandable_segments()]
        segments = self._apart(segments)
        starts = [each["address"] for each in segments]
        inside: list[list[Held]] = [[] for _ in segments]
        taken = sorted(self._first_taken)
        for address in sorted(self._before):
            place = bisect_right(starts, address) - 1
            if (
                place < 0
                or not self._before[address].size
                or address >= starts[place] + segments[place]["total_size"]
                or (inside[place] and _end(inside[place][-1]) > address)
            ):
                self._note(CUT)
                continue
            inside[place].append(self._before[address])
        for segment, held in zip(segments, inside, strict=True):
            segment["blocks"] = self._blocks(segment, held, exact, taken)
        found.segments = segments
        found.held.sort(key=lambda each: each.address)
        waiting = [Step(GIVE_BACK, -1, 0, piece) for piece in self._waiting_before]
        found.steps[:0] = waiting

    def _apart(self, segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """In order of address, without those that begin in another."""
        kept: list[dict[str, Any]] = []
        end = 0
        for each in sorted(segments, key=lambda each: each["address"]):
            if each["address"] < end:
                self._note(CUT)
                continue
            kept.append(each)
            end = each["address"] + each["total_size"]
        return kept

    def _compare_end(self) -> set[int]:
        """Add what is there in the end and was before; the addresses of all of it."""
        exact = set()
        met = self._before.keys() | self._first_taken.keys()
        there = set()
        for segment in self._final:
            stream, pool = segment["stream"], _pool(segment)
            for block in segment["blocks"]:
                if block["state"] == INACTIVE:
                    continue
                address, size = block["address"], block["size"]
                there.add(address)
                if address in met:
                    known = address in self._live or address in self._awaited
                    if not known:
                        self._note(CUT)
                    continue
                requested = block["requested_size"] or size
                piece = self._new_piece()
                self._before[address] = Held(
                    piece, address, size, requested, stream, pool
                )
                exact.add(address)
                if block["state"] != ALLOCATED:
                    self._waiting_before.append(piece)
                    self.found.late[piece] = NEVER
        if not there >= self._live.keys():
            self._note(CUT)
        return exact

    def _plain_segments(self) -> list[dict[str, Any]]:
        """Those before the recording that do not expand."""
        before = [
            _segment(
                address,
                entry["size"],
                entry["stream"],
                "small" if entry["size"] <= SMALL_SEGMENT_BYTES else "large",
                self._pool_at(entry, None, -1),
            )
            for address, entry in self._segments_before.items()
            if entry["size"]
        ]
        if self._private and any(
            "pool_id" not in each for each in self._segments_before.values()
        ):
            self._note(POOLS_UNKNOWN)
        for each in self._final:
            address = each["address"]
            is_new = address in self._segments or not each["total_size"]
            if each["is_expandable"] or is_new:
                continue
            if address in self._segments_before:
                self._note(CUT)
                continue
            before.append(
                _segment(
                    address,
                    each["total_size"],
                    each["stream"],
                    each["segment_type"],
                    _pool(each),
                )
            )
        return before

    def _expandable_segments(self) -> list[dict[str, Any]]:
        """Runs of pages with memory, and where lower ones were mapped later."""
        pages: dict[int, Group] = {}
        for segment in self._final:
            if segment["is_expandable"]:
                group = segment["stream"], segment["segment_type"], _pool(segment)
                for page in _pages(segment["address"], segment["total_size"]):
                    if page not in self._mapped:
                        pages[page] = group
        kept = set(pages.values())
        for page, entry in self._mapped_before.items():
            pages[page] = self._group(entry)
        first: dict[Group, int] = {}
        for page in sorted(pages, reverse=True):
            first[pages[page]] = page * SEGMENT_STEP_BYTES
        lowest = self._lowest(first, kept)
        runs = [
            _segment(address, 0, *group) | {"is_expandable": True, "group": group}
            for group, address in lowest.items()
            if address < first[group]
        ]
        for page in sorted(pages):
            stream, kind, pool = group = pages[page]
            last = runs[-1] if runs else None
            address = page * SEGMENT_STEP_BYTES
            if (
                last is not None
                and last["address"] + last["total_size"] == address
                and last["group"] == group
            ):
                last["total_size"] += SEGMENT_STEP_BYTES
            else:
                run = _segment(address, SEGMENT_STEP_BYTES, stream, kind, pool)
                runs.append(run | {"is_expandable": True, "group": group})
        return runs

    def _lowest(self, first: Mapping[Group, int], kept: set[Group]) -> dict[Group, int]:
        """Where the addresses of each begin, as pages that were mapped later show.

        As long as some pages from before are there, none are set aside anew.
        """
        lowest = dict(first)
        for each in self._grown:
            group = each.group
            if group not in first:  # as in a broken file
                continue
            if group in kept or each.at < self._until.get(group, -1):
                lowest[group] = min(each.address, lowest[group])
        return lowest

    def _group(self, entry: Entry) -> Group:
        """To which stream, half and pool pages belong, by their number."""
        is_small = entry["size"] % self._settings.large_segment_bytes
        kind = "small" if is_small else "large"
        return entry["stream"], kind, self._pool_at(entry, None, -1)

    def _blocks(
        self,
        segment: Entry,
        pieces: Sequence[Held],
        exact: set[int],
        taken: Sequence[int],
    ) -> list[dict[str, Any]]:
        """The blocks of a segment: what was in use, and between them what was free."""
        at, end = segment["address"], segment["address"] + segment["total_size"]
        blocks = []
        for place, piece in enumerate(pieces):
            following = pieces[place + 1].address if place + 1 < len(pieces) else end
            size = piece.size
            if piece.address not in exact and segment["segment_type"] == "large":
                size = self._whole_size(segment, piece, following, taken)
            size = min(size, following - piece.address)
            if piece.address > at:
                blocks.append(_block(at, piece.address - at, 0, INACTIVE))
            blocks.append(_block(piece.address, size, piece.requested, ALLOCATED))
            self.found.held.append(piece._replace(size=size))
            at = piece.address + size
        if at < end:
            blocks.append(_block(at, end - at, 0, INACTIVE))
        return blocks

    def _whole_size(
        self, segment: Entry, piece: Held, following: int, taken: Sequence[int]
    ) -> int:
        """With the rest that was not split off, as far as it can be told."""
        if segment["is_expandable"] or self._settings.expandable_segments:
            return piece.size
        if piece.size >= (self._settings.max_split_size_bytes or _NO_LIMIT):
            return following - piece.address
        end = piece.address + piece.size
        ended = self._ended[piece.address]
        for place in range(bisect_left(taken, end), len(taken)):
            address = taken[place]
            if address > min(following, end + LARGEST_SMALL_BYTES):
                break
            if self._first_taken[address] < ended:
                return address - piece.address
        if following - end <= LARGEST_SMALL_BYTES:
            return following - piece.address
        return piece.size


def _completes(following: Entry | None, entry: Entry) -> bool:
    return (
        following is not None
        and following["action"] == "free_completed"
        and following["addr"] == entry["addr"]
    )


def _before_waiting(entries: Sequence[Entry], at: int) -> int:
    """Where what was waited for begins to be free, just before an entry."""
    while at and entries[at - 1]["action"] == "free_completed":
        requested = entries[at - 2] if at > 1 else None
        if requested is not None and requested["action"] == "free_requested":
            break
        at -= 1
    return at


def _pool(segment: Entry) -> PoolId:
    first, second = segment.get("segment_pool_id") or SHARED
    return first, second


def _pages(address: int, size: int) -> range:
    return range(address // SEGMENT_STEP_BYTES, (address + size) // SEGMENT_STEP_BYTES)


def _end(piece: Held) -> int:
    return piece.address + piece.size


def _segment(
    address: int, size: int, stream: int, kind: str, pool: PoolId
) -> dict[str, Any]:
    return {
        "address": address,
        "total_size": size,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": False,
    }


def _block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
    }
