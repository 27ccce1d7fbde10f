"""Reports on memory snapshots, with figures as real trainings give them.

They are written by hand, or made by formulas that are fixed here, so that golden
files differ only where a view does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from gpumagic.gpu_mem.records import Block, BlockState, Segment
from gpumagic.gpu_open.records import (
    Failure,
    FileRead,
    Growth,
    LineMemory,
    Replayed,
    ReplayOf,
    SnapshotOfDevice,
)
from gpumagic.gpu_open.report import SnapshotReport
from gpumagic.report.places import CodeLine

MIB, GIB = 2**20, 2**30
STRETCHES = 240
EXPANDABLE = "expandable_segments:True"


def gib(number):
    """So many GiB, in bytes, as the allocator rounds."""
    return int(number * GIB) // 512 * 512


ATTENTION = CodeLine("attention.py, line 88")
MODEL = CodeLine("model.py, line 12")
STEP = CodeLine("train.py, line 41")
OPTIM = CodeLine("train.py, line 52")
MLP = CodeLine("mlp.py, line 30")
LOADER = CodeLine("data.py, line 19")
LOSSES = CodeLine("train.py, line 44")


# ------------------------------------------------------------------- over time


def rising(high, steps=2):
    """Made piece by piece in a forward pass, gone piece by piece in the backward."""
    period = STRETCHES / steps
    shares = ((at % period) / period for at in range(STRETCHES))
    return tuple(gib(high * min(s / 0.55, (1 - s) / 0.45)) for s in shares)


def held(high, begin=0.0):
    """There from a moment on."""
    return tuple(gib(high) if at / STRETCHES >= begin else 0 for at in range(STRETCHES))


def piled(*sizes):
    """Up to the moment of an error, and there it ends."""
    return tuple(map(gib, accumulate(sizes)))


def course_of(*entries, events):
    """A device's lines and their course: each a line, its levels, taken, given back.

    A line that took nothing was there before the recording.
    """
    totals = [sum(column) for column in zip(*(e[1] for e in entries), strict=True)]
    peak = max(range(STRETCHES), key=totals.__getitem__)
    entries = sorted(entries, key=lambda each: -each[1][peak])
    return {
        "lines": tuple(
            LineMemory(
                where, not taken, levels[-1], levels[peak], taken, given_back, levels
            )
            for where, levels, taken, given_back in entries
        ),
        "course_bytes": tuple(totals),
        "events": events,
        "peak_bytes": totals[peak],
        "peak_event": (2 * peak + 1) * events // (2 * STRETCHES),
        "allocated_bytes": totals[-1],
    }


# ---------------------------------------------------------------- what lies where


def segment(*pieces, address=0, pool="large"):
    """Blocks one behind the other: each a size in MiB and a line, or None for free."""
    blocks, offset = [], 0
    for size, where in pieces:
        state = BlockState.FREE if where is None else BlockState.ALLOCATED
        nbytes = int(size * MIB)
        blocks.append(Block(offset, nbytes, state, line=where))
        offset += nbytes
    at = 0x7F0000000000 + address
    return Segment(0, at, offset, 0, pool, False, tuple(blocks))


def many(count, *pieces, address=0, pool="large"):
    """So many segments of the same pieces."""
    apart = 2 * int(sum(size for size, _ in pieces) * MIB)
    return tuple(
        segment(*pieces, address=address + at * apart, pool=pool) for at in range(count)
    )


def device_of(segments, **more):
    """A device with these segments."""
    reserved = sum(each.nbytes for each in segments)
    known = {
        "device": 0,
        "allocated_bytes": sum(each.allocated_bytes for each in segments),
        "reserved_bytes": reserved,
        "segments": segments,
        "peak_reserved_bytes": reserved,
        "complete": True,
    }
    return SnapshotOfDevice(**{**known, **more})


def file_of(name, events=0):
    """A file that was read."""
    return FileRead(name, 210 * events + 48_000, events)


def report_of(device, name="snapshot.pickle", settings="", **more):
    """One snapshot."""
    files = (file_of(name, device.events),)
    return SnapshotReport(files, (device,), settings, read_s=0.84, **more)


# --------------------------------------------------------------- a plain training

_TRAINING_SEGMENTS = (
    *many(20, (18, ATTENTION), (2, None)),
    segment((736, MODEL), address=5 * GIB),
    segment((922, OPTIM), address=7 * GIB),
    segment((500, None), (2, LOADER), (120, None), address=9 * GIB),
    segment((2400, None), address=12 * GIB),
    *many(6, (1.5, MLP), (0.5, None), pool="small", address=11 * GIB),
)
TRAINING = report_of(
    device_of(
        _TRAINING_SEGMENTS,
        **course_of(
            (ATTENTION, rising(1.9), 1152, 1152),
            (MODEL, held(0.72), 148, 0),
            (OPTIM, held(0.9, 0.33), 296, 0),
            (MLP, rising(0.6), 576, 576),
            (STEP, rising(0.24), 912, 912),
            (LOADER, held(0.012), 6, 5),
            events=12_480,
        ),
    )
)

# --------------------------------------------------------------- out of memory

_FAILED = course_of(
    (ATTENTION, piled(*[0.048, 0, 0, 0] * 40, *[0.072, 0, 0, 0] * 20), 1240, 0),
    (MODEL, held(0.9), 148, 0),
    (OPTIM, held(0.61), 296, 0),
    (MLP, piled(*[0.008, 0, 0, 0] * 60), 620, 0),
    (None, held(0.16), 0, 0),
    events=18_211,
)
_FAILURE = Failure(18_211, 2 * GIB, int(0.4 * GIB), _FAILED["peak_bytes"], ATTENTION)
_DEVICE_OUT = device_of(
    (
        *many(28, (122, ATTENTION), (18, None)),
        segment((922, MODEL), address=9 * GIB),
        segment((625, OPTIM), address=12 * GIB),
        segment((490, MLP), (180, None), (164, LOADER), address=15 * GIB),
    ),
    **{**_FAILED, "peak_event": 18_210, "complete": False},
    failure=_FAILURE,
)
OUT_OF_MEMORY = report_of(_DEVICE_OUT, name="oom_snapshot.pickle")


# ------------------------------------------------------------------------ growth

_LEAKING = device_of(
    _TRAINING_SEGMENTS,
    **course_of(
        (LOSSES, piled(*[1.3 / STRETCHES] * STRETCHES), 260, 0),
        (ATTENTION, rising(0.9, 8), 1152, 1152),
        (MODEL, held(0.72), 148, 0),
        events=31_400,
    ),
)
GROWN = SnapshotReport(
    (file_of("before.pickle", 9_800), file_of("after.pickle", 31_400)),
    (_LEAKING,),
    "",
    grown=(
        Growth(LOSSES, gib(0.15), gib(1.3), 30, 260),
        Growth(STEP, 0, gib(0.04), 0, 2),
        Growth(None, gib(0.01), gib(0.02), 9, 14),
    ),
    read_s=1.31,
)

# ------------------------------------------------------------------------ replays


def replayed(text, reserved, segments, failed=None, **more):
    """The requests under a setting."""
    told = {"total_bytes": gib(6.55), "failed_event": failed}
    return Replayed(
        text, peak_reserved_bytes=gib(reserved), segments=segments, **{**told, **more}
    )


def replays_of(*replays, again=None):
    """The replays of a device, and what the rules do under the first."""
    return ReplayOf(0, replays, again or replays[0])


AS_RECORDED = replayed("", 6.15, 214, 18_211)
UNLIMITED = replayed("", 5.9, 40, total_bytes=None)
REPLAY_HELPS = replace(
    report_of(_DEVICE_OUT, name="oom.pickle"),
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
    ("snapshot-oom", "A training that ran out of memory", OUT_OF_MEMORY),
    ("snapshot-training", "A snapshot of a training: whose the peak is", TRAINING),
    ("snapshot-grown", "Two snapshots: the line that keeps more and more", GROWN),
    ("snapshot-replay", "A replay: one setting would have gone through", REPLAY_HELPS),
)
