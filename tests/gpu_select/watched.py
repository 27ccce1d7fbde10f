"""A shell with a watcher in it, for snippets that run on the fakes."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.fakes.run import FakeRun, run_python

# Like torch where it meets CUDA, and no more.
_TORCH = {
    "torch/__init__.py": """
        import ctypes, types

        def count():
            "How many."
            if looks:
                return looks[0]
            looks.append(4 if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0 else 0)
            return looks[0]

        def init():
            if count() == 0:
                raise RuntimeError("no GPUs")

        looks = []  # it looks once
        _C = types.SimpleNamespace(_cuda_getDeviceCount=count, _cuda_init=init)

        from torch import cuda, nn

        class Tensor:
            # As for functions in C: no frame but that of what they call.
            cuda = to = staticmethod(cuda._lazy_init)

        zeros = cuda._lazy_init
    """,
    "torch/cuda.py": """
        import torch

        def is_available():
            return torch._C._cuda_getDeviceCount() > 0

        def is_initialized():
            return False

        def _lazy_init(*_, **__):
            torch._C._cuda_init()
    """,
    "torch/nn.py": """
        from torch import cuda

        class Module:
            def cuda(self):
                return self._apply()

            def _apply(self):
                return cuda._lazy_init()
    """,
}

_PRELUDE = """\
import ctypes, json, pathlib, sys, tempfile
from contextlib import ExitStack
from IPython.core.interactiveshell import InteractiveShell
from gpumagic.devices.nvidia import NvidiaDriver
from gpumagic.gpu_select.watch import Watcher
from gpumagic.notebook.cells import keep_cell_numbers

folder = pathlib.Path(tempfile.mkdtemp())
sys.path.insert(0, str(folder))
for name, text in {files!r}.items():
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(text)

shell = InteractiveShell.instance()
keep_cell_numbers(shell, ExitStack())
undo, told = ExitStack(), []
driver = NvidiaDriver()
watcher = Watcher(driver.cuda_started, on_start=lambda: told.append(watcher.start()))

def run(cell):
    return shell.run_cell(cell, store_history=True)

def watch():
    watcher.install(shell, undo)

def places():
    return [list(map(id, sys.meta_path)),
            {{name: len(each) for name, each in shell.events.callbacks.items()}}]

def show(*found):
    print()
    print(json.dumps([each.to_dict() if hasattr(each, "to_dict") else each
                      for each in found], default=str))

CUINIT = "ctypes.CDLL('libcuda.so.1').cuInit(0)"
"""


def watched(
    code: str, files: dict[str, str] | None = None, *, torch: bool = False, **how: Any
) -> FakeRun:
    """Run a snippet that has `shell`, `watcher`, `watch`, `run`, `places`, `show`."""
    every = {**(_TORCH if torch else {}), **(files or {})}
    written = {name: textwrap.dedent(text) for name, text in every.items()}
    return run_python(_PRELUDE.format(files=written) + textwrap.dedent(code), **how)
