"""What is asked of a loader, by a line of options or as a function's arguments."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of a loader: the one list that line, functions and stages share.

    Attributes:
        name: What the user calls the loader.

        out: The name of the new loader; None where NAME itself is to be replaced, or
            where nothing is made.

        device: Where batches go; None is the current device of the best kind.

        workers: How many, "auto" to find out, None to leave them.

        prefetch: How many batches each worker prepares ahead.

        depth: How many batches are copied ahead.

        step: The function that the loop calls with a batch.

        batches: How many are timed.

        budget_s: About how long all of it may take.

        diagnose: Look and predict: nothing is made, and no device is started.

        verify: Compare a whole epoch.

        profile: Trace how copies and kernels overlap.

        force: Go on where it is refused, or not worth it.
    """

    name: str | None = None
    out: str | None = None
    device: Any = None
    workers: int | str | None = None
    prefetch: int | None = None
    depth: int = 1
    step: Callable[[Any], object] | None = None
    batches: int | None = None
    budget_s: float = 10.0
    diagnose: bool = False
    verify: bool = False
    profile: bool = True
    force: bool = False

    @classmethod
    def of(cls, line: argparse.Namespace) -> Options:
        """Read and check the options of a line with a name, but for its step.

        Raises:
            GpuMagicError: A value is malformed, or two of them contradict.
        """
        if not all(map(_is_name, line.name.split("."))):
            raise UsageProblem(
                f"%pin_loader needs a name, and {line.name} is an expression",
                f"give it a new one first: my_loader = {line.name}",
            )
        options = cls(
            name=line.name,
            out=_out(line),
            device=_device(line.device),
            workers=_workers(line.workers),
            prefetch=line.prefetch,
            depth=line.depth,
            batches=line.batches,
            budget_s=parse_seconds(line.budget),
            diagnose=line.diagnose,
            verify=line.verify,
            profile=not line.no_profile,
            force=line.force,
        )
        options._check()
        return options

    def _check(self) -> None:
        least = (
            ("--prefetch", self.prefetch, 1),
            ("--depth", self.depth, 0),
            ("--batches", self.batches, 2),
        )
        for option, value, fewest in least:
            if value is not None and value < fewest:
                raise _problem(f"{option} {value} is too few", f"{option} {fewest}")
        if self.budget_s <= 0:
            raise _problem("a budget of no time measures nothing", "--budget 10s")
        if self.prefetch is not None and self.workers == 0:
            raise _problem(
                "--prefetch is what each worker prepares, and --workers 0 has none",
                "--workers auto, or leave --prefetch away",
            )

    def of_a_look(self) -> Options:
        """Without what belongs to a new loader, where none is going to be made."""
        return replace(
            self, diagnose=True, workers=None, prefetch=None, depth=1, force=False
        )


def watch_only(line: argparse.Namespace) -> None:
    """Refuse the options that have no meaning in front of a cell.

    Raises:
        UsageProblem: There is one.
    """
    for option, said in (
        ("--workers", line.workers is not None),
        ("--inplace", line.inplace),
        ("--out", line.out is not None),
        ("--step", line.step is not None),
        ("--diagnose", line.diagnose),
        ("--verify", line.verify),
        ("--force", line.force),
    ):
        if said:
            raise UsageProblem(
                f"%%pin_loader --watch only watches the cell, without {option}",
                f"{option} belongs to %pin_loader NAME, in a cell of its own",
            )


def _is_name(text: str) -> bool:
    """Whether something can be assigned to it."""
    return text.isidentifier() and not keyword.iskeyword(text)


def _out(line: argparse.Namespace) -> str | None:
    if line.inplace and line.out is not None:
        raise _problem(
            "--inplace puts the new loader under the old name, --out under another",
            "one of the two",
        )
    if line.diagnose:
        return None
    if line.inplace:
        out = str(line.name)
    else:
        out = line.out or f"{line.name.replace('.', '_')}_pinned"
    if not _is_name(out):
        raise _problem(f"{out} is no name of a variable", "--out train_dl_pinned")
    return out


def _device(text: str | None) -> str | None:
    return f"cuda:{text}" if text is not None and text.isdecimal() else text


def _workers(text: str | None) -> int | str | None:
    if text is None or text == AUTO:
        return text
    if not text.isdecimal():
        raise _problem(
            f"--workers {text} is no number of workers", "--workers auto, or 4"
        )
    return int(text)


def _problem(problem: str, example: str) -> UsageProblem:
    return UsageProblem(f"%pin_loader: {problem}", f"say {example}")
