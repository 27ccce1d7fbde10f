"""Reports written by hand: what `%gpu_doctor` looks like on machines we do not have."""

from __future__ import annotations

import dataclasses

from gpumagic.devices.protocols import (
    CudaState,
    Gpu,
    GpuProcess,
    Initialisation,
    Inventory,
)
from gpumagic.devices.torch_build import TorchBuild
from gpumagic.gpu_doctor.answer_doctor import DoctorReport
from gpumagic.gpu_doctor.api import compare, headline_of, words
from gpumagic.gpu_doctor.checks import Facts, findings_of

GIB = 2**30
NOT_STARTED = CudaState(Initialisation.UNTOUCHED, code=3)
TORCH = TorchBuild("2.11.0+cu130", cuda="13.0", hip=None, xpu=None)
H100 = Gpu(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-11111111-aaaa-4aaa-8aaa-111111111111",
    pci_address="0000:18:00.0",
    memory_total_bytes=80 * GIB,
    memory_free_bytes=60 * GIB,
    memory_used_bytes=20 * GIB,
    memory_reserved_bytes=0,
    utilisation_share=0.37,
    temperature_c=41,
    power_w=123.4,
    compute_capability=(9, 0),
    compute_mode="default",
    processes=(GpuProcess(4242, 19 * GIB, "compute"),),
    mig_enabled=False,
)
LAPTOP = Facts(
    python="3.11.7",
    ipython="9.18.1",
    front_end="JupyterLab or Notebook",
    torch=dataclasses.replace(TORCH, version="2.13.0+cpu", cuda=None),
    inventory=Inventory(
        absent=True,
        problem="there is no NVIDIA driver here",
        hint="install the driver if there is an NVIDIA GPU",
    ),
    cuda=CudaState(Initialisation.NOT_LOADED),
    environment={},
    platform="linux x86_64",
)
ONE_GPU = dataclasses.replace(
    LAPTOP,
    torch=TORCH,
    inventory=Inventory("580.65.06", "13.0", "13.580.65.06", (H100,)),
    cuda=NOT_STARTED,
)


def on(facts: Facts, **changes: object) -> Facts:
    """The same machine with some facts changed."""
    return dataclasses.replace(facts, **changes)


def with_gpus(facts: Facts, *gpus: Gpu) -> Facts:
    """The same machine with other GPUs in it."""
    return on(facts, inventory=dataclasses.replace(facts.inventory, gpus=gpus))


def report(facts: Facts) -> DoctorReport:
    """The examination that these facts lead to."""
    findings = findings_of(facts)
    return DoctorReport(headline_of(facts, findings), findings, facts)


EIGHT = with_gpus(
    ONE_GPU,
    *(
        dataclasses.replace(
            H100,
            index=index,
            pci_address=f"0000:{16 * index + 24:02x}:00.0",
            memory_used_bytes=index * 11 * GIB,
            memory_free_bytes=(80 - index * 11) * GIB,
            utilisation_share=index / 8,
            processes=(GpuProcess(100 + index, None, "compute"),) * min(index, 3),
        )
        for index in range(8)
    ),
)
MIXED = with_gpus(
    ONE_GPU,
    dataclasses.replace(H100, index=0, name="NVIDIA RTX A6000"),
    dataclasses.replace(H100, index=1, name="<script>alert('gpu')</script>"),
    Gpu(2, problem="this user may not use this GPU", hint="ask for access"),
)
FAILED = on(
    ONE_GPU,
    torch=dataclasses.replace(TORCH, imported=True, accelerator="cuda"),
    cuda=CudaState(Initialisation.INITIALISED, code=0, device_count=1),
    failure="CUDA error: device-side assert triggered",
)

SAMPLES = (
    ("laptop", report(LAPTOP)),
    ("eight-gpus", report(EIGHT)),
    ("mixed-and-out-of-reach", report(MIXED)),
    ("torch-without-cuda", report(on(ONE_GPU, torch=LAPTOP.torch))),
    (
        "everything-wrong",
        report(
            on(
                LAPTOP,
                ipython=None,
                torch=TorchBuild("", None, None, None),
                inventory=Inventory(
                    problem="the NVIDIA library and the kernel module differ",
                    hint="reboot",
                ),
                cuda=CudaState(Initialisation.FAILED, code=3),
                environment={"CUDA_VISIBLE_DEVICES": "", "CUDA_LAUNCH_BLOCKING": "1"},
            )
        ),
    ),
    (
        "cell-that-started-cuda",
        compare(
            ONE_GPU,
            on(
                ONE_GPU,
                torch=dataclasses.replace(TORCH, imported=True, accelerator="cuda"),
                cuda=CudaState(Initialisation.INITIALISED, code=0, device_count=1),
                environment={"CUDA_VISIBLE_DEVICES": "0"},
            ),
        ),
    ),
    ("device-that-has-failed", report(FAILED)),
    ("simulated", report(on(ONE_GPU, simulated=True))),
    ("words", words()),
    ("word", words("launch")),
)
