"""Whether this torch is one for this driver, these GPUs, and for us."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpumagic.gpu_doctor.gpus import answering, in_words
from gpumagic.gpu_doctor.report import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Gpu
    from gpumagic.devices.torch_build import TorchBuild
    from gpumagic.gpu_doctor.report import Facts

_GET_TORCH = "https://pytorch.org/get-started/locally"
_OLDEST_TORCH = (2, 4)
# What the tests were run on, oldest first; `make torches` runs them.
TESTED = ("2.4.0", "2.13.0", "2.14.1")
# CUDA 13 compiles for Turing and newer; GPUs before it have the builds for 12.6 left.
_DROPPED_OLD, _OLDEST_CAPABILITY, _LAST_FOR_OLD = 13, (7, 5), "12.6"


def check_torch(facts: Facts) -> Iterator[Finding]:
    """Whether torch is here, and whether it goes with driver and GPUs."""
    torch = facts.torch
    if torch is None:
        verdict = Verdict.PROBLEM if facts.inventory.gpus else Verdict.WARNING
        yield Finding("torch", "not installed", verdict, f"install it: {_GET_TORCH}")
    elif torch.hidden_by is not None:
        found, hint = f"hidden by the file {torch.hidden_by}", "rename that file"
        yield Finding("torch", found, Verdict.PROBLEM, hint)
    else:
        yield _fit(torch, facts)


def _fit(torch: TorchBuild, facts: Facts) -> Finding:
    """Whether this build of torch goes with the driver and with us."""
    driver = facts.inventory.cuda_version
    found = f"{torch.version}, {built_for(torch)}"
    if facts.simulated:  # any build runs on it
        return _tested(torch, f"{found}; it runs on the simulated GPU")
    if facts.inventory.gpus and torch.cuda is None:
        up_to = f" (this driver runs CUDA up to {driver})" if driver else ""
        hint = f"install a build for CUDA: {_GET_TORCH}{up_to}"
        found += ", so it cannot use the GPU"
        return Finding("torch", found, Verdict.PROBLEM, hint)
    if (
        torch.cuda
        and driver
        and version_numbers(torch.cuda)[0] > version_numbers(driver)[0]
    ):
        found += f", but this driver only runs CUDA up to {driver}"
        newest = version_numbers(driver)[0]
        hint = f"update the driver, or install a torch built for CUDA {newest}"
        return Finding("torch", found, Verdict.PROBLEM, hint)
    if too_old := _without_kernels(torch, facts):
        words = f"{in_words(too_old)} {'is' if len(too_old) == 1 else 'are'}"
        found += f", for which {words} too old"
        hint = f"install a torch built for CUDA {_LAST_FOR_OLD}: {_GET_TORCH}"
        others = len(too_old) < len(answering(facts))
        verdict = Verdict.WARNING if others else Verdict.PROBLEM
        return Finding("torch", found, verdict, hint)
    if () < version_numbers(torch.version) < _OLDEST_TORCH:  # () is an unknown version
        hint = "gpumagic is made for torch 2.4 and newer: update torch"
        return Finding("torch", found, Verdict.WARNING, hint)
    return _tested(torch, found)


def _tested(torch: TorchBuild, found: str) -> Finding:
    """Nothing speaks against it; whether we have ever seen one as new is said."""
    tested = f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"
    if version_numbers(torch.version) <= version_numbers(TESTED[-1]):
        found += f"; gpumagic is tested with {tested}"
        return Finding("torch", found, Verdict.OK)
    hint = f"gpumagic has not been tested with it, but with {tested}"
    return Finding("torch", found, Verdict.NOTE, hint)


def _without_kernels(torch: TorchBuild, facts: Facts) -> list[Gpu]:
    """The GPUs that CUDA 13 and newer compile nothing for any more."""
    if not torch.cuda or version_numbers(torch.cuda)[0] < _DROPPED_OLD:
        return []
    return [
        gpu
        for gpu in answering(facts)
        if gpu.compute_capability is not None
        and gpu.compute_capability < _OLDEST_CAPABILITY
    ]


def built_for(torch: TorchBuild) -> str:
    """The accelerators that a build knows."""
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("Intel GPUs", torch.xpu))
    built = [f"{kind} {version}" for kind, version in kinds if version]
    return f"built for {' and '.join(built)}" if built else "built without CUDA"


def version_numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, for comparing."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
