"""Runs Python in a process of its own, on a machine described by a scenario."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests import quick_python
from tests.fakes.build import (
    SONAMES,
    build,
    hidden_functions,
    missing,
    scenario_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REPOSITORY = Path(__file__).parents[2]

# The surroundings of the test run must not reach the machine under test.
_FORGOTTEN = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)

# Loading by path is enough: whoever asks for the same soname later gets these.
_PRELUDE = """\
import ctypes, os, sys
fakes = [ctypes.CDLL(path) for path in os.environ.pop("GPUMAGIC_FAKE_LOAD").split()]
exec(compile(sys.argv.pop(1), "<snippet>", "exec"), globals())
"""


class CuInitCall(NamedTuple):
    """One call of cuInit, as the fake driver noted it."""

    pid: int
    code: int


@dataclass(frozen=True)
class FakeRun:
    """What a process on the fake machine left behind."""

    returncode: int
    stdout: str
    stderr: str
    log: Path

    def json(self) -> Any:
        """The last line of the output, read as JSON."""
        return json.loads(self.stdout.splitlines()[-1])

    def cuinit_calls(self) -> list[CuInitCall]:
        """Every cuInit, in order, of the process and of its children."""
        return cuinit_calls(self.log)


def cuinit_calls(log: Path) -> list[CuInitCall]:
    """Every cuInit that a log tells of."""
    found = re.findall(r"^cuInit pid=(\d+) code=(\d+)$", log.read_text(), re.MULTILINE)
    return [CuInitCall(int(pid), int(code)) for pid, code in found]


def run_python(  # noqa: PLR0913 -- each one is a property of the machine
    code: str,
    *,
    scenario: str | Path = "four_gpus",
    load: Iterable[str] = ("nvml", "libcuda"),
    install: Iterable[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    check: bool = True,
) -> FakeRun:
    """Run a snippet in a fresh process on a fake machine.

        run = run_python(
            '''
            import json
            from gpumagic.devices.nvml import read_inventory
            print(json.dumps(read_inventory().to_dict()))
            ''',
            scenario="mig_with_holes",
        )
        assert len(run.json()["gpus"]) == 4
        assert run.cuinit_calls() == []

    A shell lives in the snippet; its history and settings go to a temporary folder:

        run_python('''
            from IPython.core.interactiveshell import InteractiveShell
            shell = InteractiveShell.instance()
            shell.run_line_magic("load_ext", "gpumagic")
            shell.run_cell("%gpu_select 2").raise_error()
        ''')

    For a command line see `run_module`.

    Args:
        code: The snippet, indented as the caller likes. It can import gpumagic and
            everything the tests can.

        scenario: A file in scenarios/ by its name, or any other file by its path;
            gpus.h says what may stand in it.

        load: Which libraries are in the process before the snippet: "nvml",
            "libcuda". torch loads libcuda at its import; pynvml loads nvml itself.

        install: Which libraries can be found when something loads them, also in
            child processes; the same as `load` if not said. What is neither loaded
            nor installed is absent, even where this machine has it. So
            `load=(), install=("nvml", "libcuda")` is a GPU machine with nothing
            loaded yet, and `load=()` a machine without a driver.

        env: Variables to set for the process, or with None to remove.

        check: Whether a failing snippet fails the test, showing its errors.
    """
    load = tuple(load)
    install = load if install is None else tuple(install)
    folder = Path(tempfile.mkdtemp(dir=build().folder))
    log = folder / "log"
    log.touch()
    # Claims lie in the temporary folder: nobody else is to choose on this machine.
    surroundings = _environment(folder, scenario_file(scenario), load, install)
    # What is read of a process's beginning: where the loader looks for libraries, and
    # whether CUDA's variables were there from the start.
    begins_anew = set(load) != set(SONAMES) or any(
        name.startswith("CUDA_") for name in env or ()
    )
    start = quick_python.anew if begins_anew else quick_python.run
    done = start(
        [sys.executable, "-c", _PRELUDE, textwrap.dedent(code)],
        env=_changed(surroundings | {"TMPDIR": str(folder)}, env),
        timeout=300,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return FakeRun(done.returncode, done.stdout, done.stderr, log)


def run_module(module: str, *arguments: str, **options: Any) -> FakeRun:
    """Run `python -m module arguments` on a fake machine.

    run = run_module("gpumagic", "doctor", scenario="mismatch", check=False)
    assert "reboot" in run.stdout
    """
    code = f"""
        import runpy
        sys.argv[1:] = {list(arguments)!r}
        runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
    """
    return run_python(code, **options)


def machine_environment(
    folder: Path,
    scenario: str | Path = "four_gpus",
    install: tuple[str, ...] = tuple(SONAMES),
) -> dict[str, str]:
    """The environment of any process that is to run on a fake machine."""
    (folder / "log").touch()
    return _environment(folder, scenario_file(scenario), (), install)


def _environment(
    folder: Path, scenario: Path, load: tuple[str, ...], install: tuple[str, ...]
) -> dict[str, str]:
    libraries = build()
    hidden = hidden_functions(scenario)
    there = {name: libraries.library(name, hidden) for name in SONAMES}
    inherited = {k: v for k, v in os.environ.items() if k not in _FORGOTTEN}
    return inherited | {
        "GPUMAGIC_FAKE_SCENARIO": str(scenario.resolve()),
        "GPUMAGIC_FAKE_LOG": str(folder / "log"),
        "GPUMAGIC_FAKE_LOAD": " ".join(str(there[each]) for each in load),
        "LD_LIBRARY_PATH": _search_path(there, install),
        "PYTHONPATH": _joined(str(REPOSITORY), os.environ.get("PYTHONPATH")),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def _search_path(there: dict[str, Path], install: tuple[str, ...]) -> str:
    found = [path if name in install else missing(name) for name, path in there.items()]
    folders = [str(each.parent) for each in found]
    return _joined(*folders, os.environ.get("LD_LIBRARY_PATH"))


def _joined(*paths: str | None) -> str:
    return os.pathsep.join(path for path in paths if path)


def _changed(
    environment: dict[str, str], changes: Mapping[str, str | None] | None
) -> dict[str, str]:
    changed = environment | dict(changes or {})
    return {name: value for name, value in changed.items() if value is not None}
