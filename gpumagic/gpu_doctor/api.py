"""Examines what is there, changing nothing: no CUDA start, no import of torch."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gpumagic.devices.now import failure
from gpumagic.devices.nvidia import open_driver
from gpumagic.devices.nvml import same_uuid
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.protocols import Initialisation
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_build import TorchBuild, read_torch_build
from gpumagic.devices.visibility import seen_under
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_doctor.answer_doctor import (
    Change,
    DoctorReport,
    Term,
    WordsReport,
)
from gpumagic.gpu_doctor.checks import (
    Facts,
    Verdict,
    answering,
    findings_of,
    hides_all,
    in_words,
)
from gpumagic.report import words as words_of_reports
from gpumagic.report.frontend import front_end, running_shell
from gpumagic.report.units import count_text, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Driver, Gpu, Inventory
    from gpumagic.gpu_doctor.checks import Finding

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
_TOO_LATE = "Too late to count: CUDA had started before, and reads them at its start."
_CUDA_HERE, _STARTED = "CUDA in this process", "started"


def examine(driver: Driver | None = None, shell: Any = None) -> DoctorReport:
    """Look at everything and say what fits together.

    Args:
        driver: What the machine has; this machine's own driver by default.

        shell: The IPython shell that asks; by default the one that runs, if any.
    """
    facts = gather(driver, shell)
    findings = findings_of(facts)
    return DoctorReport(headline_of(facts, findings), findings, facts)


def words(asked: str = "") -> WordsReport:
    """What a term of the reports means; without one, all of them.

    Args:
        asked: A term, a part of one, or one of the groups.

    Raises:
        GpuMagicError: There is no such term.
    """
    terms = tuple(Term(*each) for each in words_of_reports.find(asked))
    if not terms:
        near = words_of_reports.nearest(asked)
        raise GpuMagicError(
            f"the reports have no term {asked!r}",
            f"did you mean {' or '.join(near)}?"
            if near
            else "all of them: %gpu_doctor words",
        )
    return WordsReport(asked, terms)


class Watch:
    """What a stretch of code changed; filled when the `with` block ends."""

    report: DoctorReport | None = None


@contextmanager
def watch(driver: Driver | None = None, shell: Any = None) -> Iterator[Watch]:
    """Examine what a `with` block changes; `.report` is there after it."""
    watched, before = Watch(), gather(driver, shell)
    try:
        yield watched
    finally:
        watched.report = compare(before, gather(driver, shell))


def compare(before: Facts, after: Facts) -> DoctorReport:
    """A report on what is different between two moments."""
    findings = findings_of(after)
    changes = tuple(_changes(before, after))
    late = before.cuda.state is Initialisation.INITIALISED
    headline = headline_of_changes(changes, cuda_had_started=late)
    return DoctorReport(headline, findings, after, changes)


def gather(driver: Driver | None = None, shell: Any = None) -> Facts:
    """The facts now."""
    driver, box = driver or open_driver(), simulated_box()
    inventory, cuda = driver.inventory(), driver.cuda_state()
    return Facts(
        python=platform.python_version(),
        ipython=_version_of("ipython"),
        front_end=front_end(shell or running_shell()),
        torch=read_torch_build() or TorchBuild("", None, None, None),
        inventory=inventory,
        cuda=cuda,
        environment={
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
        platform=f"{sys.platform} {platform.machine()}",
        simulated=driver.simulated,
        anew=box.anew("0") if driver.simulated and box else "",
        mask_too_late=_mask_is_too_late(driver, inventory),
        failure=failure(runtime_now())
        if cuda.state is Initialisation.INITIALISED
        else None,
    )


def _mask_is_too_late(driver: Driver, inventory: Inventory) -> bool:
    """Whether CUDA shows other GPUs than those that the variables name now."""
    shown, mask = driver.visible_devices(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not shown or driver.overlooks(mask):
        return False
    order = os.environ.get("CUDA_DEVICE_ORDER")
    mps = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    seen = seen_under(mask, order, inventory, mps=mps)
    unknown = None in (*seen.uuids, *(each.uuid for each in shown))
    of_old_slices = any("/" in (uuid or "") for uuid in seen.uuids)  # not their own
    if not seen.certain or unknown or of_old_slices:
        return False
    return len(seen.uuids) != len(shown) or not all(
        same_uuid(uuid, each.uuid) for uuid, each in zip(seen.uuids, shown, strict=True)
    )


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _changes(before: Facts, after: Facts) -> Iterator[Change]:
    was, now = _states(before), _states(after)
    for topic in ("torch", _CUDA_HERE, *_VARIABLES):
        pair = was.get(topic, "unset"), now.get(topic, "unset")
        if pair[0] != pair[1]:
            yield Change(topic, *pair)


def _states(facts: Facts) -> dict[str, str]:
    """What a cell may change, in words; loading a library is no change."""
    words = {
        Initialisation.INITIALISED: _STARTED,
        Initialisation.FORKED_CHILD: "lost in a fork",
        Initialisation.FAILED: "failed",
        Initialisation.UNKNOWN: "unknown",
    }
    state = words.get(facts.cuda.state, "not started")
    return {
        "torch": {True: "imported", False: "not imported"}[facts.torch.imported],
        _CUDA_HERE: "broken" if facts.failure else state,
        **{name: repr(value) for name, value in facts.environment.items()},
    }


# ------------------------------------------------------------- in a sentence


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
    """What is different after a stretch of code."""
    said, start = [], (_CUDA_HERE, _STARTED)
    others = [each for each in changes if (each.topic, each.after) != start]
    if len(others) < len(changes):
        said.append("CUDA was started: the choice of GPUs is fixed from here on.")
    if others:
        said.append(f"Changed: {listed([each.told for each in others])}.")
    if cuda_had_started and any(each.topic in _VARIABLES for each in others):
        said.append(_TOO_LATE)
    return " ".join(said) or (
        "Nothing changed: CUDA, torch and the variables that steer CUDA are as before."
    )


def _with_gpus(facts: Facts, gpus: tuple[Gpu, ...]) -> str:
    if facts.cuda.state is Initialisation.INITIALISED:
        seen = f"{facts.cuda.device_count} of {in_words(gpus)}"
        seen = seen.removeprefix(f"{len(gpus)} of ")
        fixed = "CUDA has started: the choice of GPUs is fixed"
        if facts.mask_too_late:
            fixed += ", and CUDA_VISIBLE_DEVICES came too late"
        return f"Ready: {seen}. {fixed}."
    if "CUDA_VISIBLE_DEVICES" not in facts.environment:
        return f"Ready: {in_words(gpus)}. CUDA has not started: you can still choose."
    mask = facts.environment["CUDA_VISIBLE_DEVICES"]
    if hides_all(mask):
        return f"{in_words(gpus)}, all hidden by CUDA_VISIBLE_DEVICES={mask!r}."
    return (
        f"Ready: {in_words(gpus)}. CUDA has not started: it will see those that "
        f"CUDA_VISIBLE_DEVICES={mask!r} allows."
    )


def _without_nvidia(facts: Facts) -> str:
    torch = facts.torch
    if torch.accelerator:
        return f"Ready: torch can use the accelerator {torch.accelerator!r}."
    if torch.version and facts.platform == "darwin arm64":
        return "Ready: the Apple GPU, which torch calls 'mps'."
    if torch.hip or torch.xpu:
        return "No NVIDIA GPU here; of others only torch can tell, once it is started."
    return "No GPU here: work runs on the CPU."
