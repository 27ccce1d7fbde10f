"""What the tests of the memory magic share."""

from __future__ import annotations

import gc
import itertools
from types import SimpleNamespace

import pytest

import gpumagic
from gpumagic.gpu_mem import walk
from gpumagic.gpu_mem.cell import CellRun

_LOOK_S = 1e-9


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No search is cut short because the machine was busy with something else.

    Each look at the clock finds it a nanosecond later.
    """
    looks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: next(looks) * _LOOK_S)
    monkeypatch.setattr(walk, "time", clock)


@pytest.fixture
def as_cell(request):
    """Runs a function of the test's file as a cell, and hands the run back."""

    def as_cell(open_runtime, function, *, error=(), **options):
        file = request.module.__file__
        run = CellRun(open_runtime, in_cell=lambda other: other == file, **options)
        run.begin()
        try:
            function()
        except error as failure:
            run.end(failure)
        else:
            run.end()
        return run

    return as_cell


@pytest.fixture
def box():
    """A simulated machine with two H100, switched on for one test."""
    with gpumagic.simulate("2xh100") as machine:
        yield machine


@pytest.fixture
def shell(box):
    """A shell with the extension loaded, and the simulated GPU in use."""
    import torch
    from IPython.core.async_helpers import get_asyncio_loop
    from IPython.core.interactiveshell import InteractiveShell

    del box  # it is on
    shell = InteractiveShell.instance()  # the one whose cells have numbers
    shell.run_line_magic("xmode", "Plain")  # the others take long to draw
    shell.run_line_magic("load_ext", "gpumagic")
    shell.user_ns["torch"] = torch
    shell.user_ns["x"] = torch.ones(1 << 20, device="sim")
    yield shell
    shell.run_line_magic("unload_ext", "gpumagic")
    shell.run_line_magic("xmode", "Plain")
    shell.reset(new_session=False)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()
    get_asyncio_loop().close()
    gc.collect()
