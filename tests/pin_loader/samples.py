"""Reports written by hand: loaders and machines of every kind, for gallery and tests.

Figures are such as an H100 on PCIe Gen5 could give; none was measured.
"""

from __future__ import annotations

from dataclasses import replace

from gpumagic.pin_loader.report import (
    Anatomy,
    Bound,
    Change,
    CopyLine,
    CopyMode,
    Damaged,
    DataWait,
    EndToEnd,
    FourSteps,
    Gain,
    Guard,
    Leaf,
    Limit,
    LimitKind,
    Link,
    LoaderFacts,
    LoaderKind,
    LoaderReport,
    Loading,
    Part,
    Pinned,
    Rates,
    Rebuilding,
    Remark,
    Remedy,
    ReuseCheck,
    Sameness,
    Samples,
    Setting,
    Severity,
    State,
    Step,
    StepSpan,
    Stopped,
    WatchReport,
    Way,
    WhyPageable,
    WorkerSearch,
    WorkerTrial,
)
from gpumagic.report.events import SeenRace
from gpumagic.report.places import Code, CodeLine
from gpumagic.report.robust import Comparison, Interval, Verdict

MS = 1e-3
KIB, MIB, GIB = 2**10, 2**20, 2**30
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext {line}"
LONG = "encoder.layers.11.self_attention.output.projection.weight_quantized_" * 3
WIDE = "データ転送 → 显存 🚀"

H100 = Setting(
    "cuda",
    device=0,
    device_name="NVIDIA H100 80GB HBM3",
    torch_version="2.13.0",
    driver_version="580.95.05",
    processors=16,
)
H100_5 = replace(H100, device=5)
GH200 = replace(H100, device_name="NVIDIA GH200 480GB")
SIMULATED = Setting(
    "sim", label="simulated H100 SXM", device=0, torch_version="2.13.0+cpu"
)
CPU = Setting("cpu", torch_version="2.13.0+cpu", processors=16)

# ------------------------------------------------------------------ the loader

LOADER = LoaderFacts(
    LoaderKind.BATCHED,
    "DataLoader",
    name="train_dl",
    dataset="ImageFolder",
    sampler="RandomSampler",
    length=1251,
    batch_size=256,
    workers=4,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    start_method="fork",
)
PINNING = replace(LOADER, pin_memory=True)
NO_WORKERS = replace(LOADER, workers=0, prefetch_factor=None, start_method=None)
STREAM = LoaderFacts(
    LoaderKind.ITERABLE, "DataLoader", name="lines", dataset="LinesOfFile", workers=0
)
NAMELESS = replace(LOADER, name=None)
NEIGHBORS = LoaderFacts(
    LoaderKind.FOREIGN,
    "torch_geometric.loader.NeighborLoader",
    name="graph_dl",
    length=120,
    workers=2,
    pin_memory=True,
)
HOSTILE_LOADER = replace(LOADER, name=HOSTILE, class_name=HOSTILE, dataset=LONG)

# ------------------------------------------------------------------- one batch

IMAGES, LABELS = 256 * 3 * 224 * 224 * 4, 256 * 8


def leaf(path, nbytes, pinned=Pinned.PAGEABLE, **more):
    """A tensor of float32."""
    given = {
        "what": "Tensor",
        "shape": (nbytes // 4,),
        "dtype": "float32",
        "contiguous": True,
        **more,
    }
    if pinned is Pinned.PAGEABLE:
        given.setdefault("why", WhyPageable.FLAG_OFF)
    return Leaf(path, nbytes=nbytes, pinned=pinned, **given)


def images(pinned=Pinned.PAGEABLE, **more):
    """The pair that most loaders give."""
    return (
        leaf("batch[0]", IMAGES, pinned, shape=(256, 3, 224, 224), **more),
        leaf("batch[1]", LABELS, pinned, shape=(256,), dtype="int64", **more),
    )


PAIR = Anatomy("list", images(), locked_bytes=256 * MIB + 2 * KIB)
PINNED_PAIR = replace(PAIR, leaves=images(Pinned.PINNED))
ONE_LEAF = Anatomy("Tensor", (leaf("batch", 96 * MIB),), locked_bytes=128 * MIB)
ON_DEVICE = Anatomy("list", images(Pinned.ON_DEVICE))
ON_CPU = replace(PAIR, leaves=images(why=WhyPageable.NO_ACCELERATOR))
CUSTOM = Anatomy(
    "Sample",
    (
        leaf("batch.image", IMAGES, why=WhyPageable.PASSED_THROUGH, holder="Sample"),
        leaf(
            "batch.mask", IMAGES // 12, why=WhyPageable.PASSED_THROUGH, holder="Sample"
        ),
        leaf("batch.boxes", 6_200, why=WhyPageable.PASSED_THROUGH, holder="Sample"),
        leaf("extra[0]", 12 * MIB, Pinned.PINNED),
        leaf("extra[1]", LABELS, Pinned.PINNED, dtype="int64"),
    ),
    others=2,
    locked_bytes=300 * MIB,
    adaptable=True,
)
MIXED = Anatomy(
    "dict",
    (
        leaf('batch["image"]', IMAGES, Pinned.PINNED, contiguous=False),
        leaf('batch["same"]', IMAGES, Pinned.PINNED, same_as='batch["image"]'),
        leaf(
            'batch["meta"].raw',
            3 * MIB,
            what="ndarray",
            why=WhyPageable.NOT_A_TENSOR,
            contiguous=None,
        ),
        leaf('batch["graph"]', 7 * MIB, why=WhyPageable.NOT_DENSE),
        leaf('batch["words"].ids', 2 * MIB, why=WhyPageable.OWN_METHOD, holder="Words"),
        leaf('batch["late"]', MIB, why=WhyPageable.FLAG_TOO_LATE),
        leaf('batch["odd"]', 40, why=WhyPageable.UNKNOWN, shape=()),
        leaf('batch["untold"]', 4, Pinned.UNKNOWN),
    ),
    others=11,
    locked_bytes=300 * MIB,
    type_changes=(
        ("batch", "LabelledDict", "dict"),
        ('batch["pair"]', "tuple", "list"),
    ),
    remarks=(
        Remark(
            "pixels are float32 on the way: as uint8 they are a quarter of the bytes",
            "send uint8, and cast on the device: x.to(device).float()",
        ),
    ),
)
FORTY = Anatomy(
    "dict",
    tuple(leaf(f'batch["field_{at}"]', (at + 1) * 4 * KIB) for at in range(40)),
    locked_bytes=5 * MIB,
    remarks=(Remark("40 tensors of 82.0 KiB: each copy has a cost of its own"),),
)
THOUSANDS = Anatomy(
    "list",
    tuple(leaf(f"batch[{at}]", 4 * KIB) for at in range(200)),
    left_out=5_000,
    locked_bytes=20 * MIB,
)
HOSTILE_BATCH = Anatomy(
    HOSTILE,
    (
        leaf(
            HOSTILE, MIB, what=HOSTILE, why=WhyPageable.PASSED_THROUGH, holder=HOSTILE
        ),
        leaf(LONG, MIB, dtype=HOSTILE, same_as=LONG),
        leaf(WIDE, MIB, why=WhyPageable.PASSED_THROUGH, holder=WIDE),
    ),
    type_changes=((HOSTILE, LONG, WIDE),),
)

# ----------------------------------------------------------------------- rates


def samples(median_s, spread=0.04, count=21):
    """Times around a median, in a fixed order."""
    middle = count // 2
    return Samples(
        tuple(
            median_s * (1 + spread * (at * 8 % count - middle) / middle)
            for at in range(count)
        )
    )


def loading(batch_s, workers=4, **more):
    """Loading alone."""
    given = {"start_s": 0.41, "nbytes": IMAGES + LABELS, **more}
    return Loading(samples(batch_s), workers, **given)


def copies(pinned_s, pageable_s):
    """The four ways to copy a batch."""
    return (
        CopyMode(False, True, samples(pageable_s * 1.01), samples(pageable_s)),
        CopyMode(False, False, samples(pageable_s * 0.99), samples(pageable_s)),
        CopyMode(True, True, samples(pinned_s * 1.02), samples(pinned_s)),
        CopyMode(True, False, samples(11e-6), samples(pinned_s)),
    )


GEN5 = Link(
    "PCIe Gen5 x16",
    theory_bytes_per_s=63e9,
    ceiling_bytes_per_s=55.3e9,
    generation=5,
    width=16,
    most_generation=5,
    most_width=16,
    numa_node=0,
)
X4 = Link(
    "PCIe Gen4 x4",
    theory_bytes_per_s=7.88e9,
    ceiling_bytes_per_s=6.7e9,
    generation=4,
    width=4,
    most_generation=5,
    most_width=16,
    numa_node=1,
    remarks=(
        Remark(
            "the link runs as Gen4 x4, though the device could have Gen5 x16",
            "look at the slot, the riser and the BIOS",
        ),
        Remark(
            "the device is at memory node 1, and this process runs on node 0",
            "numactl --cpunodebind=1 --membind=1",
        ),
    ),
)
C2C = Link(
    "NVLink-C2C", theory_bytes_per_s=450e9, ceiling_bytes_per_s=346e9, numa_node=0
)
STEP = Step("train_step", samples(12.1 * MS))
SYNTHETIC = Step("a loop of matrix products", samples(21.4 * MS), synthetic=True)

RATES = Rates(
    load=loading(9.8 * MS),
    pin_copy=samples(9.1 * MS),
    fresh_pin=samples(27.5 * MS),
    copies=copies(2.9 * MS, 14.2 * MS),
    link=GEN5,
    step=STEP,
    nbytes=IMAGES + LABELS,
)
LOAD_ONLY = Rates(load=loading(9.8 * MS), nbytes=IMAGES + LABELS)
COMPUTE_BOUND = replace(RATES, load=loading(2.2 * MS), step=Step("fit", samples(0.121)))
LOADING_BOUND = replace(
    RATES,
    load=loading(85.3 * MS, 0),
    copies=copies(0.05 * MS, 0.3 * MS),
    step=replace(SYNTHETIC, samples=samples(85.3 * MS)),
)
SLOW_LINK = replace(RATES, link=X4, copies=copies(23.0 * MS, 24.1 * MS))
COHERENT = replace(RATES, link=C2C, copies=copies(0.45 * MS, 0.47 * MS))


def exposed(load_ms, copy_ms, step_ms):
    """What a step consists of."""
    parts = Part.LOAD, Part.LINK, Part.STEP
    sizes = load_ms, copy_ms, step_ms
    return tuple((part, size * MS) for part, size in zip(parts, sizes, strict=True))


BOUND = Bound(
    (
        (Part.LOAD, 9.8 * MS),
        (Part.PIN, 9.1 * MS),
        (Part.LINK, 2.9 * MS),
        (Part.STEP, 12.1 * MS),
    ),
    now_s=26.4 * MS,
    now_measured=True,
    best_s=12.1 * MS,
    binding=Part.STEP,
    gains=(
        Gain(Remedy.PIN, 15.0 * MS, exposed=exposed(0, 2.9, 12.1)),
        Gain(Remedy.PREFETCH, 12.1 * MS, exposed=exposed(0, 0, 12.1)),
        Gain(Remedy.WORKERS, 26.4 * MS, None, 16, exposed(0, 14.3, 12.1)),
        Gain(Remedy.EVERYTHING, 12.1 * MS, None, 16, exposed(0, 0, 12.1)),
    ),
    most_workers=16,
    exposed=exposed(0, 14.3, 12.1),
)
BOUND_OF_8 = replace(
    BOUND,
    gains=tuple(
        gain if gain.workers is None else replace(gain, workers=8)
        for gain in BOUND.gains
    ),
)
NOTHING_TO_WIN = Bound(
    ((Part.LOAD, 2.2 * MS), (Part.LINK, 0.2 * MS), (Part.STEP, 12.1 * MS)),
    now_s=12.3 * MS,
    now_measured=True,
    best_s=12.1 * MS,
    binding=Part.STEP,
    gains=(
        Gain(Remedy.PREFETCH, 12.1 * MS, exposed=exposed(0, 0, 12.1)),
        Gain(Remedy.WORKERS, 12.3 * MS, None, 16, exposed(0, 0.2, 12.1)),
    ),
    most_workers=16,
    exposed=exposed(0, 0.2, 12.1),
)
ADDED_UP = replace(
    BOUND,
    parts=((Part.LOAD, 85.3 * MS), (Part.LINK, 0.3 * MS), (Part.STEP, 85.3 * MS)),
    now_s=85.6 * MS,
    now_measured=False,
    best_s=85.3 * MS,
    binding=Part.LOAD,
    gains=(
        Gain(Remedy.PIN, 85.4 * MS, 85.6 * MS, None, exposed(85.4, 0, 0)),
        Gain(Remedy.PREFETCH, 85.4 * MS, 85.7 * MS, None, exposed(85.4, 0, 0)),
        Gain(Remedy.WORKERS, 42.7 * MS, 85.6 * MS, 2, exposed(42.4, 0.3, 0)),
        Gain(Remedy.EVERYTHING, 42.7 * MS, 85.6 * MS, 2, exposed(42.7, 0, 0)),
    ),
    synthetic_step=True,
    most_workers=2,
    exposed=exposed(85.3, 0.3, 0),
)
WORKERS_AT_WORK = replace(
    ADDED_UP,
    gains=ADDED_UP.gains[:2],
)
INSTANT = Bound(((Part.LOAD, 0.0),), 0.0, True, 0.0, Part.LOAD)

# ----------------------------------------------------------------------- guard

FITTING = Guard(
    locked_bytes=2560 * MIB,
    batches=10,
    limits=(
        Limit(
            LimitKind.AVAILABLE, 2560 * MIB, 212 * GIB, Severity.FINE, "/proc/meminfo"
        ),
        Limit(LimitKind.SHM, 1470 * MIB, 126 * GIB, Severity.FINE, "/dev/shm"),  # noqa: S108
        Limit(LimitKind.FILES, 16, 1_048_000, Severity.FINE, "RLIMIT_NOFILE"),
        Limit(
            LimitKind.MEMLOCK, 2560 * MIB, 64 * MIB, Severity.INFORM, "RLIMIT_MEMLOCK"
        ),
    ),
    device_bytes=294 * MIB,
    measured_bytes=2306 * MIB,
)
WARNING = replace(
    FITTING,
    limits=(
        Limit(
            LimitKind.CGROUP,
            2560 * MIB,
            8 * GIB,
            Severity.WARN,
            "/sys/fs/cgroup/memory.max",
            "fewer batches under way: --prefetch 1",
        ),
        Limit(LimitKind.AVAILABLE, 2560 * MIB, None, Severity.UNKNOWN),
        Limit(LimitKind.FILES, 16, None, Severity.FINE, "RLIMIT_NOFILE"),
    ),
    measured_bytes=None,
)
TOO_MUCH_RAM = Guard(
    9 * GIB,  # the rest of what is needed is shared memory
    34,
    (
        Limit(
            LimitKind.AVAILABLE,
            12 * GIB,
            int(19.6 * GIB),
            Severity.REFUSE,
            "MemAvailable of /proc/meminfo",
            "--workers 4 --prefetch 2 would take 3.53 GiB, or --force",
        ),
        *FITTING.limits[1:],
    ),
    device_bytes=294 * MIB,
)
WSL = Guard(
    2560 * MIB,
    10,
    (
        Limit(
            LimitKind.WSL,
            2560 * MIB,
            None,
            Severity.REFUSE,
            "/proc/version",
            "WSL lets programs pin about half a gigabyte; leave pin_memory off",
        ),
    ),
)
TOO_MUCH_SHM = Guard(
    2560 * MIB,
    17,
    (
        FITTING.limits[0],
        Limit(
            LimitKind.SHM,
            2499 * MIB,
            64 * MIB,
            Severity.REFUSE,
            "statvfs of /dev/shm",
            "start the container with --shm-size=4g",
        ),
    ),
)
TOO_MANY_FILES = Guard(
    9 * MIB,
    65,
    (
        Limit(
            LimitKind.FILES,
            41_600,
            65_000,
            Severity.REFUSE,
            "RLIMIT_NOFILE",
            'torch.multiprocessing.set_sharing_strategy("file_system")',
        ),
    ),
)

# --------------------------------------------------------------------- workers


def trial(workers, batch_s, private=90 * MIB):
    """Loading with so many workers."""
    return WorkerTrial(
        workers,
        loading(batch_s, workers, start_s=0.02 + 0.1 * workers),
        workers * private if workers else None,
    )


SEARCH = WorkerSearch(
    (
        trial(0, 0.0853),
        trial(1, 0.0848),
        trial(2, 0.043),
        trial(4, 0.0218),
        trial(8, 0.0112),
        trial(16, 0.0109),
    ),
    chosen=8,
    stopped=Stopped.SLOWER,
    most=16,
)
FAILING_SEARCH = WorkerSearch(
    (
        trial(0, 0.0853),
        WorkerTrial(1, None, None, "the worker was killed: " + HOSTILE),
        WorkerTrial(2, Loading(Samples(()), 2), None),
    ),
    chosen=0,
    stopped=Stopped.BUDGET,
    most=2,
)
NO_SEARCH = WorkerSearch(
    (),
    chosen=None,
    stopped=Stopped.REFUSED,
    problem="an iterable dataset that does not divide itself gives each batch twice",
    hint="divide it by torch.utils.data.get_worker_info()",
)

# ------------------------------------------------------------------------ proof

REBUILT = Rebuilding(
    Way.REBUILT,
    "DataLoader",
    (
        Change("pin_memory", "False", "True"),
        Change("num_workers", "4", "8"),
        Change("persistent_workers", "False", "True"),
    ),
    depth=1,
    remarks=(
        Remark(
            "with other workers, random transforms draw other numbers: worker seeds "
            "depend on the number of workers",
        ),
    ),
)
ADAPTED = replace(REBUILT, adapter=True, remarks=())
WRAPPED = Rebuilding(
    Way.WRAPPED,
    "NeighborLoader",
    reason="its arguments are not kept: data and num_neighbors are missing",
)
SAME = Sameness(8, same=True, restored=("torch", "numpy", "the sampler's generator"))
ALL_SAME = replace(SAME, batches=1251, whole=True)
RANDOM = replace(SAME, random_values=True)
DIFFERENT = Sameness(
    3, same=False, difference="batch 2: batch[1] has 255 values instead of 256"
)
UNTOLD = Sameness(0, same=None, problem="the dataset failed in batch 0: KeyError: 'x'")
HONEST = ReuseCheck(8, damaged=())
DAMAGED = ReuseCheck(
    8,
    reused=("batch[0]",),
    damaged=tuple(Damaged(at, "batch[0]") for at in range(2, 7)),
)
NOT_LOOKED = ReuseCheck(8, reused=("batch[0]",), problem="there is no stream to delay")

# ------------------------------------------------------------------- end to end


def comparison(ratio, verdict=Verdict.FASTER, width=0.03, count=24, step_s=26.4 * MS):
    """Pairs around a ratio."""
    pairs = tuple(
        (step_s * (1 + 0.01 * (at % 3 - 1)), step_s * ratio * (1 + 0.01 * (at % 5 - 2)))
        for at in range(count)
    )
    ends = Interval(ratio * (1 - width), ratio * (1 + width), 0.96)
    return Comparison(pairs, ratio, ends if width else None, verdict)


LOOPS = (
    "for batch in train_dl: batch.to(device), then train_step",
    "for batch in train_dl_pinned: train_step",
)
FASTER = EndToEnd(
    comparison(0.5435),
    20,
    *LOOPS,
    overlap=(0.02, 0.97),
    pageable_share=(1.0, 0.0),
)
ESTIMATED = replace(
    FASTER,
    overlap=(None, None),
    estimated_overlap=(0.05, 0.91),
    pageable_share=(None, None),
)
UNTRACED = replace(ESTIMATED, estimated_overlap=(None, None))
CANNOT_TELL = replace(
    UNTRACED,
    result=replace(comparison(0.985, Verdict.CANNOT_TELL), more_pairs=310),
)
NO_DIFFERENCE = replace(
    FASTER, result=comparison(1.001, Verdict.SAME, 0.004), pageable_share=(0.0, 0.0)
)
SLOWER = replace(ESTIMATED, result=comparison(1.17, Verdict.SLOWER))
FEW_PAIRS = replace(
    UNTRACED, result=comparison(0.6, Verdict.CANNOT_TELL, width=0, count=3)
)
MODELLED = replace(FASTER, modelled=True)


def four(load_s, copy_s, step_s, *, hidden):
    """Four steps, with copies beside compute or in its way."""
    spans, free = [], {"load": 0.0, "copy": 0.0, "compute": 0.0}
    for at in range(4):
        begin = 0.0
        for lane, length_s in (("load", load_s), ("copy", copy_s), ("compute", step_s)):
            busy = free[lane]
            if lane == "copy" and not hidden:
                busy = max(busy, free["compute"])
            begin = max(begin, busy)
            spans.append(StepSpan(lane, at, begin, begin + length_s))
            begin = free[lane] = begin + length_s
    return tuple(spans)


FOUR = FourSteps(
    four(9.8 * MS, 14.2 * MS, 12.1 * MS, hidden=False),
    four(9.8 * MS, 2.9 * MS, 12.1 * MS, hidden=True),
)

# --------------------------------------------------------------------- reports

DIAGNOSED = LoaderReport(
    State.DIAGNOSED, H100, LOADER, PAIR, RATES, BOUND, guard=FITTING
)
FIXED = LoaderReport(
    State.FIXED,
    H100,
    LOADER,
    PAIR,
    RATES,
    BOUND_OF_8,
    FITTING,
    rebuilding=REBUILT,
    sameness=SAME,
    end_to_end=FASTER,
    reuse=HONEST,
    steps=FOUR,
    out="train_dl_pinned",
)
FIXED_WITH_WORKERS = replace(
    FIXED, workers=SEARCH, sameness=RANDOM, end_to_end=ESTIMATED, steps=None
)
FIXED_CUSTOM = replace(
    FIXED,
    anatomy=CUSTOM,
    rebuilding=ADAPTED,
    sameness=ALL_SAME,
    guard=WARNING,
    steps=None,
)
FIXED_SIMULATED = replace(
    FIXED,
    setting=SIMULATED,
    end_to_end=MODELLED,
    guard=replace(FITTING, measured_bytes=None),
)
FIXED_SYNTHETIC = replace(
    FIXED,
    rates=replace(RATES, step=replace(SYNTHETIC, samples=STEP.samples)),
    bound=replace(BOUND_OF_8, synthetic_step=True),
    steps=None,
)
FIXED_DAMAGED = replace(FIXED, reuse=DAMAGED, steps=None, end_to_end=UNTRACED)
FIXED_UNCLEAR = replace(FIXED, end_to_end=CANNOT_TELL, steps=None, reuse=NOT_LOOKED)
FIXED_SLOWER = replace(FIXED, end_to_end=SLOWER, steps=None, setting=H100_5)
FIXED_FEW_PAIRS = replace(
    FIXED, state=State.UNPROVEN, end_to_end=FEW_PAIRS, steps=None, rates=LOAD_ONLY
)
FIXED_UNMEASURED = replace(
    FIXED, end_to_end=None, steps=None, rates=Rates(), bound=None, sameness=None
)
GOOD = LoaderReport(
    State.ALREADY_GOOD,
    H100,
    PINNING,
    PINNED_PAIR,
    COMPUTE_BOUND,
    NOTHING_TO_WIN,
    guard=FITTING,
)
NO_GAIN = LoaderReport(State.NO_GAIN, H100, LOADER, PAIR, COMPUTE_BOUND, NOTHING_TO_WIN)
NO_GAIN_MEASURED = replace(
    NO_GAIN,
    bound=BOUND_OF_8,
    rates=RATES,
    end_to_end=NO_DIFFERENCE,
    rebuilding=REBUILT,
    sameness=SAME,
)
NO_GAIN_SYNTHETIC = replace(
    NO_GAIN,
    loader=NO_WORKERS,
    bound=ADDED_UP,
    rates=LOADING_BOUND,
    reason=Remark(
        "loading takes 85.3 ms of 85.6 ms a step", "%pin_loader train_dl --workers auto"
    ),
)
NO_GAIN_AT_ALL = replace(
    NO_GAIN_SYNTHETIC,
    loader=replace(LOADER, workers=2),
    bound=WORKERS_AT_WORK,
    rates=replace(LOADING_BOUND, load=loading(85.3 * MS, 2)),
    reason=Remark(
        "loading takes 85.3 ms of 85.6 ms a step",
        "make loading itself faster, or store what it works out",
    ),
)
REFUSED_RAM = LoaderReport(
    State.REFUSED_RAM,
    H100,
    LOADER,
    PAIR,
    guard=TOO_MUCH_RAM,
    reason=Remark(
        "it would take 61.2 % of the available memory that is left",
        "%pin_loader train_dl --workers 4 --prefetch 2",
    ),
)
REFUSED_WSL = replace(REFUSED_RAM, guard=WSL, reason=None)
REFUSED_SHM = replace(
    REFUSED_RAM, state=State.REFUSED_SHM, guard=TOO_MUCH_SHM, reason=None
)
REFUSED_FILES = replace(REFUSED_SHM, guard=TOO_MANY_FILES, anatomy=THOUSANDS)
ONE_SHOT = LoaderReport(
    State.REFUSED_ONE_SHOT,
    H100,
    STREAM,
    reason=Remark(
        "LinesOfFile is its own iterator: a second epoch would be empty",
        "give it an __iter__ that opens the file again",
    ),
)
UNPICKLABLE = LoaderReport(
    State.REFUSED_UNPICKLABLE,
    H100,
    replace(LOADER, start_method="spawn"),
    reason=Remark(
        "class Pairs is defined in this notebook: spawned workers cannot import it",
        "%%writefile pairs.py, then: from pairs import Pairs",
    ),
)
ALREADY_THERE = LoaderReport(
    State.REFUSED_ON_DEVICE,
    H100_5,
    LOADER,
    ON_DEVICE,
    reason=Remark("the collate_fn moves batches itself", "let it give host tensors"),
)
NOT_THE_SAME = LoaderReport(
    State.REFUSED_DIFFERENT,
    H100,
    LOADER,
    PAIR,
    RATES,
    BOUND,
    FITTING,
    rebuilding=REBUILT,
    sameness=DIFFERENT,
)
WRAPPED_ONLY = LoaderReport(
    State.WRAPPED_ONLY,
    H100,
    NEIGHBORS,
    MIXED,
    RATES,
    BOUND,
    FITTING,
    rebuilding=WRAPPED,
    sameness=SAME,
    end_to_end=replace(FASTER, result=comparison(0.82)),
    reuse=HONEST,
    out="graph_dl_pinned",
)
UNTOUCHED = replace(
    WRAPPED_ONLY,
    end_to_end=None,
    out=None,
    sameness=UNTOLD,
    reuse=None,
    anatomy=None,
    rates=Rates(),
    bound=None,
)
NO_ACCELERATOR = LoaderReport(
    State.NO_ACCELERATOR,
    CPU,
    LOADER,
    ON_CPU,
    LOAD_ONLY,
    reason=Remark(
        "nothing was changed",
        'gpumagic.simulate("h100") puts a simulated GPU in its place',
    ),
)
NO_ACCELERATOR_REBUILT = replace(
    NO_ACCELERATOR,
    reason=None,
    rebuilding=replace(REBUILT, depth=0, remarks=()),
    sameness=SAME,
    out="train_dl_pinned",
)
NO_ACCELERATOR_WORKERS = replace(
    NO_ACCELERATOR,
    reason=None,
    workers=SEARCH,
    rebuilding=replace(REBUILT, depth=0),
    sameness=ALL_SAME,
    out="train_dl_pinned",
)
BAD_LINK = replace(DIAGNOSED, rates=SLOW_LINK, anatomy=PINNED_PAIR, setting=H100_5)
ON_GH200 = replace(DIAGNOSED, rates=COHERENT, setting=GH200, guard=None)
BY_PARTS = replace(
    DIAGNOSED, loader=NO_WORKERS, rates=LOADING_BOUND, bound=ADDED_UP, guard=WARNING
)
NOT_STARTED = replace(
    DIAGNOSED,
    loader=NO_WORKERS,
    rates=Rates(load=loading(129 * MS, 0)),
    bound=None,
    remarks=(
        Remark(
            "the device has not been used yet, so copies to it were not measured",
            "leave --diagnose off, or use the device first",
        ),
    ),
)
BAD_SEARCH = replace(DIAGNOSED, workers=FAILING_SEARCH, rates=LOAD_ONLY, bound=None)
REFUSED_SEARCH = replace(DIAGNOSED, workers=NO_SEARCH, rates=Rates(), bound=INSTANT)
HOSTILE_REPORT = LoaderReport(
    State.FIXED,
    replace(H100, device_name=HOSTILE),
    HOSTILE_LOADER,
    HOSTILE_BATCH,
    replace(
        RATES, step=Step(HOSTILE, samples(12 * MS)), link=replace(GEN5, name=HOSTILE)
    ),
    guard=replace(
        FITTING, limits=(replace(WARNING.limits[0], source=LONG, hint=HOSTILE),)
    ),
    rebuilding=replace(
        WRAPPED,
        class_name=HOSTILE,
        reason=HOSTILE,
        changes=(Change(LONG, HOSTILE, WIDE),),
    ),
    sameness=replace(DIFFERENT, difference=HOSTILE, restored=(HOSTILE, LONG)),
    end_to_end=replace(FASTER, base=HOSTILE, newer=LONG),
    reuse=replace(DAMAGED, reused=(HOSTILE,), damaged=(Damaged(1, HOSTILE),)),
    workers=FAILING_SEARCH,
    remarks=(Remark(HOSTILE, HOSTILE, serious=True), Remark(LONG, WIDE)),
    out=HOSTILE,
)

# ----------------------------------------------------------------------- watch

FOR = CodeLine("In [12], line 3", "for x, y in train_dl:")
TO_X = CodeLine("In [12], line 4", "x = x.to(device)")
TO_Y = CodeLine("In [12], line 5", "y = y.to(device, non_blocking=True)")
CELL = Code("for x, y in train_dl:\n    x = x.to(device)", cell=12)


def waits(count=24, each_s=31 * MS, first_s=0.62, **more):
    """A loop's waits, the first with the start of the workers."""
    rest = tuple(each_s * (1 + 0.3 * (at * 5 % 7 - 3) / 3) for at in range(count - 1))
    given = {
        "loader": "train_dl",
        "line": FOR,
        "workers": 4,
        "pin_memory": False,
        **more,
    }
    return DataWait(waits=Samples((first_s, *rest)), **given)


PAGEABLE_REMARK = Remark(
    "line `x = x.to(device)` copies 3.38 GiB from pageable memory, and waits for it",
    "%pin_loader train_dl, then x.to(device, non_blocking=True)",
)
WATCHED = WatchReport(
    CELL,
    H100,
    elapsed_s=4.31,
    host_s=4.31,
    copies=(
        CopyLine(TO_X, 24, 24 * IMAGES, 24 * IMAGES, 24, 0.341),
        CopyLine(TO_Y, 24, 24 * LABELS, 24 * LABELS, 0, 0.0012),
    ),
    waits=(waits(),),
    copying_s=0.338,
    hidden_s=0.011,
    kernel_s=2.61,
    remarks=(PAGEABLE_REMARK,),
)
WATCHED_PINNED = replace(
    WATCHED,
    copies=(CopyLine(TO_X, 24, 24 * IMAGES, 0, 0, 0.0003),),
    waits=(waits(each_s=0.9 * MS, pin_memory=True),),
    hidden_s=0.322,
    remarks=(),
)
TWO_LOOPS = replace(
    WATCHED,
    waits=(
        waits(),
        waits(6, 11 * MS, 0.2, loader="val_dl", workers=1, pin_memory=True),
    ),
)
UNTRACED_WATCH = replace(
    WATCHED,
    copying_s=None,
    hidden_s=None,
    kernel_s=None,
    copies=(
        CopyLine(TO_X, 24, 24 * IMAGES),
        CopyLine(None, 3, 12 * MIB, None, 1),
    ),
    problem="the trace of torch.profiler was already running",
    hint="end it before the cell",
)
SIMULATED_WATCH = replace(
    WATCHED, setting=SIMULATED, elapsed_s=0.81, kernel_s=0.4, host_s=4.0
)
RACING = replace(
    SIMULATED_WATCH,
    races=(
        SeenRace(
            "In [12], line 4 writes the buffer while a copy still reads it",
            "synchronize the copy's event before filling the buffer again",
            TO_X,
            TO_X,
        ),
    )
    * 7,
)
FAILED_WATCH = replace(
    WATCHED, failed="ValueError: Expected more than 1 value per channel " + HOSTILE
)
CPU_WATCH = WatchReport(
    CELL, CPU, elapsed_s=2.0, host_s=2.0, waits=(waits(pin_memory=None, workers=None),)
)
NO_LOADER = WatchReport(CELL, H100, elapsed_s=0.5, host_s=0.5, kernel_s=0.2)
NO_TIME = WatchReport(CELL, CPU, 0.0, 0.0, waits=(DataWait("dl", None, Samples(())),))
MANY_LINES = replace(
    WATCHED,
    copies=tuple(
        CopyLine(
            CodeLine(f"In [12], line {at}", f"{LONG} = b.to(device)"), 1, at * MIB, 0
        )
        for at in range(1, 31)
    ),
    waits=tuple(waits(5, loader=f"loader_{at}") for at in range(20)),
)
HOSTILE_WATCH = replace(
    FAILED_WATCH,
    failed=HOSTILE,
    waits=(waits(loader=HOSTILE, line=CodeLine(HOSTILE, LONG)),),
    copies=(CopyLine(CodeLine(HOSTILE, HOSTILE), 1, MIB, MIB, 1, 1 * MS),),
    remarks=(Remark(HOSTILE, LONG, serious=True),),
)

SAMPLES = (
    ("fixed", FIXED),
    ("fixed-workers", FIXED_WITH_WORKERS),
    ("fixed-custom-class", FIXED_CUSTOM),
    ("fixed-simulated", FIXED_SIMULATED),
    ("fixed-synthetic", FIXED_SYNTHETIC),
    ("fixed-damaged", FIXED_DAMAGED),
    ("fixed-unclear", FIXED_UNCLEAR),
    ("fixed-slower", FIXED_SLOWER),
    ("unproven", FIXED_FEW_PAIRS),
    ("fixed-unmeasured", FIXED_UNMEASURED),
    ("fixed-hostile", HOSTILE_REPORT),
    ("diagnosed", DIAGNOSED),
    ("diagnosed-steps", replace(DIAGNOSED, steps=FOUR, setting=SIMULATED)),
    ("diagnosed-one-leaf", replace(DIAGNOSED, anatomy=ONE_LEAF, loader=NAMELESS)),
    ("diagnosed-forty-leaves", replace(DIAGNOSED, anatomy=FORTY)),
    ("diagnosed-left-out", replace(DIAGNOSED, anatomy=THOUSANDS)),
    ("diagnosed-mixed", replace(DIAGNOSED, anatomy=MIXED)),
    ("diagnosed-no-tensors", replace(DIAGNOSED, anatomy=Anatomy("str", (), others=1))),
    ("diagnosed-bad-link", BAD_LINK),
    ("diagnosed-gh200", ON_GH200),
    ("diagnosed-by-parts", BY_PARTS),
    ("diagnosed-not-started", NOT_STARTED),
    ("diagnosed-bad-search", BAD_SEARCH),
    ("diagnosed-no-search", REFUSED_SEARCH),
    ("good", GOOD),
    ("no-gain", NO_GAIN),
    ("no-gain-measured", NO_GAIN_MEASURED),
    ("no-gain-synthetic", NO_GAIN_SYNTHETIC),
    ("no-gain-at-all", NO_GAIN_AT_ALL),
    ("refused-ram", REFUSED_RAM),
    ("refused-wsl", REFUSED_WSL),
    ("refused-shm", REFUSED_SHM),
    ("refused-files", REFUSED_FILES),
    ("refused-one-shot", ONE_SHOT),
    ("refused-unpicklable", UNPICKLABLE),
    ("refused-on-device", ALREADY_THERE),
    ("refused-different", NOT_THE_SAME),
    ("wrapped", WRAPPED_ONLY),
    ("wrapped-untouched", UNTOUCHED),
    ("cpu", NO_ACCELERATOR),
    ("cpu-rebuilt", NO_ACCELERATOR_REBUILT),
    ("cpu-workers", NO_ACCELERATOR_WORKERS),
    ("watch", WATCHED),
    ("watch-pinned", WATCHED_PINNED),
    ("watch-two-loops", TWO_LOOPS),
    ("watch-no-trace", UNTRACED_WATCH),
    ("watch-simulated", SIMULATED_WATCH),
    ("watch-races", RACING),
    ("watch-failed", FAILED_WATCH),
    ("watch-cpu", CPU_WATCH),
    ("watch-no-loader", NO_LOADER),
    ("watch-no-time", NO_TIME),
    ("watch-many", MANY_LINES),
    ("watch-hostile", HOSTILE_WATCH),
)
