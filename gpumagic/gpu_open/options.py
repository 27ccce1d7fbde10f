"""What may stand behind `%gpu_open`, checked before a file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_bytes

if TYPE_CHECKING:
    import argparse

DEFAULT = "default"  # torch's own settings, as a word


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is wanted of recordings."""

    # whether two traces are two runs of the same code, though their ranks differ
    compare: bool = False
    replay: bool = False  # whether the requests of a snapshot are to be served again
    # under which settings, as PYTORCH_CUDA_ALLOC_CONF would say them; with none,
    # under those that most often help
    settings: tuple[str, ...] = ()
    memory_bytes: int | None = None  # how much memory the device is to have then
    fit_bytes: int | None = None  # what is asked whether it would have fitted

    @property
    def for_snapshots(self) -> str:
        """The first option that asks of a snapshot, as it is typed; "" for none."""
        asked = {
            "--replay": self.replay,
            "--setting": self.settings,
            "--fit": self.fit_bytes,
            "--memory": self.memory_bytes,
        }
        return next((option for option, value in asked.items() if value), "")


def options_of(typed: argparse.Namespace) -> Options:
    """What was typed, unless it does not belong together: then it is refused."""
    options = Options(
        compare=typed.compare,
        replay=typed.replay or bool(typed.setting),
        settings=tuple("" if each == DEFAULT else each for each in typed.setting or ()),
        memory_bytes=_size("--memory", typed.memory),
        fit_bytes=_size("--fit", typed.fit),
    )
    if options.compare and options.for_snapshots:
        raise UsageProblem(
            f"--compare is for traces, {options.for_snapshots} for memory snapshots",
            "leave one of them out",
        )
    if options.memory_bytes and not (options.replay or options.fit_bytes):
        raise UsageProblem(
            "--memory alone changes nothing",
            "add --replay, to see how the recording would have run with it",
        )
    return options


def _size(option: str, text: str | None) -> int | None:
    nbytes = None if text is None else parse_bytes(text)
    if nbytes == 0:
        raise UsageProblem(f"{option} {text} asks for no memory", f"type {option} 3GiB")
    return nbytes
