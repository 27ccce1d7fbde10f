"""Gathers what is there without changing it: no CUDA start, no import of torch."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import sys
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.frontend import front_end
from gpumagic.gpu_doctor.checks import findings_of, headline_of
from gpumagic.gpu_doctor.report import Change, DoctorReport, Facts, TorchBuild

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Driver

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
_PYNVML_SUPPLIERS = ("nvidia-ml-py", "pynvml", "nvidia-ml-py3")
_COMPILERS = ("cc", "gcc", "clang", "cl")


def examine(driver: Driver | None = None, shell: Any = None) -> DoctorReport:
    """Look at everything and say what fits together.

    Args:
        driver: What the machine has; this machine's own driver by default.

        shell: The IPython shell that asks, to name its front end.
    """
    facts = gather(driver, shell)
    findings = findings_of(facts)
    return DoctorReport(headline_of(facts, findings), findings, facts)


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
    return DoctorReport(_headline_of_change(changes), findings, after, changes)


def gather(driver: Driver | None = None, shell: Any = None) -> Facts:
    """The facts now."""
    driver = driver or _this_machine()
    return Facts(
        python=platform.python_version(),
        ipython=_version_of("ipython"),
        front_end=front_end(shell),
        torch=_torch_build(),
        inventory=driver.inventory(),
        cuda=driver.cuda_state(),
        environment={
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
        distributions=_pynvml_suppliers(),
        platform=f"{sys.platform} {platform.machine()}",
        compiler=next(filter(None, map(shutil.which, _COMPILERS)), None),
        simulated=driver.simulated,
    )


def _this_machine() -> Driver:
    from gpumagic.devices.nvidia import NvidiaDriver

    return NvidiaDriver()


def _pynvml_suppliers() -> dict[str, str]:
    found = {name: _version_of(name) for name in _PYNVML_SUPPLIERS}
    return {name: version for name, version in found.items() if version is not None}


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_build() -> TorchBuild | None:
    """The build from torch's own version file: importing torch takes a second."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    said = _assignments(Path(spec.origin).with_name("version.py"))
    return TorchBuild(
        version=said.get("__version__") or _version_of("torch") or "unknown version",
        cuda=said.get("cuda"),
        hip=said.get("hip"),
        xpu=said.get("xpu"),
        imported="torch" in sys.modules,
        accelerator=_accelerator(sys.modules.get("torch")),
    )


def _assignments(source: Path) -> dict[str, str]:
    """The string constants that a file assigns, without running it."""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    found = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(value)))
                | ast.AnnAssign(target=ast.Name(name), value=ast.Constant(str(value)))
            ):
                found[name] = value
    return found


def _accelerator(torch: Any) -> str | None:
    """The accelerator that an imported torch names; asking starts nothing."""
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    device = current() if current is not None else None
    return None if device is None else str(device.type)


def _changes(before: Facts, after: Facts) -> Iterator[Change]:
    pairs = (
        ("torch", _import_state(before), _import_state(after)),
        ("CUDA in this process", before.cuda.state.value, after.cuda.state.value),
        *(
            (name, before.environment.get(name, "unset"), _after(after, name))
            for name in _VARIABLES
        ),
    )
    for topic, was, now in pairs:
        if was != now:
            yield Change(topic, was, now)


def _after(facts: Facts, name: str) -> str:
    return facts.environment.get(name, "unset")


def _import_state(facts: Facts) -> str:
    if facts.torch is None:
        return "not installed"
    return "imported" if facts.torch.imported else "not imported"


def _headline_of_change(changes: tuple[Change, ...]) -> str:
    if not changes:
        return (
            "This cell changed nothing here: CUDA, torch and environment are as before."
        )
    said = (f"{each.topic} went from {each.before} to {each.after}" for each in changes)
    return f"With this cell, {'; '.join(said)}."
