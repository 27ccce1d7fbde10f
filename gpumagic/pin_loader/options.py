"""What one line of options asks for, checked before anything runs."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.errors import UsageProblem
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    import argparse

AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """The options of one line.

    Attributes:
        out: The name of the new loader; None where NAME itself is to be replaced, or
            where nothing is made.

        workers: How many, "auto" to find out, None to leave them.

        step: The name of a function.
    """

    name: str
    out: str | None
    device: str | None
    workers: int | str | None
    prefetch: int | None
    depth: int
    step: str | None
    batches: int | None
    budget_s: float
    diagnose: bool
    verify: bool
    profile: bool
    force: bool

    @classmethod
    def of(cls, options: argparse.Namespace) -> Request:
        """Read and check the options of a line with a name.

        Raises:
            GpuMagicError: A value is malformed, or two of them contradict.
        """
        if not all(map(is_name, options.name.split("."))):
            raise UsageProblem(
                f"%pin_loader needs a name, and {options.name} is an expression",
                f"give it a new one first: my_loader = {options.name}",
            )
        request = cls(
            name=options.name,
            out=_out(options),
            device=_device(options.device),
            workers=_workers(options.workers),
            prefetch=options.prefetch,
            depth=options.depth,
            step=options.step,
            batches=options.batches,
            budget_s=parse_seconds(options.budget),
            diagnose=options.diagnose,
            verify=options.verify,
            profile=not options.no_profile,
            force=options.force,
        )
        request._check()
        return request

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


def watch_only(options: argparse.Namespace) -> None:
    """Refuse the options that have no meaning in front of a cell.

    Raises:
        UsageProblem: There is one.
    """
    for option, said in (
        ("--workers", options.workers is not None),
        ("--inplace", options.inplace),
        ("--out", options.out is not None),
        ("--step", options.step is not None),
        ("--diagnose", options.diagnose),
        ("--verify", options.verify),
        ("--force", options.force),
    ):
        if said:
            raise UsageProblem(
                f"%%pin_loader --watch only watches the cell, without {option}",
                f"{option} belongs to %pin_loader NAME, in a cell of its own",
            )


def is_name(text: str) -> bool:
    """Whether something can be assigned to it."""
    return text.isidentifier() and not keyword.iskeyword(text)


def _out(options: argparse.Namespace) -> str | None:
    if options.inplace and options.out is not None:
        raise _problem(
            "--inplace puts the new loader under the old name, --out under another",
            "one of the two",
        )
    if options.diagnose:
        return None
    if options.inplace:
        out = str(options.name)
    else:
        out = options.out or f"{options.name.replace('.', '_')}_pinned"
    if not is_name(out):
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


def _problem(problem: str, example: Any) -> UsageProblem:
    return UsageProblem(f"%pin_loader: {problem}", f"say {example}")
