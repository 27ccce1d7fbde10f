"""Reports on memory snapshots, with figures as real trainings give them.

They are written by hand, or made by formulas that are fixed here, so that golden
files differ only where a view does.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate

from gpumagic.gpu_mem.records import Block, BlockState, Segment
from gpumagic.gpu_open.answer_recording import SnapshotReport
from gpumagic.gpu_open.memory_records import (
    Failure,
    Growth,
    LineMemory,
    MemoryCourse,
    Replayed,
    ReplayOf,
    SnapshotOfDevice,
)
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.places import CodeLine

KIB, MIB, GIB = 2**10, 2**20, 2**30
STRETCHES = 240
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext {line}"
LONG = "models/transformer/attention/flash_attention_with_sliding_window_utils.py"
EXPANDABLE = "expandable_segments:True"


def gib(number):
    """So many GiB, in bytes, as the allocator rounds."""
    return int(number * GIB) // 512 * 512


def line(where, *parts):
    """A line of code, as `train.py, 41` or with its source."""
    name, number = where.split(", ")
    return CodeLine(f"{name}, line {number}", *parts)


ATTENTION = line("attention.py, 88")
MODEL = line("model.py, 12")
STEP = line("train.py, 41")
OPTIM = line("train.py, 52")
MLP = line("mlp.py, 30")
LOADER = line("data.py, 19")
LOSSES = line("train.py, 44")


# ------------------------------------------------------------------- over time


def rising(high, steps=2, begin=0.0, end=1.0):
    """Made piece by piece in a forward pass, gone piece by piece in the backward."""
    period = STRETCHES / steps
    heights = []
    for at in range(STRETCHES):
        share = (at % period) / period
        hill = min(share / 0.55, (1 - share) / 0.45)
        is_there = begin <= at / STRETCHES < end
        heights.append(gib(high * hill) if is_there else 0)
    return tuple(heights)


def held(high, begin=0.0):
    """There from a moment on."""
    return tuple(gib(high) if at / STRETCHES >= begin else 0 for at in range(STRETCHES))


def growing(high):
    """A little more in each step."""
    return tuple(gib(high * at / STRETCHES) for at in range(STRETCHES))


def piled(*sizes):
    """Up to the moment of an error, and there it ends."""
    return tuple(map(gib, accumulate(sizes)))


def course_of(*entries, events, rest=None):
    """Lines and their course: each a line, its levels, and what else is known.

    Returns:
        What a device is made of: lines, course, the peak and its event.
    """
    totals = [
        sum(column) for column in zip(*(each[1] for each in entries), strict=True)
    ]
    totals = [a + b for a, b in zip(totals, rest or [0] * STRETCHES, strict=True)]
    peak = max(range(STRETCHES), key=totals.__getitem__)
    lines = [
        LineMemory(
            line=where,
            now_bytes=levels[-1],
            at_peak_bytes=levels[peak],
            **{"before": False, "taken": 0, "given_back": 0, **more},
        )
        for where, levels, more in entries
    ]
    order = sorted(range(len(lines)), key=lambda at: -lines[at].at_peak_bytes)
    drawn, left = order[:12], order[12:]
    rest = [
        sum(column)
        for column in zip(
            rest or [0] * STRETCHES, *(entries[at][1] for at in left), strict=True
        )
    ]
    places = {at: place for place, at in enumerate(order)}
    levels = [entries[at][1] for at in drawn]
    others = [tuple(rest)] if any(rest) else []
    return {
        "lines": tuple(lines[at] for at in order),
        "course": MemoryCourse(
            events,
            (*(places[at] for at in drawn), *([None] if others else [])),
            tuple(map(tuple, (*levels, *others))),
            length_s=events * 1.3e-4,
        ),
        "events": events,
        "peak_bytes": totals[peak],
        "peak_event": (2 * peak + 1) * events // (2 * STRETCHES),
        "allocated_bytes": totals[-1],
        "has_stacks": any(each[0] is not None for each in entries),
    }


def taken(times, lived=None, given_back=None):
    """What a line did while it was recorded."""
    back = (times if lived else 0) if given_back is None else given_back
    return {
        "taken": times,
        "given_back": back,
        "lived_events": lived,
    }


# ---------------------------------------------------------------- what lies where


def segment(*pieces, device=0, address=0, stream=0, pool="large", expandable=False):
    """Blocks one behind the other: each a size in MiB and a line, or None for free."""
    blocks, offset = [], 0
    for size, where in pieces:
        state = BlockState.FREE if where is None else BlockState.ALLOCATED
        code = where if isinstance(where, CodeLine) else None
        nbytes = int(size * MIB)
        blocks.append(Block(offset, nbytes, state, nbytes, line=code))
        offset += nbytes
    return Segment(
        device,
        0x7F0000000000 + address,
        offset,
        stream,
        pool,
        expandable,
        tuple(blocks),
    )


NOBODY = object()


def many(count, *pieces, **more):
    """So many segments of the same pieces."""
    nbytes = int(sum(size for size, _ in pieces) * MIB)
    return tuple(
        segment(*pieces, address=more.get("address", 0) + at * 2 * nbytes, **rest)
        for at in range(count)
        for rest in [{k: v for k, v in more.items() if k != "address"}]
    )


def device_of(segments, device=0, **more):
    """A device with these segments."""
    allocated = sum(each.allocated_bytes for each in segments)
    reserved = sum(each.nbytes for each in segments)
    known = {
        "device": device,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "segments": segments,
        "peak_reserved_bytes": reserved,
        "complete": True,
    }
    return SnapshotOfDevice(**{**known, **more})


def file_of(name, events=0, **more):
    """A file that was read."""
    return FileRead(name, 210 * events + 48_000, events, **more)


def report_of(*devices, name="snapshot.pickle", settings="", read_s=0.84, **more):
    """One snapshot."""
    files = more.pop("files", None)
    if files is None:
        files = (file_of(name, sum(each.events for each in devices)),)
    return SnapshotReport(files, devices, settings, read_s=read_s, **more)


# --------------------------------------------------------------- a plain training

_TRAINING = course_of(
    (ATTENTION, rising(1.9), taken(1152, 402)),
    (MODEL, held(0.72), taken(148)),
    (OPTIM, held(0.9, 0.33), taken(296)),
    (MLP, rising(0.6), taken(576, 380)),
    (STEP, rising(0.24), taken(912, 210)),
    (LOADER, held(0.012), taken(6, 3010, 5)),
    *((line(f"block.py, {at}"), rising(0.05), taken(96, 90)) for at in range(20, 24)),
    events=12_480,
    rest=rising(0.02),
)
_TRAINING_SEGMENTS = (
    *many(20, (18, ATTENTION), (2, None)),
    segment((736, MODEL), address=5 * GIB),
    segment((922, OPTIM), address=7 * GIB),
    segment((500, None), (2, LOADER), (120, None), address=9 * GIB),
    segment((2400, None), address=12 * GIB),
    *many(6, (1.5, MLP), (0.5, None), pool="small", address=11 * GIB),
)
TRAINING = report_of(device_of(_TRAINING_SEGMENTS, **_TRAINING))

# --------------------------------------------------------------- out of memory

_HELD_PIECES = [0.048, 0, 0, 0] * 40 + [0.072, 0, 0, 0] * 20
_FAILED = course_of(
    (ATTENTION, piled(*_HELD_PIECES), taken(1240)),
    (MODEL, held(0.9), taken(148)),
    (OPTIM, held(0.61), taken(296)),
    (MLP, piled(*[0.008, 0, 0, 0] * 60), taken(620)),
    (None, held(0.16), {"before": True}),
    events=18_211,
)
_FAILURE = Failure(18_211, 2 * GIB, int(0.4 * GIB), _FAILED["peak_bytes"], ATTENTION)
_FAILED_SEGMENTS = (
    *many(28, (122, ATTENTION), (18, None)),
    segment((922, MODEL), address=9 * GIB),
    segment((625, OPTIM), address=12 * GIB),
    segment((490, MLP), (180, None), (164, NOBODY), address=15 * GIB),
)
_DEVICE_OUT = device_of(
    _FAILED_SEGMENTS,
    **{**_FAILED, "peak_event": 18_210, "complete": False},
    failure=_FAILURE,
)
OUT_OF_MEMORY = report_of(_DEVICE_OUT, name="oom_snapshot.pickle")

# ------------------------------------------------- what a file may tell less of

NO_HISTORY = report_of(
    device_of(
        tuple(
            dataclasses.replace(
                each,
                blocks=tuple(dataclasses.replace(b, line=None) for b in each.blocks),
            )
            for each in _TRAINING_SEGMENTS
        ),
        complete=False,
        lines=(LineMemory(None, False, gib(2), gib(2), 0, 0),),
    ),
    settings=None,
)
HOSTILE_ONE = report_of(
    device_of(
        (segment((30, CodeLine(HOSTILE, HOSTILE)), (10, None)),),
        **course_of(
            (CodeLine(HOSTILE, HOSTILE), rising(1.1), taken(12, 30)),
            (CodeLine(f"{LONG}, line 1024", LONG), held(0.4), taken(1)),
            events=77,
        ),
    ),
    files=(file_of(HOSTILE, 77, unknown=((HOSTILE, 3),)),),
    settings=HOSTILE,
)

# --------------------------------------------------- devices, streams, expandable

_SHARDS = tuple(
    device_of(
        tuple(
            dataclasses.replace(each, device=at)
            for each in many(8 - at, (100, ATTENTION), (20, None))
        ),
        device=at,
        **course_of(
            (ATTENTION, rising(0.8 - 0.1 * at, 1), taken(400, 90)),
            (MODEL, held(0.1), taken(40)),
            events=4_000 + at,
        ),
    )
    for at in range(3)
)
SEVERAL_DEVICES = report_of(*_SHARDS)
# ------------------------------------------------------------------------ growth

_TWO = (file_of("before.pickle", 9_800), file_of("after.pickle", 31_400))
_LEAKING = device_of(
    _TRAINING_SEGMENTS,
    **course_of(
        (LOSSES, growing(1.3), taken(260)),
        (ATTENTION, rising(0.9, 8), taken(1152, 402)),
        (MODEL, held(0.72), taken(148)),
        events=31_400,
    ),
)
GROWN = SnapshotReport(
    _TWO,
    (_LEAKING,),
    "",
    grown=(
        Growth(0, LOSSES, gib(0.15), gib(1.3), 30, 260),
        Growth(0, STEP, 0, gib(0.04), 0, 2),
        Growth(0, None, gib(0.01), gib(0.02), 9, 14),
    ),
    read_s=1.31,
)
# ------------------------------------------------------------------------ replays


def replayed(text, reserved, segments, failed=None, **more):
    """The requests under a setting."""
    told = {"total_bytes": gib(6.55), "recorded": False, "failed_event": failed}
    return Replayed(
        text, peak_reserved_bytes=gib(reserved), segments=segments, **{**told, **more}
    )


def replays_of(*replays, again=6.1, device=0, **more):
    """The replays of a device, and what the rules reserve under the first."""
    failed = replays[0].failed_event is not None
    told = {"again_bytes": gib(again), "again_failed": failed, **more}
    return ReplayOf(device, replays, **told)


AS_RECORDED = replayed("", 6.15, 214, 18_211, recorded=True)
UNLIMITED = replayed("", 5.9, 40, total_bytes=None, recorded=True)
REPLAY_HELPS = report_of(
    _DEVICE_OUT,
    name="oom.pickle",
    replays=(
        replays_of(
            AS_RECORDED,
            replayed(EXPANDABLE, 6.52, 2),
            replayed("max_split_size_mb:128", 5.6, 190, 18_211),
            replayed("garbage_collection_threshold:0.8", 5.3, 214, 18_211),
            replayed("roundup_power2_divisions:8", 5.1, 201, 15_904),
        ),
    ),
)
SAMPLES = (
    ("snapshot-oom", OUT_OF_MEMORY),
    ("snapshot-training", TRAINING),
    ("snapshot-no-history", NO_HISTORY),
    ("snapshot-hostile", HOSTILE_ONE),
    ("snapshot-devices", SEVERAL_DEVICES),
    ("snapshot-grown", GROWN),
    ("snapshot-replay", REPLAY_HELPS),
)

HEADINGS = {
    "snapshot-oom": "A snapshot of a training that ran out of memory",
    "snapshot-training": "A snapshot of a training: whose the peak is",
    "snapshot-no-history": "A snapshot without a history",
    "snapshot-hostile": "A snapshot with names that are made to break a page",
    "snapshot-devices": "A snapshot of three devices",
    "snapshot-grown": "Two snapshots: the line that keeps more and more",
    "snapshot-replay": "A replay: one setting would have gone through",
}
