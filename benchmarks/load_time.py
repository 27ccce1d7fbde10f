"""`%load_ext gpumagic` beside an empty extension, IPython's own, and its peers.

Each load is the first thing in a fresh process, on a shell without history. The
clock stands round `%load_ext` only; what else the process does is not counted.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.runner import Comparison, side_by_side

_ROOT = Path(__file__).parents[1]
_HEAVY = ("torch", "numpy", "rich", "pynvml")
_EMPTY = "benchmarks.empty_extension"
# Each extension, and the distribution whose version is noted beside it.
_EXTENSIONS = {
    _EMPTY: None,
    "gpumagic": None,  # its version is in every result
    "autoreload": "ipython",
    "rich": "rich",
    "autotime": "ipython-autotime",
    "line_profiler": "line_profiler",
    "memory_profiler": "memory_profiler",
    "memray": "memray",
    "pyinstrument": "pyinstrument",
    "scalene": "scalene",
    "pytorch_memlab": "pytorch-memlab",
}
_LOAD = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
start = time.perf_counter()
shell.run_line_magic("load_ext", sys.argv[1])
seconds = time.perf_counter() - start
loaded = sys.argv[1] in shell.extension_manager.loaded
loaded = loaded or "IPython.extensions." + sys.argv[1] in shell.extension_manager.loaded
new = sorted(set(sys.modules) - before)
print(json.dumps({"seconds": seconds, "loaded": loaded, "new": new}))
"""


def run(rounds: int = 15) -> Comparison:
    """Load each extension in turn, each time in a fresh process."""
    with tempfile.TemporaryDirectory() as profile:
        first = {name: _load(name, profile) for name in _EXTENSIONS}
        subjects = {
            name: functools.partial(_seconds, name, profile)
            for name, loaded in first.items()
            if isinstance(loaded, dict)
        }
        found = side_by_side("load_time", subjects, rounds=rounds)
    notes = {name: _note(name, loaded) for name, loaded in first.items()}
    return Comparison(found.name, found.samples_s, notes)


def _note(name: str, loaded: dict | str) -> str:
    if isinstance(loaded, str):
        return f"skipped: {loaded}"
    heavy = [each for each in _HEAVY if each in loaded["new"]]
    return ", ".join([*_version(name), f"{len(loaded['new'])} modules", *heavy])


def _version(name: str) -> list[str]:
    distribution = _EXTENSIONS[name]
    return [importlib.metadata.version(distribution)] if distribution else []


def _seconds(name: str, profile: str) -> float:
    return _load(name, profile)["seconds"]  # it has been loaded once already


def _load(name: str, profile: str) -> dict | str:
    """What one load took and brought along, or why there is none."""
    if name != "autoreload" and importlib.util.find_spec(name) is None:
        return "not installed"
    child = subprocess.run(
        [sys.executable, "-c", _LOAD, name],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "IPYTHONDIR": profile},
    )
    if child.returncode:
        return child.stderr.strip().splitlines()[-1]
    answer = json.loads(child.stdout.splitlines()[-1])
    return answer if answer["loaded"] else "it is no extension"
