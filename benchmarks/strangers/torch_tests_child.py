"""Runs some of PyTorch's own tests in this process, on a simulated machine."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
import traceback
import unittest
from typing import IO, TYPE_CHECKING, Any

import gpumagic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MACHINE, MEMORY = "2xh100", "6GiB"
_SEEN_TWICE = "PRIVATEUSE1"  # what the simulated GPU is to torch, beside "CUDA"
_REAL_MEMORY = 12 << 30  # a test that wants more ends alone, and not the machine


class _Outcome(unittest.TestResult):
    """What became of one test: the first thing that was said of it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.said: tuple[str, str] | None = None

    def _say(self, outcome: str, detail: str) -> None:
        if self.said is None:
            self.said = outcome, detail

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._say("failed", _text(err))

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._say("failed", _text(err))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._say("failed", f"{subtest}\n{_text(err)}")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._say("skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._say("passed", "fails as expected")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._say("failed", "an unexpected success")


def tell_of(folder: Path, file: str, names: Sequence[str], into: int) -> None:
    """Run these tests of a file, or name them all where none is named.

    A line of JSON when a test begins and one when it ends goes into a file descriptor.
    Whoever started this process watches the time.
    """
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_REAL_MEMORY, hard))
    with os.fdopen(into, "w") as report:
        gpumagic.simulate(MACHINE, as_cuda=True, memory=MEMORY)
        sys.path.insert(0, str(folder.resolve()))
        sys.argv = [f"{folder}/{file}.py"]  # torch's helpers read options from here
        tests = {_short(each): each for each in _tests_of(file)}
        for each in names or tests:
            if names:
                _run(each, tests[each], report)
            else:
                _write(report, test=each)


def _tests_of(name: str) -> Iterator[unittest.TestCase]:
    module = importlib.import_module(name)
    _on_the_default_stream(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    return _flat(suite)


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        elif not type(each).__name__.endswith(_SEEN_TWICE):
            yield each


def _short(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def _on_the_default_stream(module: Any) -> None:
    """Torch would put tests on a side stream, by a number that only C++ has."""
    for each in vars(module).values():
        if isinstance(each, type) and issubclass(each, unittest.TestCase):
            each._do_cuda_non_default_stream = False  # noqa: SLF001


def _run(name: str, test: unittest.TestCase, report: IO[str]) -> None:
    _write(report, begins=name)
    outcome, start = _Outcome(), time.perf_counter()
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        test(outcome)
    said, detail = outcome.said or ("passed", "")
    seconds = round(time.perf_counter() - start, 2)
    _write(report, ends=name, outcome=said, seconds=seconds, detail=detail[-4000:])


def _write(report: IO[str], **what: Any) -> None:
    print(json.dumps(what), file=report, flush=True)


def _text(error: Any) -> str:
    return "".join(traceback.format_exception(*error))
