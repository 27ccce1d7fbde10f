"""The answer in a sentence: can this process use a GPU, and if not, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Initialisation
from gpumagic.gpu_doctor.checks import hides_all
from gpumagic.gpu_doctor.gpus import answering, in_words
from gpumagic.gpu_doctor.report import Verdict
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Gpu
    from gpumagic.devices.torch_build import TorchBuild
    from gpumagic.gpu_doctor.report import Change, Facts, Finding


_READ = "CUDA_"  # the variables that CUDA reads, and no topic besides
_TOO_LATE = " Too late to count: CUDA had started before, and reads them at its start."


def headline_of(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """The first problem; without one, what there is to work with."""
    problems = [each for each in findings if each.verdict is Verdict.PROBLEM]
    if problems:
        return f"{problems[0].topic}: {problems[0].found}."
    if gpus := answering(facts):
        return _with_gpus(facts, gpus)
    if facts.cuda.state is Initialisation.INITIALISED:
        seen = count_text(facts.cuda.device_count, "GPU")
        return f"Ready: CUDA has started with {seen}, of which NVML tells nothing."
    return _without_nvidia(facts)


def headline_of_changes(
    changes: tuple[Change, ...], *, cuda_had_started: bool = False
) -> str:
    """What is different after a stretch of code.

    Args:
        changes: All of it.

        cuda_had_started: Whether CUDA was running before, which reads its variables
            once, at its start.
    """
    if not changes:
        return (
            "Nothing changed: CUDA, torch and the variables that steer CUDA are as "
            "before."
        )
    said = (f"{each.topic} went from {each.before} to {each.after}" for each in changes)
    late = cuda_had_started and any(each.topic.startswith(_READ) for each in changes)
    return f"Changed: {'; '.join(said)}.{_TOO_LATE if late else ''}"


def _with_gpus(facts: Facts, gpus: tuple[Gpu, ...]) -> str:
    if facts.cuda.state is Initialisation.INITIALISED:
        seen = facts.cuda.device_count
        of_all = f"{seen} of {in_words(gpus)}" if seen != len(gpus) else in_words(gpus)
        fixed = "CUDA has started: the choice of GPUs is fixed"
        late = ", and CUDA_VISIBLE_DEVICES came too late" if facts.mask_too_late else ""
        return f"Ready: {of_all}. {fixed}{late}."
    mask = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return f"Ready: {in_words(gpus)}. CUDA has not started: you can still choose."
    if hides_all(mask):
        return f"{in_words(gpus)}, all hidden by CUDA_VISIBLE_DEVICES={mask!r}."
    return (
        f"Ready: {in_words(gpus)}. CUDA has not started: it will see those that "
        f"CUDA_VISIBLE_DEVICES={mask!r} allows."
    )


def _without_nvidia(facts: Facts) -> str:
    torch = facts.torch
    if torch is not None and torch.accelerator is not None:
        return f"Ready: torch can use the accelerator {torch.accelerator!r}."
    if torch is not None and facts.platform == "darwin arm64":
        return "Ready: the Apple GPU, which torch calls 'mps'."
    if maker := _other_maker(torch):
        return f"No NVIDIA GPU here. Only torch can tell whether a GPU of {maker} is."
    return "No GPU here: work runs on the CPU."


def _other_maker(torch: TorchBuild | None) -> str | None:
    if torch is None:
        return None
    return "AMD" if torch.hip else "Intel" if torch.xpu else None
