"""PyTorch's own tests of its CUDA side, held against the simulated GPU.

A child runs the tests of one file after the other and says when each begins and ends.
One that crashes or takes too long ends its child alone; the next child goes on behind
it. What failed is tried again in a process of its own, since a test before it may have
left something behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.strangers.children import import_first, start, wait
from benchmarks.strangers.torch_tests_child import tell_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FILES = ("test_accelerator", "test_cuda", "test_cuda_multigpu", "test_dataloader")

_AN_ERROR = re.compile(r"[\w.]+: |[\w.]+(?:Error|Exception)$")
_START_S = 120  # until a child has imported the file
_GOODBYE_S = 20  # threads of a test may keep a child from ending


@dataclass(frozen=True)
class Ran:
    """What became of one test."""

    test: str
    outcome: str  # passed, failed, skipped; crashed and hung end their process
    seconds: float = 0.0
    detail: str = ""

    @property
    def said(self) -> str:
        """The line in which the last error says what it is."""
        lines = [line for line in self.detail.splitlines() if line.strip()]
        errors = [line for line in lines if _AN_ERROR.match(line)]
        return (errors or lines or [""])[-1].strip()


def tests_of(tests: Path, file: str) -> list[str]:
    """The names of all tests in a file, as `Class.test`."""
    said = [*_said_by_child(tests, file, (), _START_S)]
    if said and "died" in said[-1]:
        raise RuntimeError(f"{file} cannot be imported: {said[-1]['detail']}")
    return [each["test"] for each in said]


def run_all(
    tests: Path,
    file: str,
    names: Sequence[str],
    *,
    limit_s: float,
    again: Callable[[Ran], bool] = lambda _ran: True,
    tell: Callable[[Ran], None] = lambda _ran: None,
) -> list[Ran]:
    """Run these tests in as few processes as it takes; failed ones again, alone.

    Args:
        tests: The folder of the files.

        file: One of them.

        names: Its tests.

        limit_s: How long each may take.

        again: Whether a test that failed is worth another try.

        tell: Told of each outcome as it comes.
    """
    found: dict[str, Ran] = {}
    left = [*names]
    while left:
        for ran in _in_one_child(tests, file, left, limit_s):
            found[ran.test] = ran
            tell(ran)
        left = [each for each in names if each not in found]
    for ran in [*found.values()]:
        if ran.outcome in {"failed", "hung"} and again(ran):
            alone = next(_in_one_child(tests, file, [ran.test], limit_s))
            found[ran.test] = alone
            if alone.outcome != ran.outcome:
                tell(alone)
    return [found[each] for each in names]


def _in_one_child(
    tests: Path, file: str, names: Sequence[str], limit_s: float
) -> Iterator[Ran]:
    """What a child gets done of these; the one that ends it is the last."""
    running: str | None = names[0]  # where it ends before its first
    for said in _said_by_child(tests, file, names, limit_s):
        if "ends" in said:
            running = None
            yield Ran(said["ends"], said["outcome"], said["seconds"], said["detail"])
        elif "begins" in said:
            running = said["begins"]
        elif running is not None:
            yield Ran(running, said["died"], limit_s, said["detail"])


def _said_by_child(
    tests: Path, file: str, names: Sequence[str], limit_s: float
) -> Iterator[dict[str, Any]]:
    """Each line of a child as it comes; the last says how it died, if it did."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        output = Path(folder, "output")
        child = start(
            lambda: tell_of(tests, file, names, writing), Path(folder, "work"), output
        )
        os.close(writing)
        silent, status = True, None
        with os.fdopen(reading) as report:
            try:
                silent = yield from _lines(report, limit_s)
            finally:
                status = wait(child, 0 if silent else _GOODBYE_S)
        if silent or status:
            detail = output.read_text("utf-8", "replace")[-4000:]
            died = "hung" if silent else "crashed"
            yield {"died": died, "detail": f"{detail}\nended with {status}"}


def _lines(report: Any, limit_s: float) -> Iterator[dict[str, Any]]:
    """Lines until the other end is closed (False) or silent for too long (True)."""
    wait_s = max(limit_s, _START_S)
    while select.select([report], [], [], wait_s)[0]:
        line = report.readline()
        if not line:
            return False
        yield json.loads(line)
        wait_s = limit_s
    return True


def _main() -> None:
    """Run the files or tests named, and write what became of them to a file."""
    import_first(("torch._inductor.utils", "torch._dynamo", "torchvision", "psutil"))
    tests, into, *wanted = sys.argv[1:]
    found: dict[str, dict] = {}
    for each in wanted or FILES:
        file, _, one = each.partition(":")
        start = time.perf_counter()
        names = [one] if one else tests_of(Path(tests).resolve(), file)
        for ran in run_all(
            Path(tests).resolve(),
            file,
            names,
            limit_s=60,
            tell=lambda ran: print(ran.outcome, ran.test, ran.said, flush=True),
        ):
            found[f"{file}.{ran.test}"] = vars(ran)
        print(file, f"{time.perf_counter() - start:.0f} s", flush=True)
        Path(into).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    _main()
