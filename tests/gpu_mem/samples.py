"""Reports of every kind about memory, with figures as real machines give them."""

from __future__ import annotations

import dataclasses

from gpumagic.gpu_mem.answer_cell import BriefReport, CellReport
from gpumagic.gpu_mem.answer_leaks import FreeReport, LeakReport, Return
from gpumagic.gpu_mem.answer_map import MapReport
from gpumagic.gpu_mem.answer_now import MemoryReport
from gpumagic.gpu_mem.answer_why import FitReport, Held, Verdict, WhyReport
from gpumagic.gpu_mem.balance import Growth
from gpumagic.gpu_mem.records import (
    Answer,
    BadgeKind,
    Block,
    BlockState,
    Cause,
    CellBadge,
    Counters,
    Course,
    DeviceChange,
    DeviceMemory,
    HeldBack,
    Holder,
    HolderKind,
    Holdings,
    Leak,
    LeakKind,
    LineUse,
    OomFacts,
    Peak,
    PeakKind,
    Segment,
    Setting,
)
from gpumagic.report.places import Code, CodeLine

KIB, MIB, GIB = 2**10, 2**20, 2**30
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext {line}"
LONG = "encoder.layers.11.self_attention.output.projection.weight_quantized_" * 3
H100_NAME = "NVIDIA H100 80GB HBM3"
H100_BYTES = int(79.6 * GIB)

CUDA = Setting(kind="cuda")


def gib(number):
    """So many GiB, in bytes."""
    return int(number * GIB)


def counters(device=0, allocated=3.21, reserved=4.5, altogether=128):
    """What the allocator counts, in GiB."""
    return Counters(
        device,
        allocated_bytes=gib(allocated),
        reserved_bytes=gib(reserved),
        active_bytes=gib(allocated),
        peak_bytes=gib(allocated * 1.3),
        taken_bytes=gib(altogether),
        given_back_bytes=gib(altogether) - gib(allocated),
        taken=180_422,
        retries=0,
        ooms=0,
        driver_calls=31,
    )


# ------------------------------------------------------------------ the balance

MODEL = Holder(
    "model", HolderKind.VARIABLE, 0, 12 * KIB, gib(0.97), shares_with="optimizer"
)
OPTIMIZER = Holder(
    "optimizer", HolderKind.VARIABLE, 0, gib(0.97), gib(1.94), shares_with="model"
)
BATCH = Holder("batch", HolderKind.VARIABLE, 0, gib(0.12), gib(0.12))
GRAPH = Holder("graph of loss", HolderKind.GRAPH, 0, gib(0.82), gib(0.82))
SHOWN = Holder("Out[12]", HolderKind.OUTPUT, 0, 96 * MIB, 96 * MIB)
ERROR = Holder("logits in train_step", HolderKind.ERROR, 0, 64 * MIB, 64 * MIB)
WORKSPACES = Holder("cuBLAS workspaces", HolderKind.LIBRARY, 0, 33 * MIB, 33 * MIB)


REST = Holder("no name found", HolderKind.UNATTRIBUTED, 0, 9 * MIB, 9 * MIB)
NAMED = (OPTIMIZER, MODEL, GRAPH, BATCH, SHOWN, ERROR, WORKSPACES, REST)
ALLOCATED = sum(each.own_bytes for each in NAMED) + gib(0.97)
TRAINING = Holdings(NAMED, ((0, ALLOCATED),), ((0, HolderKind.VARIABLE, ALLOCATED),))
ONE = DeviceMemory(
    counters(0, ALLOCATED / GIB, 4.5),
    H100_NAME,
    H100_BYTES,
    H100_BYTES - gib(5.02),
    0,
    0,
)
BALANCE = MemoryReport(CUDA, (ONE,), TRAINING)
# ------------------------------------------------------------------------ a cell

FORWARD = Code("hidden = model(batch)\nloss = criterion(hidden, y)", cell=5)


def change(before=1.96, after=3.21, peak=None):
    """What a cell did to the first device, in GiB."""
    return DeviceChange(
        counters(0, before, 3.0, altogether=100),
        counters(0, after, 4.5, altogether=106.2),
        peak or Peak(PeakKind.EXACT, gib(3.4), gib(3.4)),
    )


def grown(holder, nbytes):
    """A holder that holds so much more than before."""
    return dataclasses.replace(holder, delta_bytes=nbytes)


HIDDEN = Holder("hidden", HolderKind.VARIABLE, 0, gib(0.43), gib(0.43))
CHANGED = Holdings(
    (
        grown(GRAPH, gib(0.82)),
        grown(HIDDEN, gib(0.43)),
        grown(OPTIMIZER, 0),
        grown(MODEL, 0),
        SHOWN,
        grown(REST, -2 * MIB),
    ),
    ((0, gib(3.21)),),
)
CELL = CellReport(
    FORWARD,
    CUDA,
    (change(),),
    (CellBadge(BadgeKind.DRIVER_CALLS, 0, 2),),
    CHANGED,
)
BOUNDED = dataclasses.replace(
    CELL,
    changes=(change(peak=Peak(PeakKind.BOUND, gib(3.21), gib(3.4))),),
    badges=(),
    holdings=Holdings(),
)
STEP = Code(
    "for x, y in data:\n    loss = step(x, y)\n    loss.backward()\n    opt.step()",
    name="epoch",
    cell=9,
)


def line(number, source, *figures, backward=False):
    """What a line of the cell did, in GiB: took, gave back, at the peak, left."""
    place, grows = f"line {number}", number == 3
    return LineUse(place, number, source, 0, backward, grows, *map(gib, figures))


GONE = "its source is gone"
LINES = (
    line(3, "loss = step(x, y)", 8.2, 7.4, 0.8, 0.82),
    line(4, "loss.backward()", 4.1, 3.6, 0.49, 0.49, backward=True),
    line(4, "loss.backward()", 512 / GIB, 512 / GIB, 0, 0),
    line(5, "opt.step()", 0.97, 0, 0.97, 0.97),
    LineUse("train.py, line 40", 0, GONE, 0, False, False, MIB, 0, MIB, MIB),
    LineUse(
        "", 0, "no line of the cell", 0, False, False, 8 * MIB, 0, 8 * MIB, 8 * MIB
    ),
)


LEVELS = (0.61, 1.02, 1.43, 1.84, 3.1, 2.6, 2.1, 1.6, 1.2, 2.2, 1.3, 2.4, 1.4, 2.6, 2.9)
UP_AND_DOWN = Course(
    0,
    4200,
    *[tuple(map(gib, LEVELS))] * 2,
    gib(3.1),
    "line 3",
    (
        ("from line 3", gib(1.4)),
        ("in model", gib(0.61)),
        ("in gradients of model", gib(0.55)),
        ("in x", gib(0.54)),
    ),
)
BY_LINE = CellReport(
    STEP,
    CUDA,
    (change(0.61, 2.9, Peak(PeakKind.REPLAYED, gib(3.1), gib(3.1))),),
    (CellBadge(BadgeKind.RETRY, 0, 1),),
    lines=LINES,
    courses=(UP_AND_DOWN,),
)
EVERY_BADGE = dataclasses.replace(
    BOUNDED,
    badges=tuple(
        CellBadge(kind, 0, 3) for kind in BadgeKind if kind is not BadgeKind.SILENT
    ),
)
HOSTILE_CELL = dataclasses.replace(
    BY_LINE,
    code=Code(HOSTILE, name=HOSTILE, cell=9),
    badges=(),
    courses=(),
    failed=HOSTILE,
    lines=(dataclasses.replace(LINES[0], place=HOSTILE, source=LONG),),
)

# ----------------------------------------------------------------------- the map


def blocks_of(*pieces, line=None):
    """Blocks one behind the other: letters say what they are, numbers how many MiB."""
    states = {
        "a": BlockState.ALLOCATED,
        "p": BlockState.PENDING,
        "f": BlockState.FREE,
    }
    at, made = 0, []
    for letter, mib, *names in pieces:
        nbytes = int(mib * MIB)
        made.append(Block(at, nbytes, states[letter], tuple(names), line))
        at += nbytes
    return tuple(made)


def segment(address, *pieces, stream=0, pool="large", device=0, **more):
    """A segment of these blocks."""
    blocks = blocks_of(*pieces, line=more.pop("line", None))
    nbytes = sum(block.nbytes for block in blocks)
    expandable = more.pop("expandable", False)
    return Segment(device, address, nbytes, stream, pool, expandable, blocks)


SEGMENTS = (
    segment(
        0x7F20_0000_0000,
        ("a", 40, "model.weight"),
        ("f", 10),
        ("a", 30, "optimizer"),
        ("p", 10, "batch"),
        ("f", 30),
        ("a", 10),
        line=CodeLine("In [3], line 2", "model = Net().cuda()"),
    ),
    segment(0x7F20_1000_0000, ("a", 20, "hidden"), ("f", 10), ("a", 4, "loss")),
    segment(0x7F20_2000_0000, ("f", 20), stream=1),
    segment(
        0x7F20_3000_0000, ("a", 0.5, "bias"), ("a", 0.25), ("f", 1.25), pool="small"
    ),
    segment(0x7F20_4000_0000, ("a", 20, "static_input"), pool="3"),
)
MAP = MapReport(CUDA, SEGMENTS)
TWO_MAPS = MapReport(
    CUDA,
    (*SEGMENTS, *(dataclasses.replace(each, device=1) for each in SEGMENTS[:2])),
)


# ---------------------------------------------------------------- leaks, freeing

LOGITS = "logits in train_step of the last error"
LEAKS = (
    Leak(LeakKind.ERROR, LOGITS, 0, gib(1.5), "%gpu_mem free", "%debug"),
    Leak(LeakKind.OUTPUT, "Out[12]", 0, 96 * MIB, "%gpu_mem free", "Out[12]"),
    Leak(LeakKind.GRAPH, "total_loss", 0, gib(0.7), "total_loss = total_loss.detach()"),
)
LEAKY = LeakReport(CUDA, LEAKS, ((0, gib(2.1)),))
GROWN = LeakReport(
    CUDA,
    (),
    grown=(
        Growth("history", 0, gib(1.2), gib(1.1), 4),
        Growth("cached", 0, 12 * MIB, 12 * MIB, 1),
    ),
)
FREED = FreeReport(
    CUDA,
    (Return(counters(0, 5.31, 6.0), counters(0, 3.21, 6.0)),),
    ("%debug for that error", "Out[3], Out[12]"),
)

# ------------------------------------------------------------------- why and fit

OOM = OomFacts(
    "CUDA out of memory. Tried to allocate 40.00 GiB. GPU 0 has a total capacity of "
    "79.60 GiB of which 31.20 GiB is free. Including non-PyTorch memory, this process "
    "has 48.40 GiB memory in use. Of the allocated memory 44.10 GiB is allocated by "
    "PyTorch, and 3.80 GiB is reserved by PyTorch but unallocated.",
    7,
    CodeLine("In [7], line 3", "scores = q @ k.transpose(-2, -1)"),
    0,
    gib(40),
    H100_BYTES,
    gib(31.2),
    gib(48.4),
    gib(44.1),
    gib(3.8),
    None,
)
ANSWER = Answer(0, gib(40), gib(2.2), gib(31.2), gib(0.5), None, "nowhere")
LIVE = WhyReport(
    CUDA,
    OOM,
    Verdict((Cause.TOO_MUCH_LIVE,)),
    ANSWER,
    dataclasses.replace(
        ONE, counters=counters(0, 44.1, 47.9), free_bytes=H100_BYTES - gib(48.4)
    ),
    Held(
        live_bytes=gib(44.1),
        names=(OPTIMIZER, MODEL, GRAPH),
        rigid=True,
    ),
)


def told(cause, report=LIVE, **held):
    """An error that comes down to this."""
    held = dataclasses.replace(report.held, names=(), **held)
    return dataclasses.replace(report, verdict=Verdict((cause,)), held=held)


FRAGMENTED = told(
    Cause.FRAGMENTED,
    dataclasses.replace(
        LIVE,
        oom=dataclasses.replace(
            OOM,
            text=OOM.text.replace("40.00 GiB", "3.00 GiB").replace(
                "3.80 GiB", "9.00 GiB"
            ),
            requested_bytes=gib(3),
            reserved_unallocated_bytes=gib(9),
        ),
    ),
    held_back=(
        HeldBack(("mask",), 0, 0, "large pool", 1, 1, 2 * MIB, gib(3.9), gib(3.9)),
        HeldBack((), 1, 0, "large pool", 1, 1, 20 * MIB, gib(3.1), gib(2)),
    ),
)
LEAKED = told(Cause.LEAKED, leaks=LEAKS[:2])
CALLED = dataclasses.replace(
    LIVE,
    oom=dataclasses.replace(
        OOM, cell=9, called_from=CodeLine("In [9], line 1", "attend(q, k)")
    ),
    held=dataclasses.replace(
        LIVE.held,
        own=(
            Leak(LeakKind.ERROR, "q in attend", 0, gib(21.5), "keep less alive there"),
        ),
    ),
)

SMALL = Answer(0, gib(2), gib(2.2), gib(31.2), gib(0.5), gib(9), "hole")
FITS = FitReport(CUDA, gib(2), (SMALL,))
FITS_NOWHERE = FitReport(
    CUDA,
    gib(40),
    (ANSWER,),
    Verdict((Cause.TOO_MUCH_LIVE, Cause.LEAKED)),
    Held(LEAKS[:2]),
)

SAMPLES = (
    ("balance", BALANCE),
    ("cell", CELL),
    ("cell-lines", BY_LINE),
    ("cell-every-badge", EVERY_BADGE),
    ("cell-hostile", HOSTILE_CELL),
    ("brief", BriefReport(CELL)),
    ("map", MAP),
    ("map-two-devices", TWO_MAPS),
    ("leaks", LEAKY),
    ("leaks-grown", GROWN),
    ("free", FREED),
    ("why-live", CALLED),
    ("why-fragmented", FRAGMENTED),
    ("why-leaked", LEAKED),
    ("fit", FITS),
    ("fit-nowhere", FITS_NOWHERE),
)
