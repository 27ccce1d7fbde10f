"""Compiles the fake NVIDIA libraries, once for a test run."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
SCENARIOS = SOURCES / "scenarios"
SONAMES = {"nvml": "libnvidia-ml.so.1", "libcuda": "libcuda.so.1"}

_COMPILE = ("gcc", "-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c")
_LINK = ("gcc", "-shared")


@dataclass(frozen=True)
class FakeLibraries:
    """The compiled fakes; each library lies in a folder of its own."""

    # Removed at the end of the run; never the working directory, where some look.
    folder: Path

    def library(self, name: str, hidden: tuple[str, ...] = ()) -> Path:
        """The library of a driver that lacks the hidden functions.

        The linker leaves them out, so that looking one up truly fails.
        """
        key = hashlib.sha256(" ".join(hidden).encode()).hexdigest()[:12]
        library = self.folder / f"{name}-{key}" / SONAMES[name]
        if not library.exists():
            library.parent.mkdir()
            exports = library.parent / "exports"
            exports.write_text(f"{{ global: *; {_local(hidden)} }};")
            _run(*_LINK, *_options(library), "-o", library, self.folder / f"{name}.o")
        return library


@functools.cache
def build() -> FakeLibraries:
    """The fakes, compiled at the first call; skips the test without gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("the fake NVIDIA libraries need gcc, which is not installed")
    folder = Path(tempfile.mkdtemp(prefix="gpumagic-fakes-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in SONAMES:
        _run(*_COMPILE, SOURCES / f"{name}.c", "-o", folder / f"{name}.o")
    return FakeLibraries(folder)


def missing(name: str) -> Path:
    """What stands first on the search path where a library is to be absent.

    A real one may be installed on this machine; the loader gives up at a file that is
    empty, as pynvml and torch do where there is none.
    """
    return SOURCES / "absent" / name / SONAMES[name]


def scenario_file(scenario: str | Path) -> Path:
    """The file of a scenario that is named, or the file itself."""
    if isinstance(scenario, Path):
        return scenario
    path = SCENARIOS / f"{scenario}.txt"
    if not path.exists():
        known = ", ".join(sorted(each.stem for each in SCENARIOS.glob("*.txt")))
        raise ValueError(f"no scenario is named {scenario!r}; there are {known}")
    return path


def hidden_functions(scenario: Path) -> tuple[str, ...]:
    """The functions that a scenario's driver lacks."""
    lines = scenario.read_text().splitlines()
    return tuple(line[5:] for line in lines if line.startswith("hide="))


def _local(hidden: tuple[str, ...]) -> str:
    return "local: " + " ".join(f"{each};" for each in hidden) if hidden else ""


def _options(library: Path) -> list[str]:
    exports = library.parent / "exports"
    return [f"-Wl,-soname,{library.name}", f"-Wl,--version-script={exports}"]


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
