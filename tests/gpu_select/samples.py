"""Reports written by hand: what `%gpu_select` says on machines we do not have."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.devices.protocols import CudaState, Initialisation
from gpumagic.gpu_select.answer_gpus import SelectReport
from gpumagic.gpu_select.report import (
    Action,
    Evidence,
    Remark,
    Row,
    Start,
    TorchLook,
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
        label=f"GPU {index}",
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
            why=said.get(index, ""),
        )
        for index in range(count)
    )


def variable(value, start=None, name="CUDA_VISIBLE_DEVICES", **known):
    """A variable that has one value in Python and in C."""
    return replace(Variable(name, value, value, start), **known)


def variables(value, start=None, order="PCI_BUS_ID", **known):
    """The two variables that steer CUDA."""
    return (
        variable(value, start, **known),
        variable(order, name="CUDA_DEVICE_ORDER"),
    )


OPEN = SelectReport(
    action=Action.STATUS,
    verdict=Verdict.OPEN,
    rows=gpus(4, predicted=(0, 1, 2, 3)),
    variables=variables(None, order=None),
    driver=UNTOUCHED,
    torch=TorchLook.NONE,
)
FIXED = replace(
    OPEN,
    verdict=Verdict.FIXED,
    rows=gpus(4, predicted=(2, 0), actual=(2, 0)),
    variables=variables("2,0"),
    driver=STARTED,
    torch=TorchLook.FOUND,
    start=Start(4, 2, "torch.randn(8, device='cuda')"),
    evidence=Evidence.CONFIRMED,
)
SELECTED = replace(
    OPEN,
    action=Action.SELECTED,
    rows=gpus(8, predicted=(2, 0)),
    variables=variables("2,0"),
    request="2,0",
)
DIFFERING = replace(
    FIXED,
    rows=gpus(4, predicted=(2, 0), actual=(0, 1)),
    variables=variables("2,0"),
    start=Start(4, 1, "torch.cuda.is_available()"),
    evidence=Evidence.OTHERWISE,
    way_out="for what the variables say type %gpu_select 2,0 --restart",
)
FREE = replace(
    SELECTED,
    rows=gpus(
        8,
        predicted=(0,),
        whys={
            0: "80.0 GiB free, no processes, 0 % busy",
            1: "75.0 GiB free, no processes, 5 % busy; free as well",
            2: "2 processes on it",
            3: "3 processes on it; 15.0 of 80.0 GiB in use",
            4: "claimed by pid 4242 of user 1000",
            5: "55.0 GiB free, 60.0 GiB asked for",
            6: "its compute mode forbids CUDA",
            7: "outside of what this kernel was given",
        },
    ),
    variables=variables("0"),
    request="free --min-free 60GiB",
)
REFUSED = replace(
    OPEN,
    action=Action.REFUSED,
    rows=gpus(
        4,
        predicted=(0, 1, 2, 3),
        whys={
            0: "80.0 GiB free, no processes, 0 % busy; free as well",
            1: "claimed by pid 4242 of user 1000",
            2: "70.0 GiB free, 75.0 GiB asked for",
            3: "65.0 GiB free, 75.0 GiB asked for",
        },
    ),
    request="free -n 2 --min-free 75GiB",
)
LATE = replace(
    FIXED,
    action=Action.REFUSED,
    start=Start(3, 1, "import kornia"),
    request="3",
)
IN_VAIN = replace(
    OPEN,
    verdict=Verdict.FIXED_FOR_TORCH,
    driver=CudaState(Initialisation.FAILED, code=3, library=LIBRARY),
    torch=TorchLook.IN_VAIN,
    start=Start(2, 1, "torch.cuda.is_available()"),
    rows=gpus(4, predicted=(0,)),
    variables=variables("0", start=""),
)
LOST = replace(
    OPEN,
    verdict=Verdict.LOST,
    driver=CudaState(Initialisation.FORKED_CHILD, code=3, library=LIBRARY),
    torch=TorchLook.FOUND,
)
NOTHING = replace(
    OPEN,
    verdict=Verdict.NOTHING,
    rows=(),
    driver=NOT_LOADED,
    torch=TorchLook.NONE,
)
SLURM = replace(
    OPEN,
    rows=gpus(8, predicted=(4, 5)),
    variables=variables("4,5", start="4,5"),
    remarks=(
        Remark(
            "note",
            "this process was started with CUDA_VISIBLE_DEVICES=4,5, by Slurm (job "
            "4711): that is what there is to choose from",
            "add --force to a choice to go beyond it",
        ),
    ),
)
SLICED = replace(
    SELECTED,
    rows=(
        *gpus(2),
        *(
            gpu(
                2,
                uuid=f"MIG-{letter * 8}-1111-5111-8111-0123456789ab",
                label=f"slice {'abc'.index(letter)} of GPU 2",
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
    request="MIG-bbbb",
)
NASTY = replace(
    FIXED,
    rows=(
        gpu(0, name=HOSTILE, uuid=HOSTILE, actual=0, why=HOSTILE),
        gpu(1, pci_address=HOSTILE),
    ),
    variables=variables(HOSTILE, start=HOSTILE * 3),
    driver=replace(STARTED, library=HOSTILE),
    start=Start(4, 2, HOSTILE),
    remarks=(Remark("warning", HOSTILE, HOSTILE),),
    evidence=Evidence.OTHERWISE,
    way_out="for what the variables say type %gpu_select 0 --restart",
    request=HOSTILE,
)

SAMPLES = (
    ("fixed", FIXED),
    ("fixed-for-torch", IN_VAIN),
    ("lost-in-a-fork", LOST),
    ("nothing", NOTHING),
    ("selected", SELECTED),
    ("free", FREE),
    ("free-refused", REFUSED),
    ("too-late", LATE),
    ("mig-slice", SLICED),
    ("slurm", SLURM),
    (
        "sixteen-gpus",
        replace(
            OPEN,
            rows=gpus(16, predicted=tuple(range(16))),
        ),
    ),
    ("hostile", NASTY),
)
