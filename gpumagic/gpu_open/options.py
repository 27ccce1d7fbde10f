"""What may stand behind `%gpu_open`, checked before a file is opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    import argparse

_SETTING = re.compile(r"\w+:[\w.:,\[\]]+|default")
_SIZE = re.compile(r"[\d.]+ ?[a-zA-Z]+")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is wanted of recordings."""

    # whether two traces are two runs of the same code, though their ranks differ
    compare: bool = False
    replay: bool = False  # whether the requests of a snapshot are to be served again
    # under which setting, as PYTORCH_CUDA_ALLOC_CONF would say it; with none, under
    # those that most often help
    setting: str | None = None
    memory_bytes: int | None = None  # how much memory the device is to have then
    fit_bytes: int | None = None  # what is asked whether it would have fitted

    @property
    def for_snapshots(self) -> str:
        """The first option that asks of a snapshot, as it is typed; "" for none."""
        return "--replay" if self.replay else "--fit" if self.fit_bytes else ""


def options_of(typed: argparse.Namespace) -> Options:
    """What was typed, unless it does not belong together: then it is refused.

    `--replay` takes a setting or a size; another word behind it is a file.
    """
    under, setting, memory_bytes = typed.replay or "", None, None
    if _SETTING.fullmatch(under):
        setting = "" if under == "default" else under
    elif _SIZE.fullmatch(under):
        memory_bytes = _size("--replay", under)
    elif under:
        typed.files.append(under)
    fit, _, total = (typed.fit or "").partition("/")
    if total:
        memory_bytes = _size("--fit", total)
    options = Options(
        compare=typed.compare,
        replay=typed.replay is not None,
        setting=setting,
        memory_bytes=memory_bytes,
        fit_bytes=_size("--fit", fit) if fit else None,
    )
    if options.compare and options.for_snapshots:
        raise UsageProblem(
            f"--compare is for traces, {options.for_snapshots} for memory snapshots",
            "leave one of them out",
        )
    return options


def _size(option: str, text: str) -> int:
    try:
        nbytes = parse_bytes(text)
    except GpuMagicError as error:
        raise UsageProblem(f"{option}: {error.problem}", error.hint) from None
    if nbytes == 0:
        raise UsageProblem(f"{option} {text} asks for no memory", f"type {option} 3GiB")
    return nbytes
