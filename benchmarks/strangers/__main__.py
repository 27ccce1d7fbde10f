"""`python -m benchmarks.strangers`: the simulated GPU under others' programs."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import RESULTS, write_measurement
from benchmarks.strangers.cells import CPU, CUDA, SIM
from benchmarks.strangers.children import import_first, result_of
from benchmarks.strangers.notebook_child import run_as_notebook
from benchmarks.strangers.outcomes import SAME, Outcome, difference, time_ratio
from benchmarks.strangers.pages import write_table
from benchmarks.strangers.program_child import run_here
from benchmarks.strangers.programs import FOLDERS, PROGRAMS, Program
from benchmarks.strangers.torch_tests import FILES, Ran, run_all, tests_of
from benchmarks.strangers.verdicts import (
    OURS,
    PASSED,
    SKIPPED,
    counted,
    out_of_date,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NOWHERE = Path("no checkouts")
_PARTS = ("programs", "notebooks", "tests")
_PROGRAM_S, _NOTEBOOK_S, _TEST_S = 300, 1200, 90
_FIRST = ("torch._dynamo", "torchvision", "matplotlib.pyplot", "pandas")
_FOR_PACKAGES = ("timm", "lightning", "accelerate", "transformers")
_FOR_TESTS = ("torch._inductor.utils", "psutil")
_VERSIONS = ("torchvision", "transformers", "timm", "lightning", "accelerate", "einops")


def main() -> None:
    """Run what is asked for, and keep what was found with versions and date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strangers")
    parser.add_argument("--sources", type=Path, help="a folder with the checkouts")
    parser.add_argument("--pytorch", type=Path, help="PyTorch's checkout")
    parser.add_argument(
        "--only", default="", help="programs or tests with this in them"
    )
    parser.add_argument("--part", choices=_PARTS, action="append", help="not all three")
    parser.add_argument(
        "--again",
        action="append",
        help="PyTorch's tests with this in them alone, kept beside the others' results",
    )
    options = parser.parse_args()
    parts = ("tests",) if options.again else options.part or _PARTS
    import_first((*_FIRST, *_FOR_PACKAGES, *_FOR_TESTS, "ipykernel.kernelapp"))
    sources = (options.sources or _NOWHERE).resolve()
    programs = [*_programs(sources, options.only)] if {*parts} != {"tests"} else []
    in_part = options.only or len(programs) < len(PROGRAMS)
    for part, look in (("programs", _on_devices), ("notebooks", _under_magics)):
        found: list[dict[str, Any]] = []
        for program in _spread(programs) if part in parts else ():
            found.append(look(program, sources))
            print("  ".join(f"{key}: {each}" for key, each in found[-1].items()))
            _keep(f"strangers_{part}", in_part, {"programs": found})
    if "tests" in parts and options.pytorch:
        _torch_tests(options.pytorch.resolve() / "test", options.only, options.again)
    if not options.only:
        print(f"  -> {write_table()}")


def _programs(sources: Path, only: str) -> Iterator[Program]:
    """Those whose code is here."""
    for program in PROGRAMS:
        if only not in f"{program.origin}: {program.name}":
            continue
        folder = FOLDERS.get(program.origin)
        if folder is None or (sources / folder).exists():
            yield program
        else:
            print(f"{program.name}: there is no checkout {folder}")


def _spread(programs: list[Program]) -> list[Program]:
    """In an order of which each part has something of everybody."""
    return [program for first in range(3) for program in programs[first::3]]


def _on_devices(program: Program, sources: Path) -> dict[str, Any]:
    """What a program gave as cuda and on sim, beside the CPU where it runs there."""
    devices = [CUDA if program.needs_a_gpu else CPU, CUDA]
    devices += [] if program.why_not_sim else [SIM]
    outcomes = {
        each: _outcome(program, each, sources) for each in dict.fromkeys(devices)
    }
    first, *others = outcomes
    row: dict[str, Any] = {"name": program.name, "origin": program.origin}
    row[first] = outcomes[first].error or "runs"
    for each in others:
        row[each] = difference(outcomes[each], outcomes[first], within=program.within)
    ratio = time_ratio(outcomes[CUDA], outcomes[first]) if first == CPU else None
    row["times as long"] = ratio and round(ratio, 1)
    return row


def _under_magics(program: Program, sources: Path) -> dict[str, Any]:
    """In which way of running its cells a program did not give the same."""
    said, error = result_of(lambda: run_as_notebook(program, sources), _NOTEBOOK_S)
    others = {way: each for way, each in said.get("ways", {}).items() if each != SAME}
    row: dict[str, Any] = {"name": program.name, "origin": program.origin}
    row["without"] = error or said["error"] or "runs"
    row["not the same"] = others
    return row


def _outcome(program: Program, device: str, sources: Path) -> Outcome:
    said, error = result_of(lambda: run_here(program, device, sources), _PROGRAM_S)
    return Outcome.read(said) if said else Outcome(error=error)


def _torch_tests(tests: Path, only: str, again: Sequence[str] | None) -> None:
    version = (tests.parent / "version.txt").read_text(encoding="utf-8").strip()
    outcomes, failures = _found_before(version) if again else ({}, {})
    wanted = again or (only,)
    for file in _files_with(wanted):
        names = [
            each
            for each in tests_of(tests, file)
            if any(text in f"{file}.{each}" for text in wanted)
        ]

        def tell(ran: Ran, file: str = file) -> None:
            name = f"{file}.{ran.test}"
            outcomes[name] = ran.outcome
            failures.pop(name, None)
            if ran.outcome not in {PASSED, SKIPPED}:
                failures[name] = ran.said
                print(f"{verdict(name, ran.outcome)}: {name}: {ran.said}", flush=True)

        def is_ours(ran: Ran, file: str = file) -> bool:
            return verdict(f"{file}.{ran.test}", ran.outcome) == OURS

        run_all(tests, file, names, limit_s=_TEST_S, again=is_ours, tell=tell)
        found = {"tests_of": version, "outcomes": outcomes, "failures": failures}
        _keep("strangers_torch_tests", only, found)
    for each in out_of_date(outcomes):
        print(f"nothing fails for {each.tests} any more")
    print(counted(outcomes))


def _files_with(wanted: Sequence[str]) -> Sequence[str]:
    """The files that need to be read: all, unless each text names one."""
    named = {text.partition(".")[0] for text in wanted}
    return [each for each in FILES if each in named or not named <= {*FILES}]


def _found_before(version: str) -> tuple[dict[str, str], dict[str, str]]:
    """What became of all tests so far, and what those said that failed.

    Raises:
        SystemExit: That was with another torch, or of other tests.
    """
    path = RESULTS / "strangers_torch_tests.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    theirs = found["environment"]["versions"]["torch"], found["tests_of"]
    ours = importlib.metadata.version("torch"), version
    if theirs != ours:
        sys.exit(f"the others are of torch {theirs[0]} and tests {theirs[1]}; run all")
    return found["outcomes"], found["failures"]


def _keep(name: str, in_part: str | bool, found: dict[str, Any]) -> None:
    """Results of everything are kept; those of a part are only shown."""
    if not in_part:
        write_measurement(RESULTS, name, {"packages": dict(_versions()), **found})


def _versions() -> Iterator[tuple[str, str]]:
    """Those of packages that are installed; PyTorch's tests need none."""
    for each in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield each, importlib.metadata.version(each)


if __name__ == "__main__":
    main()
