"""What the tests of the memory magic share."""

from __future__ import annotations

import gc

import pytest

import gpumagic


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
