"""Runs the fast tests of one room, or of those that differ from main: `make quick`.

Left out is what takes long: kernels, and files that need a process of their own. Tests
that were slow when they last ran come last, and what has not begun when time is over
is skipped; so a minute is enough everywhere.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ALWAYS = "test_architecture"
SECONDS = 40  # of a minute; the rest is for format, types and the beginning
SLOW_S = 1.0
_SLOW = "gpumagic/slow"  # of pytest's cache


def main(rooms: list[str]) -> int:
    """Test these rooms, or those that have changed; the exit code of pytest."""
    rooms = rooms or rooms_of(changed_files())
    folders = [f"tests/{room}" for room in rooms if (TESTS / room).is_dir()]
    if unknown := [room for room in rooms if f"tests/{room}" not in folders]:
        sys.exit(f"There is no room {', '.join(unknown)}.")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.quick"),
        *("-m", "not browser and not kernel and not hardware"),
        *("-k", " or ".join([ALWAYS, *rooms]), "--ignore-glob=*/test_in_process.py"),
        *(*folders, "tests/gallery", f"tests/{ALWAYS}.py"),
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def pytest_configure(config: pytest.Config) -> None:
    """Be a plugin of the run that `main` starts."""
    config.pluginmanager.register(Quick(config))


class Quick:
    """Puts slow tests last, and begins none once the time is over."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = config.cache
        self._slow: dict[str, float] = self._cache.get(_SLOW, {})
        self._until = float("inf")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort by what the last run has found; the order stays otherwise."""
        items.sort(key=lambda item: self._slow.get(item.nodeid, 0.0))

    def pytest_runtestloop(self) -> None:
        """The time begins with the first test."""
        self._until = time.monotonic() + SECONDS

    def pytest_runtest_setup(self) -> None:
        """Begin no test once the time is over."""
        if time.monotonic() > self._until:
            pytest.skip("the time of `make quick` is over; `make test` runs it")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember which tests are slow."""
        if report.when != "call":
            return
        self._slow.pop(report.nodeid, None)
        if report.duration > SLOW_S:
            self._slow[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep it for the next run."""
        self._cache.set(_SLOW, self._slow)


def rooms_of(files: list[str]) -> list[str]:
    """The rooms that files of the package, or tests, belong to.

    >>> rooms_of(["gpumagic/gpu_mem/view.py", "tests/report/test_log.py", "README.md"])
    ['gpu_mem', 'report']
    """
    parts = [Path(file).parts for file in files]
    inside = {each[1] for each in parts if each[0] in {"gpumagic", "tests"}}
    return sorted(each for each in inside if (ROOT / "gpumagic" / each).is_dir())


def changed_files() -> list[str]:
    """All that differs from main, also what git does not know yet."""
    main = next(filter(_git_knows, ("main", "origin/main")), "HEAD")
    [base] = _git("merge-base", "HEAD", main)
    new = _git("ls-files", "--others", "--exclude-standard")
    return [*_git("diff", "--name-only", base), *new]


def _git_knows(name: str) -> bool:
    command = ["git", "rev-parse", "--verify", "--quiet", name]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return done.returncode == 0


def _git(*words: str) -> list[str]:
    said = subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return said.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
