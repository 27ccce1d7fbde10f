"""Puts things beside each other in one interleaved run and keeps what was found.

A subject is a function that returns how many seconds it took, by whatever clock is
right for it. All subjects take turns, in an order that is new in each round, so that
a machine that gets warmer or busier does so for all of them.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpumagic
from gpumagic.devices.nvml import read_inventory
from gpumagic.report.robust import honest_interval
from gpumagic.report.units import seconds_text

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("torch", "ipython", "ipykernel", "nvidia-ml-py", "rich")

Subject = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """What one interleaved run found; the first subject is what others are held to."""

    name: str
    samples_s: Mapping[str, list[float]]
    notes: Mapping[str, Any] = field(default_factory=dict)  # by subject, or of the run

    @property
    def medians_s(self) -> dict[str, float]:
        """The median of each subject."""
        return {name: statistics.median(each) for name, each in self.samples_s.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """The median of each subject over that of the first."""
        medians = self.medians_s
        first = next(iter(medians.values()))
        return {name: median / first for name, median in medians.items()}


def timed(action: Callable[[], object]) -> Subject:
    """A subject that is a call, timed by the host clock."""

    def run() -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    return run


def side_by_side(
    name: str, subjects: Mapping[str, Subject], *, rounds: int, warmups: int = 1
) -> Comparison:
    """Run all subjects in turn; what the warm-up rounds give is not kept."""
    order, dice = list(subjects), random.Random(0)  # noqa: S311 -- no secret
    samples: dict[str, list[float]] = {each: [] for each in subjects}
    for number in range(warmups + rounds):
        dice.shuffle(order)
        for each in order:
            seconds = subjects[each]()
            if number >= warmups:
                samples[each].append(seconds)
    return Comparison(name, samples)


def write(comparison: Comparison, folder: Path = RESULTS) -> Path:
    """Keep a comparison as JSON, with all that is needed to read it later."""
    found = {
        "median_s": comparison.medians_s,
        "ratio_to_first": comparison.ratios,
        "notes": dict(comparison.notes),
        "samples_s": dict(comparison.samples_s),
    }
    return write_measurement(folder, comparison.name, found)


def write_measurement(folder: Path, name: str, found: Mapping[str, Any]) -> Path:
    """Write figures to `folder/name.json`, with device, driver, versions and date."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = {"name": name, "environment": environment(), **found}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def environment() -> dict[str, Any]:
    """Where and when this is; asked of NVML, so that no CUDA is started by it."""
    inventory = read_inventory()
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "devices": [gpu.name for gpu in inventory.gpus],
        "driver": inventory.driver_version,
        "cuda_of_driver": inventory.cuda_version,
        "versions": {"gpumagic": gpumagic.__version__, **dict(_versions(_PACKAGES))},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def verdict(
    differences: Sequence[float], limit: float, text: Callable[[float], str]
) -> str:
    """Whether a difference stays below a limit, as far as the noise lets that be told.

    Args:
        differences: One for each pair of neighbours in time.

        limit: What the difference is to stay below.

        text: How one is written.
    """
    middle, sure = statistics.median(differences), honest_interval(differences)
    if sure is None:
        return f"unknown: {len(differences)} pairs tell too little"
    found = f"{text(middle)} (95 %: {text(sure.low)} to {text(sure.high)})"
    if sure.high <= limit:
        return f"at most {text(limit)}: {found}"
    if sure.low > limit:
        return f"more than {text(limit)}: {found}"
    return f"unknown within the noise whether at most {text(limit)}: {found}"


def table(comparison: Comparison) -> str:
    """A comparison as text, a line a subject."""
    width = max(map(len, comparison.samples_s))
    ratios, medians = comparison.ratios, comparison.medians_s
    lines = [
        f"  {name:{width}}  {seconds_text(medians[name]):>10}  {ratios[name]:6.2f} x"
        + (f"  {comparison.notes[name]}" if name in comparison.notes else "")
        for name in medians
    ]
    others = {k: v for k, v in comparison.notes.items() if k not in medians}
    lines += [f"  {name}: {note}" for name, note in others.items()]
    return "\n".join([comparison.name, *lines])


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for package in packages:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, None
