"""Which torch is installed and what it was built for, without importing it."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from gpumagic.report.record import Record


@dataclass(frozen=True)
class TorchBuild(Record):
    """The torch that is installed, read from its files where it is not imported."""

    version: str
    cuda: str | None  # the CUDA it was built for
    hip: str | None  # the ROCm it was built for
    xpu: str | None  # the Intel GPU support it was built with
    imported: bool = False
    accelerator: str | None = None  # one beside CUDA that is there to be used
    hidden_by: str | None = None  # a file that Python would import in its place


def read_torch_build() -> TorchBuild | None:
    """The build, from torch's own version file: importing torch takes a second."""
    if torch := sys.modules.get("torch"):
        return _imported_build(torch)
    try:
        spec = util.find_spec("torch")
    except ValueError:  # somebody has put None or a stand-in in its place
        return None
    if not spec or not spec.origin:
        return None
    if not spec.submodule_search_locations:
        return TorchBuild("unknown version", None, None, None, hidden_by=spec.origin)
    said = _assignments(Path(spec.origin).with_name("version.py"))
    return TorchBuild(
        version=said.get("__version__") or "unknown version",
        cuda=said.get("cuda"),
        hip=said.get("hip"),
        xpu=said.get("xpu"),
    )


def _imported_build(torch: Any) -> TorchBuild:
    version = getattr(torch, "version", None)
    cuda = getattr(version, "cuda", None)
    return TorchBuild(
        version=str(getattr(torch, "__version__", "unknown version")),
        # While a simulated GPU stands in for CUDA, so does its version.
        cuda=None if getattr(cuda, "simulated", False) else cuda,
        hip=getattr(version, "hip", None),
        xpu=getattr(version, "xpu", None),
        imported=True,
        accelerator=_accelerator(torch),
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
    """An accelerator beside CUDA, as far as asking for it starts nothing."""
    if getattr(getattr(torch, "xpu", None), "is_initialized", bool)():
        return "xpu"
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    return "mps" if getattr(mps, "is_available", bool)() else None
