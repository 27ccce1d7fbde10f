"""Reports written by hand: a loader for each verdict, for gallery and tests.

Figures are such as an H100 on PCIe Gen5 could give; none was measured.
"""

from __future__ import annotations

from dataclasses import replace

from gpumagic.pin_loader import records
from gpumagic.pin_loader.anatomy import Memory, limits_of, needed_bytes
from gpumagic.pin_loader.answer_loader import LoaderReport
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.bound import bound_of
from gpumagic.report.places import CodeLine
from gpumagic.report.robust import verdict_of

MS = 1e-3
KIB, MIB, GIB = 2**10, 2**20, 2**30

LOADER = records.LoaderFacts("train_dl", length=1251, workers=4, prefetch_factor=2)
IMAGES, LABELS = 256 * 3 * 224 * 224 * 4, 256 * 8
OFF = {"pinned": records.Pinned.PAGEABLE, "why": records.WhyPageable.FLAG_OFF}
IMAGE = records.Leaf("batch[0]", (256, 3, 224, 224), "float32", IMAGES, **OFF)
LABEL = records.Leaf("batch[1]", (256,), "int64", LABELS, **OFF)
PAIR = records.Anatomy((IMAGE, LABEL), locked_bytes=256 * MIB + 2 * KIB)


def samples(*ms):
    """As they are."""
    return records.Samples(tuple(each * MS for each in ms))


def about(ms):
    """Five samples about a median."""
    return samples(ms * 0.98, ms * 0.99, ms, ms * 1.01, ms * 1.03)


def loading(batch_ms, workers=4, cost=None, start_s=0.4):
    """Loading with so many workers; its cost as one thread has it."""
    cpu_s, waited_s = cost or (0.0, 0.0)
    share_s = start_s / 1251 if workers else 0.0
    return records.Loading(about(batch_ms), workers, start_s, share_s, cpu_s, waited_s)


def copies(pageable_ms=14.2, pinned_ms=2.9):
    """The three ways."""
    host, there = about(pageable_ms), about(pageable_ms)
    pinned = about(pinned_ms)
    return (
        records.CopyMode(False, True, host, there),
        records.CopyMode(True, True, pinned, pinned),
        records.CopyMode(True, False, about(0.011), pinned),
    )


RATES = records.Rates(
    load=loading(6.2),
    pin_copy=about(8.4),
    copies=copies(),
    step=records.Step("train_step", about(12.1)),
    nbytes=IMAGES + LABELS,
)
STOOD_IN = replace(RATES, step=records.Step("a stand-in", about(8.4), synthetic=True))
LONG_STEP = replace(
    RATES, step=records.Step("train_step", about(400.0)), copies=copies(3, 2.9)
)

# Waiting, computing, and fast: as measured.
WAITS, WORKS = (4 * MS, 92 * MS), (95 * MS, 1 * MS)
NOTHING_MORE = records.WorkerSearch(
    (loading(24.0, 0, WORKS), loading(6.2), loading(6.1, 8)),
    4,
    records.Stopped.FOUND,
    4,
    16,
)
MORE = records.WorkerSearch(
    (
        loading(96.0, 0, WAITS),
        loading(24.3, 4),
        loading(12.2, 8),
        loading(6.2, 16),
        loading(3.3, 32),
        loading(3.2, 64),
    ),
    32,
    records.Stopped.FOUND,
    4,
    334,
)
OUT_OF_TIME = records.WorkerSearch((loading(6.2),), 4, records.Stopped.BUDGET, 4)
SMALL = replace(STOOD_IN, copies=copies(0.9, 0.3), pin_copy=about(0.5), nbytes=9 * MIB)
SLOW = replace(SMALL, load=loading(24.3))

ROOM = {Memory.AVAILABLE: 200 * GIB, Memory.SHM: 100 * GIB}
NEEDED = needed_bytes(PAIR, 4, 2, pinned=True)
FITTING = tuple(remark for remark, _ in limits_of(NEEDED, ROOM))
SAME = records.Sameness(8, same=True)


def proof(pairs=10, before_ms=26.4, times=1.84, **given):
    """Both loops in turn."""
    noise = (1.0, 0.99, 1.01, 1.02, 0.98)
    found = tuple(
        (before_ms * MS, before_ms * MS / times * noise[at % 5]) for at in range(pairs)
    )
    return records.EndToEnd(
        verdict_of(found),
        20,
        **given,
    )


DIAGNOSED = LoaderReport(
    records.State.DIAGNOSED,
    "cuda:0",
    LOADER,
    anatomy=PAIR,
    remarks=FITTING,
    rates=RATES,
    workers=NOTHING_MORE,
    bound=bound_of(RATES, pinned=False, workers=4, search=NOTHING_MORE),
)
FASTER = replace(
    DIAGNOSED,
    state=records.State.FASTER,
    out="train_dl_pinned",
    changed=("pin_memory",),
    sameness=SAME,
    end_to_end=proof(),
)
NOTHING = replace(
    DIAGNOSED,
    state=records.State.NOTHING,
    rates=LONG_STEP,
    bound=bound_of(LONG_STEP, pinned=False, workers=4, search=OUT_OF_TIME),
    workers=OUT_OF_TIME,
    reason=records.Remark(
        "compute takes 400 ms of 403 ms a step",
        "the device is busy as it is: make the step itself faster",
    ),
)
MORE_WORKERS = replace(
    DIAGNOSED,
    rates=SLOW,
    workers=MORE,
    bound=bound_of(SLOW, pinned=False, workers=4, search=MORE),
)
STARTING = replace(
    MORE,
    trials=tuple(
        replace(each, share_s=each.start_s / 40 if each.workers else 0.0)
        for each in MORE.trials
    ),
)
SHORT_EPOCHS = replace(
    MORE_WORKERS,
    loader=replace(LOADER, length=40),
    workers=STARTING,
    rates=replace(SLOW, load=STARTING.of(4)),
    bound=bound_of(
        replace(SLOW, load=STARTING.of(4)), pinned=False, workers=4, search=STARTING
    ),
)
DIFFERENT = replace(
    FASTER,
    state=records.State.REFUSED,
    out="",
    end_to_end=None,
    sameness=records.Sameness(
        3, same=False, difference="batch 3: batch[0]: other values"
    ),
    reason=records.Remark(
        "rebuilt, train_dl gave other batches: batch 3: batch[0]: other values",
        "keep the old one; --force makes the new one all the same",
    ),
)
FOR = CodeLine("In [12], line 3", "for x, y in train_dl:")
TO_X = CodeLine("In [12], line 4", "x = x.to(device)")
TO_Y = CodeLine("In [12], line 5", "y = y.to(device, non_blocking=True)")


def waits(count=24, each_s=31 * MS, first_s=0.62, **more):
    """A loop's waits, the first with the start of the workers."""
    rest = tuple(each_s * (1 + 0.3 * (at * 5 % 7 - 3) / 3) for at in range(count - 1))
    given = {
        "loader": "train_dl",
        "line": FOR,
        "workers": 4,
        **more,
    }
    return records.DataWait(waits=records.Samples((first_s, *rest)), **given)


PAGEABLE_REMARK = records.Remark(
    "line `x = x.to(device)` copies 3.38 GiB from pageable memory, and waits for it",
    "%pin_loader train_dl, then x.to(device, non_blocking=True)",
)
WATCHED = WatchReport(
    "",
    elapsed_s=4.31,
    host_s=4.31,
    copies=(
        records.CopyLine(TO_X, 24, 24 * IMAGES, 24 * IMAGES, 24, 0.341),
        records.CopyLine(TO_Y, 24, 24 * LABELS, 24 * LABELS, 0, 0.0012),
    ),
    waits=(waits(),),
    remarks=(PAGEABLE_REMARK,),
)
SAMPLES = (
    ("fixed", FASTER),
    ("diagnosed", DIAGNOSED),
    ("diagnosed-more-workers", MORE_WORKERS),
    ("diagnosed-short-epochs", SHORT_EPOCHS),
    ("nothing", NOTHING),
    ("refused-different", DIFFERENT),
    ("watch", WATCHED),
)
