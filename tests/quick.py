"""Runs the fast tests of one room, or of those that differ from main: `make quick`.

Left out is what takes long: kernels, and files that need a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ALWAYS = "test_architecture"


def main(rooms: list[str]) -> int:
    """Test these rooms, or those that have changed; the exit code of pytest."""
    rooms = rooms or rooms_of(changed_files())
    folders = [f"tests/{room}" for room in rooms if (TESTS / room).is_dir()]
    if unknown := [room for room in rooms if f"tests/{room}" not in folders]:
        sys.exit(f"There is no room {', '.join(unknown)}.")
    command = [
        *(sys.executable, "-m", "pytest", "-q"),
        *("-m", "not browser and not kernel and not hardware"),
        *("-k", " or ".join([ALWAYS, *rooms]), "--ignore-glob=*/test_in_process.py"),
        *(*folders, "tests/gallery", f"tests/{ALWAYS}.py"),
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


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
