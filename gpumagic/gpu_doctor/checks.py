"""From facts to findings, a verdict on each: a small check for each topic."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Initialisation
from gpumagic.report.record import Record
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import CudaState, Gpu, Inventory
    from gpumagic.devices.torch_build import TorchBuild

_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_SIMULATE = "%gpu_select --simulate h100"

_GET_TORCH = "https://pytorch.org/get-started/locally"
_OLDEST_TORCH = (2, 4)
# What the tests were run on, oldest first; `make torches` runs them.
TESTED = ("2.4.0", "2.13.0", "2.14.1")
# CUDA 13 compiles for Turing and newer; GPUs before it have the builds for 12.6 left.
_DROPPED_OLD, _OLDEST_CAPABILITY, _LAST_FOR_OLD = 13, (7, 5), "12.6"


class Verdict(enum.Enum):
    """How a finding is to be taken, from best to worst."""

    OK = "ok"
    NOTE = "note"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Facts(Record):
    """What was seen, before any verdict."""

    python: str
    ipython: str | None
    front_end: str
    torch: TorchBuild  # without a version where none is installed
    inventory: Inventory
    cuda: CudaState
    environment: dict[str, str]  # the variables that steer CUDA, where set
    platform: str
    simulated: bool = False
    anew: str = ""  # what to type for GPU 0 of the same simulated machine once more
    mask_too_late: bool = False  # CUDA shows otherwise than the variables say now
    failure: str | None = None  # what a device in use has failed with, in its words


@dataclass(frozen=True)
class Finding(Record):
    """One line: what was found, how to take it, what to type next."""

    topic: str
    found: str
    verdict: Verdict
    next_step: str = ""


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Every check's finding; a check without anything to say yields nothing."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def hides_all(mask: str) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES leaves no GPU."""
    return mask.strip() in ("", "-1")


def _python(facts: Facts) -> Iterator[Finding]:
    yield Finding("Python", facts.python, Verdict.OK)
    yield Finding("IPython", facts.ipython or "not installed", Verdict.OK)
    yield Finding("Front end", facts.front_end, Verdict.OK)


def _torch(facts: Facts) -> Iterator[Finding]:
    """Whether torch is here, and whether it goes with driver and GPUs."""
    torch = facts.torch
    if not torch.version:
        verdict = Verdict.PROBLEM if facts.inventory.gpus else Verdict.WARNING
        yield Finding("torch", "not installed", verdict, f"install it: {_GET_TORCH}")
    elif torch.hidden_by:
        found, hint = f"hidden by the file {torch.hidden_by}", "rename that file"
        yield Finding("torch", found, Verdict.PROBLEM, hint)
    else:
        yield _fit(torch, facts)


def _fit(torch: TorchBuild, facts: Facts) -> Finding:
    """Whether this build of torch goes with the driver, the GPUs and us."""
    driver = facts.inventory.cuda_version
    built, runs = version_numbers(torch.cuda or ""), version_numbers(driver or "")
    found, verdict, hint = f"{torch.version}, {built_for(torch)}", Verdict.OK, ""
    old = [
        gpu
        for gpu in answering(facts)
        if built[:1] >= (_DROPPED_OLD,)
        and (gpu.compute_capability or _OLDEST_CAPABILITY) < _OLDEST_CAPABILITY
    ]
    if facts.simulated:  # any build runs on it
        found += "; it runs on the simulated GPU"
    elif facts.inventory.gpus and not built:
        up_to = f" (this driver runs CUDA up to {driver})" if driver else ""
        verdict = Verdict.PROBLEM
        hint = f"install a build for CUDA: {_GET_TORCH}{up_to}"
        found += ", so it cannot use the GPU"
    elif built and runs and built[0] > runs[0]:
        found += f", but this driver only runs CUDA up to {driver}"
        verdict = Verdict.PROBLEM
        hint = f"update the driver, or install a torch built for CUDA {runs[0]}"
    elif old:
        found += f", which has no kernels for {in_words(old)}"
        hint = f"install a torch built for CUDA {_LAST_FOR_OLD}: {_GET_TORCH}"
        others = len(old) < len(answering(facts))
        verdict = Verdict.WARNING if others else Verdict.PROBLEM
    elif () < version_numbers(torch.version) < _OLDEST_TORCH:  # () is unknown
        verdict, hint = Verdict.WARNING, "gpumagic is made for torch 2.4 and newer"
    elif version_numbers(torch.version) > version_numbers(TESTED[-1]):
        verdict, hint = (
            Verdict.NOTE,
            f"gpumagic is tested with torch up to {TESTED[-1]}",
        )
    return Finding("torch", found, verdict, hint)


def _driver(facts: Facts) -> Iterator[Finding]:
    inventory = facts.inventory
    if inventory.problem:
        verdict, hint = Verdict.PROBLEM, inventory.hint or ""
        if inventory.unasked:  # it may be fine, and pynvml is not
            verdict = Verdict.WARNING
        if inventory.absent:
            verdict = Verdict.NOTE
            hint = f"{hint}; for a simulated GPU: {_SIMULATE}".removeprefix("; ")
        yield Finding("NVIDIA driver", inventory.problem, verdict, hint)
        return
    found = inventory.driver_version or "unknown version"
    if inventory.cuda_version:
        found += f", runs CUDA up to {inventory.cuda_version}"
    yield Finding("NVIDIA driver", found, Verdict.OK)


def _cuda(facts: Facts) -> Iterator[Finding]:
    state, topic = facts.cuda.state, "CUDA in this process"
    if facts.failure:
        hint = f"restart the kernel; with {_BLOCKING}=1 the line that fails raises"
        yield Finding(topic, f"broken: {facts.failure}", Verdict.PROBLEM, hint)
        return
    yield {
        Initialisation.NOT_LOADED: Finding(
            topic, "not started (driver library not loaded)", Verdict.OK
        ),
        Initialisation.UNTOUCHED: Finding(
            topic, "not started (driver library loaded)", Verdict.OK
        ),
        Initialisation.INITIALISED: Finding(
            topic,
            f"started, {count_text(facts.cuda.device_count, 'GPU')} visible",
            Verdict.NOTE,
            _to_choose_again(facts),
        ),
        Initialisation.FORKED_CHILD: Finding(
            topic,
            "lost: this process was forked from one that had started CUDA",
            Verdict.PROBLEM,
            "start the process with the spawn method, or use CUDA only in the child",
        ),
        Initialisation.FAILED: Finding(
            topic,
            f"tried to start and failed (code {facts.cuda.code})",
            Verdict.PROBLEM,
            "fix the cause, then restart the kernel: torch remembers the failure",
        ),
        Initialisation.UNKNOWN: Finding(
            topic, "the driver library cannot be asked here", Verdict.UNKNOWN
        ),
    }[state]


def _to_choose_again(facts: Facts) -> str:
    """The way to other GPUs, where there are others."""
    if facts.simulated:
        return f"to choose again, for instance GPU 0: {facts.anew}"
    numbers = [gpu.index for gpu in answering(facts)]
    if len(numbers) < 2:
        return ""
    choice = f"%gpu_select {numbers[-1]} --restart"
    return f"to choose other GPUs: {choice}, with their numbers"


def _environment(facts: Facts) -> Iterator[Finding]:
    for name, value in facts.environment.items():
        if name == "CUDA_VISIBLE_DEVICES" and facts.mask_too_late:
            found = f"{value!r} came too late: CUDA had started, and shows other GPUs"
            hint = _to_choose_again(facts) or f"take it back: del os.environ[{name!r}]"
            yield Finding(name, found, Verdict.WARNING, hint)
        elif name == "CUDA_VISIBLE_DEVICES" and hides_all(value):
            hint = f"unset {name} before the kernel starts to see the GPUs"
            yield Finding(name, f"{value!r} hides every GPU", Verdict.WARNING, hint)
        elif name == _BLOCKING and value not in ("", "0") and not facts.simulated:
            hint = "unset it to measure times: every launch now waits for the GPU"
            yield Finding(name, value, Verdict.WARNING, hint)
        else:
            yield Finding(name, value or "set to nothing", Verdict.NOTE)


def _gpus(facts: Facts) -> Iterator[Finding]:
    gpus = answering(facts)
    # One GPU out of reach is no problem for who has others.
    verdict = Verdict.WARNING if gpus else Verdict.PROBLEM
    for gpu in facts.inventory.gpus:
        if gpu.problem:
            yield Finding(f"GPU {gpu.index}", gpu.problem, verdict, gpu.hint or "")
    if gpus:
        yield Finding("GPUs", in_words(gpus), Verdict.OK)
    elif not facts.inventory.gpus and not facts.inventory.problem:
        hint = "see that the GPUs are passed on to this machine or container"
        yield Finding("GPUs", "none, though the driver runs", Verdict.NOTE, hint)


def _surprises(facts: Facts) -> Iterator[Finding]:
    """GPUs that are numbered or used otherwise than one would think."""
    models = {gpu.name for gpu in answering(facts)}
    # CUDA numbers the fastest GPU first, NVML and nvidia-smi do not.
    if len(models) > 1 and facts.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        found = "the models differ, so cuda:0 need not be GPU 0 of nvidia-smi"
        hint = "choose by %gpu_select, or start with CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield Finding("GPU numbers", found, Verdict.NOTE, hint)
    for gpu in answering(facts):
        if gpu.mig_enabled:
            found = f"split by MIG, with {count_text(len(gpu.mig), 'slice')}"
            hint = "%gpu_select lists the slices: choose one by its UUID"
            yield Finding(f"GPU {gpu.index}", found, Verdict.NOTE, hint)
    for gpu in answering(facts):
        used, total = gpu.memory_used_bytes or 0, gpu.memory_total_bytes or 0
        if gpu.processes is None or (not gpu.processes and used > total / 20):
            found = "not listed by the driver: they may run outside here"
            hint = "judge by the memory in use whether a GPU is free"
            yield Finding("GPU processes", found, Verdict.NOTE, hint)
            return


def built_for(torch: TorchBuild) -> str:
    """The accelerators that a build knows."""
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("Intel GPUs", torch.xpu))
    built = [f"{kind} {version}" for kind, version in kinds if version]
    return f"built for {' and '.join(built)}" if built else "built without CUDA"


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, for comparing."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def answering(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs that the driver can reach."""
    return tuple(gpu for gpu in facts.inventory.gpus if not gpu.problem)


def in_words(gpus: Sequence[Gpu]) -> str:
    """How many GPUs, and of which models."""
    names = sorted({gpu.name or "unknown model" for gpu in gpus})
    return f"{count_text(len(gpus), 'GPU')} ({', '.join(names)})"


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _python,  # the ground everything stands on
    _torch,  # what most problems are about
    _driver,
    _cuda,  # the state that cannot be taken back
    _environment,
    _gpus,
    _surprises,
)
