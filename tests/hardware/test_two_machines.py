"""One program, two machines: the simulated GPU, and torch's own CUDA without a GPU.

What differs and is to differ stands in `docs/simulated_gpu.md`, "Where the simulated
GPU differs from torch's own CUDA"; the programs keep clear of it, or it is named here.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hardware import machines, programs, two_machines

ROOT = Path(__file__).parents[2]
EACH = 30  # programs of a family
PATIENCE_S = 500
# What is asked of the books; the rest is asked of every step.
BOOKS = ("segments", "stats", "trace", "free")
WITH_TENSORS = frozenset(
    ("ask", "in_place", "new", "on_device", "out", "to_device", "to_host", "view")
)
ENVIRONMENT = {
    "GPUMAGIC_CLOCK": "model",  # else a hundred seconds of work would take as long
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
# Types of errors that are to be others: ours, theirs.
ERRORS_APART = {
    "S[1].wait_stream(None)": ("DeviceError", "AttributeError"),
    "torch.index_select": ("RuntimeError", "NotImplementedError"),
    "torch.cuda.CUDAGraph().capture_begin()": ("RuntimeError", "AcceleratorError"),
    "torch.cuda.get_device_": ("AcceleratorError", "AssertionError"),
    "torch.cuda.memory_stats(7)": ("AcceleratorError", "RuntimeError"),
    "    x.cpu()": ("AcceleratorError", "RuntimeError"),
    "    torch.ones(3).to(GPU)": ("AcceleratorError", "RuntimeError"),
}


@pytest.fixture(scope="module", autouse=True)
def _clock():
    """Waits are told by a clock that both machines share, as no real GPU does."""
    if two_machines.clock_without_a_gpu() is None:
        pytest.skip("needs the CUDA runtime without a GPU, for its clock")


@pytest.fixture(scope="module")
def written():
    """The programs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return programs.programs(EACH)


@pytest.fixture(scope="module")
def both(written, tmp_path_factory):
    """What was seen of each program on torch's own CUDA, and on the simulated GPU."""
    given = json.dumps(
        [
            {
                "steps": [dataclasses.astuple(each) for each in program.steps],
                "reads": program.reads,
            }
            for program in written
        ]
    )
    run = functools.partial(_run, given, tmp_path_factory.mktemp("seen"))
    with ThreadPoolExecutor() as pool:
        return list(zip(*pool.map(run, ("cuda", "simulated")), strict=True))


def _run(given: str, folder: Path, machine: str) -> Any:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if machine == "simulated" else {}
    file, usage = folder / machine, folder / f"usage of {machine}"
    usage.mkdir()
    # Nobody else's memory counts, not even that of this process.
    alone = {"GPUMAGIC_FAKE_USAGE": str(usage)}
    context = f"context_mib={two_machines.CONTEXT_MIB}"
    memory = {"total_mib": two_machines.MEMORY_MIB, "reserved_mib": 0}
    alone["GPUMAGIC_FAKE_SCENARIO"] = str(machines.idle_gpu(usage, context, **memory))
    ended = subprocess.run(
        [sys.executable, "-m", two_machines.__name__, machine, str(file)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, **alone, **hidden},
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(file.read_text())


def test_a_program_is_the_same_on_both(written, both):
    """Values, addresses, segments, counters, waits and types of errors are the same."""
    apart = [
        _first_difference(program, *seen)
        for program, seen in zip(written, both, strict=True)
    ]

    found = [each for each in apart if each]
    shortest = min(found, key=len, default="")
    assert not found, f"{len(found)} of {len(written)} programs differ:\n{shortest}"


def test_programs_without_races_have_none(written, both):
    """Nothing is called a race where each stream waits for those before it."""
    told = {
        program.name: ours[-1]["races"]
        for program, (_, ours) in zip(written, both, strict=True)
        if ours[-1]["races"]
    }

    assert not told


def test_the_programs_have_come_by_everything(written, both):
    """Each kind of step, waits, errors, full memory and books are there in number."""
    kinds = collections.Counter(each.kind for one in written for each in one.steps)
    seen = collections.Counter()
    for program, (theirs, _) in zip(written, both, strict=True):
        seen["books"] += _steps_with_books(program)
        for told in theirs[1:-1]:
            seen["waits"] += told["waited"] > 0
            seen["errors"] += "error" in told
            seen[told.get("error")] += 1
            seen["actions"] += len(told["trace"])
        seen["tensors"] += len(theirs[-1]["names"])

    assert min(kinds.values()) >= EACH // 5, kinds
    assert seen["books"] > 50 * EACH
    assert seen["actions"] > 100 * EACH
    assert seen["tensors"] > 10 * EACH
    assert seen["waits"] > 5 * EACH
    assert seen["errors"] > 2 * EACH
    assert seen["OutOfMemoryError"] > EACH // 2
    assert len(seen) > 10, seen


def _steps_with_books(program: programs.Program) -> int:
    """How many steps there are before one that takes memory besides."""
    for place, step in enumerate(program.steps):
        if step.takes_memory_besides:
            return place
    return len(program.steps)


def _first_difference(program: programs.Program, theirs: Any, ours: Any) -> str | None:
    """The program up to where it differs, and how; None if it does not."""
    with_books = _steps_with_books(program)
    steps = [None, *program.steps, None]
    for place, (step, one, other) in enumerate(zip(steps, theirs, ours, strict=True)):
        failed = "error" in one and step.kind in WITH_TENSORS
        books = place <= with_books and not failed
        told, said = (_comparable(each, books=books) for each in (one, other))
        if failed:
            with_books = place - 1  # what was taken on the way stays in the counters
        if told == said or _is_known(step, one, other):
            continue
        lines = "\n".join(map(str, program.steps[:place]))
        pairs = [
            f"{name}\n  CUDA: {told.get(name)}\n  ours: {said.get(name)}"
            for name in sorted({*told, *said})
            if told.get(name) != said.get(name)
        ]
        texts = f"{one.get('text')} | {other.get('text')}"
        return "\n".join((program.name, lines, *pairs, texts))
    return None


def _comparable(told: dict[str, Any], *, books: bool) -> dict[str, Any]:
    """What two machines owe each other of a step."""
    kept = {
        name: each
        for name, each in told.items()
        if name not in {"text", "races"} and (books or name not in BOOKS)
    }
    if "error" in told and books:  # what was taken on the way to it is another matter
        del kept["trace"]
        kept["stats"] = {
            name: each for name, each in told["stats"].items() if "current" in name
        }
    if not books and "names" in kept:
        kept["names"] = {
            name: (shape, numbers)
            for name, (shape, _, numbers) in kept["names"].items()
        }
    return kept


def _is_known(step: Any, theirs: Any, ours: Any) -> bool:
    pair = ours.get("error"), theirs.get("error")
    return step is not None and any(
        pair == apart and words in step.line for words, apart in ERRORS_APART.items()
    )
