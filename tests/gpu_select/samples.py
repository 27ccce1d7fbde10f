"""Reports written by hand: what `%gpu_select` says on machines we do not have."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.devices.protocols import CudaState, Initialisation
from gpumagic.gpu_select.report import (
    Action,
    Guard,
    Remark,
    Row,
    SelectReport,
    Severity,
    Start,
    TorchLatch,
    Variable,
    Verdict,
)

GIB = 2**30
HOSTILE = "<script>alert('gpu')</script>\x1b[31m\u202eevil\nnext line"
LIBRARY = "/usr/lib64/libcuda.so.580.65.06"

NOT_LOADED = CudaState(Initialisation.NOT_LOADED)
UNTOUCHED = CudaState(Initialisation.UNTOUCHED, code=3, library=LIBRARY)
STARTED = CudaState(Initialisation.INITIALISED, code=0, device_count=2, library=LIBRARY)


def gpu(index, **known):
    """One H100 of eight, the busier the higher its number."""
    row = Row(
        physical=index,
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{f'{index:x}' * 8}-aaaa-4aaa-8aaa-0123456789ab",
        pci_address=f"0000:{12 * index + 24:02x}:00.0",
        memory_free_bytes=(80 - 5 * index) * GIB,
        memory_total_bytes=80 * GIB,
        utilisation_share=index / 20,
        process_count=min(index, 3),
    )
    return replace(row, **known)


def gpus(count, predicted=(), actual=(), whys=()):
    """So many GPUs, of which the k-th named one is cuda:k."""
    said = dict(whys)
    return tuple(
        gpu(
            index,
            predicted=predicted.index(index) if index in predicted else None,
            actual=actual.index(index) if index in actual else None,
            chosen=index in predicted,
            why=said.get(index, ""),
        )
        for index in range(count)
    )


def variable(value, start=None, name="CUDA_VISIBLE_DEVICES", **known):
    """A variable that has one value in Python and in C."""
    found = Variable(name, value, value, True, start, True)
    return replace(found, **known)


def variables(value, start=None, order="PCI_BUS_ID", **known):
    """The two variables that steer CUDA."""
    return (
        variable(value, start, **known),
        variable(order, name="CUDA_DEVICE_ORDER"),
    )


OPEN = SelectReport(
    action=Action.STATUS,
    verdict=Verdict.OPEN,
    headline="You can still choose. Now cuda:0 is GPU 0, cuda:1 is GPU 1, cuda:2 is "
    "GPU 2, cuda:3 is GPU 3 (predicted: CUDA has not started).",
    rows=gpus(4, predicted=(0, 1, 2, 3)),
    variables=variables(None, order=None),
    driver=UNTOUCHED,
    torch=TorchLatch.OPEN,
    guard=Guard(on=True),
)
FIXED = replace(
    OPEN,
    verdict=Verdict.FIXED,
    headline="Too late to choose: CUDA has started in In[4], line 2, by "
    "torch.randn(8, device='cuda'). cuda:0 is GPU 2, cuda:1 is GPU 0.",
    rows=gpus(4, predicted=(2, 0), actual=(2, 0)),
    variables=variables("2,0"),
    driver=STARTED,
    torch=TorchLatch.STARTED,
    start=Start(4, 2, "x = torch.randn(8, device='cuda')", "torch.randn()"),
    confirmed=True,
)
SELECTED = replace(
    OPEN,
    action=Action.SELECTED,
    headline="cuda:0 is GPU 2, cuda:1 is GPU 0 (predicted: CUDA has not started).",
    rows=gpus(8, predicted=(2, 0)),
    variables=variables("2,0"),
    request="2,0",
)
DIFFERING = replace(
    FIXED,
    headline="Too late to choose: CUDA has started in In[4], line 1, by "
    "torch.cuda.is_available(). cuda:0 is GPU 0, cuda:1 is GPU 1.",
    rows=gpus(4, predicted=(2, 0), actual=(0, 1)),
    variables=variables("2,0"),
    start=Start(4, 1, None, "torch.cuda.is_available()"),
    confirmed=False,
    way_out="%gpu_select 2,0 --restart",
    guard=Guard(on=False),
)
FREE = replace(
    SELECTED,
    headline="cuda:0 is GPU 0 (predicted: CUDA has not started).",
    rows=gpus(
        8,
        predicted=(0,),
        whys={
            0: "most free memory",
            1: "75.0 GiB free is less",
            2: "70.0 GiB free is less",
            3: "3 processes",
            4: "taken by another notebook (process 4242)",
            5: "3 processes",
            6: "busy: 30.0 % is more than 25 %",
            7: "excluded",
        },
    ),
    variables=variables("0"),
    request="free --max-util 25 --exclude 7",
)
REFUSED = replace(
    OPEN,
    action=Action.REFUSED,
    headline="Nothing was changed. You can still choose. 1 GPU is free, and 2 were "
    "asked for.",
    rows=gpus(
        4,
        predicted=(0, 1, 2, 3),
        whys={
            0: "would do",
            1: "claimed by process 4242 since 12:30",
            2: "70.0 GiB free, 75.0 GiB asked for",
            3: "65.0 GiB free, 75.0 GiB asked for",
        },
    ),
    request="free -n 2 --min-free 75GiB",
)
LATE = replace(
    FIXED,
    action=Action.REFUSED,
    headline="Nothing was changed. Too late to choose: CUDA has started by import "
    "kornia. cuda:0 is GPU 2, cuda:1 is GPU 0.",
    start=Start(3, 1, "import kornia", "import kornia"),
    request="3",
)
TRIED_TOO_LATE = replace(
    FIXED,
    action=Action.DRY_RUN,
    headline="Nothing is set (dry run). CUDA has started; after a restart it would be: "
    "cuda:0 is GPU 3. Now cuda:0 is GPU 2, cuda:1 is GPU 0.",
    rows=gpus(4, predicted=(3,), actual=(2, 0)),
    confirmed=False,
    request="3",
)
SIMULATED_TOO_LATE = replace(
    FIXED,
    driver=replace(STARTED, library="simulated"),
    headline="Too late to choose: CUDA has started in In[4], line 2. Now sim:0 is GPU "
    "2, sim:1 is GPU 0.",
    start=Start(4, 2, "x = torch.ones(8, device='sim')"),
    simulated=True,
    word="sim",
)
IN_VAIN = replace(
    OPEN,
    verdict=Verdict.FIXED_FOR_TORCH,
    headline="Too late for torch: it has looked for GPUs, found none, and does not "
    "look again until a restart.",
    driver=CudaState(Initialisation.FAILED, code=3, library=LIBRARY),
    torch=TorchLatch.LOOKED_IN_VAIN,
    start=Start(2, 1, None, "torch.cuda.is_available()", in_vain=True),
    rows=gpus(4, predicted=(0,)),
    variables=variables("0", start=""),
    guard=Guard(on=False),
)
LOST = replace(
    OPEN,
    verdict=Verdict.LOST,
    headline="CUDA cannot be used here: this process was forked from one that had "
    "started it.",
    driver=CudaState(Initialisation.FORKED_CHILD, code=3, library=LIBRARY),
    torch=TorchLatch.STARTED,
)
FAILED = replace(
    OPEN,
    verdict=Verdict.FAILED,
    headline="CUDA was started and failed (code 999): restart once the cause is "
    "mended.",
    driver=CudaState(Initialisation.FAILED, code=999, library=LIBRARY),
    torch=TorchLatch.ABSENT,
    guard=Guard(on=True, defeated_by="NVML does not answer: unknown error"),
    remarks=(
        Remark(
            Severity.PROBLEM,
            "the NVIDIA library and the kernel module differ",
            "reboot",
        ),
    ),
    rows=(),
)
NOTHING = replace(
    OPEN,
    verdict=Verdict.NOTHING,
    headline="There is no NVIDIA GPU here: nothing to choose.",
    rows=(),
    driver=NOT_LOADED,
    torch=TorchLatch.WITHOUT_CUDA,
)
UNKNOWN = replace(
    OPEN,
    verdict=Verdict.UNKNOWN,
    headline="Whether CUDA has started cannot be told on this system. If it has not, "
    "cuda:0 is GPU 0.",
    rows=(gpu(0, predicted=0),),
    driver=CudaState(Initialisation.UNKNOWN),
    torch=TorchLatch.UNKNOWN,
    variables=(
        Variable("CUDA_VISIBLE_DEVICES", "0", None, False, None, False),
        Variable("CUDA_DEVICE_ORDER", None, None, False, None, False),
    ),
)
SLURM = replace(
    OPEN,
    headline="You can still choose. Now cuda:0 is GPU 4, cuda:1 is GPU 5 (predicted: "
    "CUDA has not started).",
    rows=gpus(8, predicted=(4, 5)),
    variables=variables("4,5", start="4,5"),
    remarks=(
        Remark(
            Severity.NOTE,
            "this process was started with CUDA_VISIBLE_DEVICES=4,5, by Slurm (job "
            "4711): that is what there is to choose from",
            "add --force to a choice to go beyond it",
        ),
    ),
)
GUESSED = replace(
    FIXED,
    headline="Too late to choose: CUDA has started in In[2], by bitsandbytes (a guess "
    "from the history). cuda:0 is GPU 2, cuda:1 is GPU 0.",
    start=Start(2, None, None, "import bitsandbytes", guess=True),
)
SLICED = replace(
    SELECTED,
    headline="cuda:0 is slice 1 of GPU 2 (predicted: CUDA has not started).",
    rows=(
        *gpus(2),
        *(
            gpu(
                2,
                uuid=f"MIG-{letter * 8}-1111-5111-8111-0123456789ab",
                is_slice=True,
                memory_total_bytes=20 * GIB,
                memory_free_bytes=None if letter == "c" else 19 * GIB,
                utilisation_share=None,
                process_count=None,
                predicted=0 if letter == "b" else None,
            )
            for letter in "abc"
        ),
        gpu(3, why="in MIG mode, without slices"),
    ),
    variables=variables("MIG-bbbbbbbb-1111-5111-8111-0123456789ab"),
    guard=Guard(
        on=True,
        defeated_by="CUDA_VISIBLE_DEVICES names a MIG slice, which torch asks CUDA "
        "about",
    ),
    request="MIG-bbbb",
)
MIXED = replace(
    SELECTED,
    headline="cuda:0 is GPU 1 (predicted: CUDA has not started).",
    rows=(
        gpu(
            0, name="NVIDIA RTX A6000", memory_total_bytes=48 * GIB, memory_free_bytes=0
        ),
        gpu(1, predicted=0, chosen=True),
        gpu(
            2,
            name="NVIDIA GeForce GTX 1080 Ti",
            memory_total_bytes=11 * GIB,
            memory_free_bytes=10 * GIB,
        ),
    ),
    variables=variables(gpu(1).uuid),
    remarks=(
        Remark(Severity.NOTE, "written by UUID, because --as uuid was asked for"),
    ),
    request="1",
)
UNCERTAIN = replace(
    OPEN,
    headline="You can still choose. Now cuda:0 is GPU 0 (predicted, and not certain: "
    "CUDA has not started).",
    rows=(gpu(0, predicted=0), gpu(1, name="NVIDIA T400")),
    variables=variables("0", order=None),
    remarks=(
        Remark(
            Severity.WARNING,
            "the models differ, and without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest "
            "may come first",
            "choose with %gpu_select, which sets CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ),
    ),
    certain=False,
)
NO_PERMISSION = replace(
    OPEN,
    headline="You can still choose. Now cuda:0 is GPU 0 (predicted: CUDA has not "
    "started).",
    rows=(gpu(0, predicted=0), Row(1, why="this user may not use this GPU")),
    variables=variables(None, order=None),
)
UNIFIED = replace(
    SELECTED,
    headline="cuda:0 is GPU 0 (predicted: CUDA has not started).",
    rows=(Row(0, name="NVIDIA GB10", predicted=0, chosen=True),),
    variables=variables("0"),
)
MISTAKEN = replace(
    OPEN,
    headline="You can still choose. Now no GPU is visible (predicted: CUDA has not "
    "started).",
    rows=gpus(4),
    variables=variables('"0,1"', python="0,1"),
    remarks=(
        Remark(
            Severity.WARNING,
            "CUDA_VISIBLE_DEVICES is '0,1' to Python and '\"0,1\"' to C, which is what "
            "CUDA reads: os.putenv or a library has changed it for C alone",
            "type %gpu_select 0,1, which sets both",
        ),
        Remark(
            Severity.PROBLEM,
            "CUDA_VISIBLE_DEVICES was set to '\"0,1\"': the quotation marks are part "
            "of the value, and CUDA reads no further than to the first of them",
            "type %gpu_select 0,1",
        ),
    ),
)
INTEL = replace(
    OPEN,
    headline="You can still choose, as far as torch knows. Now ZE_AFFINITY_MASK=0.",
    rows=(),
    variables=(variable("0", name="ZE_AFFINITY_MASK"),),
    driver=NOT_LOADED,
    torch=TorchLatch.UNKNOWN,
    vendor="Intel",
)
NASTY = replace(
    FIXED,
    headline=f"{HOSTILE} is cuda:0.",
    rows=(
        gpu(0, name=HOSTILE, uuid=HOSTILE, actual=0, why=HOSTILE),
        gpu(1, pci_address=HOSTILE),
    ),
    variables=variables(HOSTILE, start=HOSTILE * 3),
    driver=replace(STARTED, library=HOSTILE),
    start=Start(4, 2, HOSTILE, HOSTILE),
    unlisted=(HOSTILE, *(f"GPU-{number}" for number in range(5))),
    remarks=(Remark(Severity.WARNING, HOSTILE, HOSTILE),),
    confirmed=False,
    way_out="%gpu_select 0 --restart",
    request=HOSTILE,
)

SAMPLES = (
    ("open", OPEN),
    ("fixed", FIXED),
    ("fixed-for-torch", IN_VAIN),
    ("lost-in-a-fork", LOST),
    ("failed", FAILED),
    ("nothing", NOTHING),
    ("unknown", UNKNOWN),
    ("selected", SELECTED),
    (
        "confirmed",
        replace(
            FIXED,
            action=Action.UNCHANGED,
            headline="As it was: cuda:0 is GPU 2, cuda:1 is GPU 0 (confirmed by the "
            "driver).",
        ),
    ),
    ("differing", DIFFERING),
    ("free", FREE),
    ("free-refused", REFUSED),
    ("too-late", LATE),
    ("mixed-models", MIXED),
    ("mig-slice", SLICED),
    ("slurm", SLURM),
    ("guess", GUESSED),
    (
        "dry-run",
        replace(
            SELECTED,
            action=Action.DRY_RUN,
            headline="Nothing is set (dry run); it would be: cuda:0 is GPU 2, cuda:1 "
            "is GPU 0 (predicted: CUDA has not started).",
            variables=variables(None),
        ),
    ),
    ("dry-run-too-late", TRIED_TOO_LATE),
    (
        "kept",
        replace(
            SELECTED,
            action=Action.KEPT,
            headline="Kept over the restart: cuda:0 is GPU 2, cuda:1 is GPU 0 "
            "(predicted: CUDA has not started).",
            remarks=(Remark(Severity.NOTE, "asked for before the restart as: 2,0"),),
        ),
    ),
    (
        "none",
        replace(
            SELECTED,
            headline="No GPU is visible (predicted: CUDA has not started).",
            rows=gpus(4),
            variables=variables("-1"),
            request="none",
        ),
    ),
    ("simulated", replace(SELECTED, simulated=True)),
    ("simulated-too-late", SIMULATED_TOO_LATE),
    ("no-permission", NO_PERMISSION),
    ("uncertain", UNCERTAIN),
    ("unified-memory", UNIFIED),
    (
        "sixteen-gpus",
        replace(
            OPEN,
            headline="You can still choose. Now 16 GPUs are visible, cuda:0 to cuda:15 "
            "(predicted: CUDA has not started).",
            rows=gpus(16, predicted=tuple(range(16))),
        ),
    ),
    ("mistaken", MISTAKEN),
    ("intel", INTEL),
    ("hostile", NASTY),
)
