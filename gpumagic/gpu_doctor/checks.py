"""From facts to findings: one small check for each topic, in the order shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Gpu, Initialisation
from gpumagic.gpu_doctor.report import Finding, Verdict
from gpumagic.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.gpu_doctor.report import Facts, TorchBuild

_GET_TORCH = "https://pytorch.org/get-started/locally"
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 14)


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Every check's finding; a check without anything to say yields nothing."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def headline_of(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """The answer: can this process use a GPU, and if not, why not."""
    problems = [each for each in findings if each.verdict is Verdict.PROBLEM]
    if problems:
        return f"{problems[0].topic}: {problems[0].found}."
    if answering := _answering(facts):
        return f"Ready: {_in_words(answering)}. {_CHOICE[facts.cuda.state]}"
    accelerator = facts.torch.accelerator if facts.torch else None
    if accelerator not in (None, "cuda"):
        return f"Ready: torch can use the accelerator {accelerator!r}."
    return "No GPU here: work runs on the CPU."


_CHOICE = {
    Initialisation.NOT_LOADED: "CUDA has not started: you can still choose.",
    Initialisation.UNTOUCHED: "CUDA has not started: you can still choose.",
    Initialisation.INITIALISED: "CUDA has started: the choice of GPUs is fixed.",
    Initialisation.FORKED_CHILD: "CUDA was lost in a fork.",
    Initialisation.FAILED: "CUDA could not start.",
    Initialisation.UNKNOWN: "Whether CUDA has started cannot be told here.",
}


def _answering(facts: Facts) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in facts.inventory.gpus if gpu.problem is None)


def _in_words(gpus: tuple[Gpu, ...]) -> str:
    names = sorted({gpu.name or "unknown model" for gpu in gpus})
    return f"{count_text(len(gpus), 'GPU')} ({', '.join(names)})"


def _python(facts: Facts) -> Iterator[Finding]:
    version = tuple(int(part) for part in facts.python.split(".")[:2])
    if version < _OLDEST_PYTHON:
        hint = "use Python 3.11 or newer"
        yield Finding("Python", facts.python, Verdict.WARNING, hint)
    elif version > _NEWEST_PYTHON:
        hint = "gpumagic has not been tested with it"
        yield Finding("Python", facts.python, Verdict.NOTE, hint)
    else:
        yield Finding("Python", facts.python, Verdict.OK)


def _ipython(facts: Facts) -> Iterator[Finding]:
    if facts.ipython is None:
        yield Finding(
            "IPython", "not installed", Verdict.WARNING, "pip install ipython"
        )
    else:
        yield Finding("IPython", facts.ipython, Verdict.OK)
    yield Finding("Front end", facts.front_end, Verdict.OK)


def _torch(facts: Facts) -> Iterator[Finding]:
    torch, driver = facts.torch, facts.inventory.cuda_version
    if torch is None:
        verdict = Verdict.PROBLEM if facts.inventory.gpus else Verdict.WARNING
        yield Finding("torch", "not installed", verdict, f"install it: {_GET_TORCH}")
        return
    found = f"{torch.version}, {_built_for(torch)}"
    if facts.inventory.gpus and torch.cuda is None:
        up_to = f" (this driver runs CUDA up to {driver})" if driver else ""
        hint = f"install a build for CUDA: {_GET_TORCH}{up_to}"
        found += ", so it cannot use the GPU"
        yield Finding("torch", found, Verdict.PROBLEM, hint)
    elif _major(torch.cuda) > (_major(driver) or _major(torch.cuda)):
        found += f", but this driver only runs CUDA up to {driver}"
        hint = f"update the driver, or install a torch built for CUDA {_major(driver)}"
        yield Finding("torch", found, Verdict.PROBLEM, hint)
    else:
        yield Finding("torch", found, Verdict.OK)


def _built_for(torch: TorchBuild) -> str:
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("Intel GPUs,", torch.xpu))
    built = [f"{kind} {version}" for kind, version in kinds if version]
    return f"built for {' and '.join(built)}" if built else "built without CUDA"


def _major(version: str | None) -> int:
    return int(version.split(".")[0]) if version else 0


def _driver(facts: Facts) -> Iterator[Finding]:
    inventory = facts.inventory
    if inventory.problem is not None:
        absent = inventory.absent
        verdict = Verdict.NOTE if absent else Verdict.PROBLEM
        hint = inventory.hint or ""
        yield Finding("NVIDIA driver", inventory.problem, verdict, hint)
        return
    found = f"{inventory.driver_version or 'unknown version'}"
    if inventory.cuda_version:
        found += f", runs CUDA up to {inventory.cuda_version}"
    yield Finding("NVIDIA driver", found, Verdict.OK)


def _nvml(facts: Facts) -> Iterator[Finding]:
    supplier = facts.distributions.get("nvidia-ml-py")
    strays = sorted(set(facts.distributions) - {"nvidia-ml-py"})
    found = f"nvidia-ml-py {supplier}" if supplier else "nvidia-ml-py is not installed"
    if facts.inventory.nvml_version:
        found += f", NVML {facts.inventory.nvml_version}"
    if strays:
        names = " ".join(strays)
        found += f"; deprecated beside it: {names}"
        hint = f"pip uninstall {names}, then pip install --force-reinstall nvidia-ml-py"
        yield Finding("NVML for Python", found, Verdict.WARNING, hint)
    elif supplier is None:
        hint = "pip install nvidia-ml-py"
        yield Finding("NVML for Python", found, Verdict.WARNING, hint)
    else:
        yield Finding("NVML for Python", found, Verdict.OK)


def _cuda(facts: Facts) -> Iterator[Finding]:
    state, topic = facts.cuda.state, "CUDA in this process"
    yield {
        Initialisation.NOT_LOADED: Finding(
            topic, "not started (driver library not loaded)", Verdict.OK
        ),
        Initialisation.UNTOUCHED: Finding(
            topic, "not started (driver library loaded, cuInit not called)", Verdict.OK
        ),
        Initialisation.INITIALISED: Finding(
            topic,
            f"started, {count_text(facts.cuda.device_count, 'GPU')} visible",
            Verdict.NOTE,
            "to choose other GPUs, restart the kernel first",
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
            "mend the cause below, then restart the kernel: torch remembers it",
        ),
        Initialisation.UNKNOWN: Finding(
            topic, "the driver library cannot be asked here", Verdict.UNKNOWN
        ),
    }[state]


def _environment(facts: Facts) -> Iterator[Finding]:
    for name, value in facts.environment.items():
        if name == "CUDA_VISIBLE_DEVICES" and value.strip() in ("", "-1"):
            hint = f"unset {name} before the kernel starts to see the GPUs"
            yield Finding(name, f"{value!r} hides every GPU", Verdict.WARNING, hint)
        elif name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
            hint = "unset it to measure times: every launch now waits for the GPU"
            yield Finding(name, value, Verdict.WARNING, hint)
        else:
            yield Finding(name, value, Verdict.NOTE)


def _gpus(facts: Facts) -> Iterator[Finding]:
    answering = _answering(facts)
    # One GPU out of reach is no problem for who has others.
    verdict = Verdict.WARNING if answering else Verdict.PROBLEM
    for gpu in facts.inventory.gpus:
        if gpu.problem is not None:
            yield Finding(f"GPU {gpu.index}", gpu.problem, verdict, gpu.hint or "")
    if answering:
        yield Finding("GPUs", _in_words(answering), Verdict.OK)
    if any(gpu.memory_total_bytes is None for gpu in answering):
        found = "not told by the driver: the GPU may share the memory of the host"
        hint = "watch the free memory of the machine instead"
        yield Finding("GPU memory", found, Verdict.NOTE, hint)
    if any(gpu.processes is None for gpu in answering):
        found = "not listed by the driver here (as under WSL)"
        hint = "judge by the memory in use whether a GPU is free"
        yield Finding("GPU processes", found, Verdict.NOTE, hint)


def _accelerators(facts: Facts) -> Iterator[Finding]:
    topic, torch = "Other accelerators", facts.torch
    if torch is None:
        yield Finding(topic, "unknown without torch", Verdict.UNKNOWN)
    elif torch.imported:
        other = torch.accelerator if torch.accelerator != "cuda" else None
        yield Finding(topic, other or "none", Verdict.OK)
    elif facts.platform == "darwin arm64":
        yield Finding(topic, "the Apple GPU (mps)", Verdict.OK)
    elif torch.hip or torch.xpu:
        found = "this torch is built for them; only torch itself can tell"
        hint = "import torch, then look again"
        yield Finding(topic, found, Verdict.UNKNOWN, hint)
    else:
        yield Finding(topic, "none that this build of torch could use", Verdict.OK)


def _compiler(facts: Facts) -> Iterator[Finding]:
    if facts.compiler is not None:
        yield Finding("C compiler", facts.compiler, Verdict.OK)
    else:
        found = "none; torch.compile, triton and gpumagic's own tests need one"
        yield Finding("C compiler", found, Verdict.NOTE, "install gcc")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _python,  # the ground everything stands on
    _ipython,
    _torch,  # what most problems are about
    _driver,
    _nvml,
    _cuda,  # the state that cannot be taken back
    _environment,
    _gpus,
    _accelerators,
    _compiler,  # only developers need it
)
