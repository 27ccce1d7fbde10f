"""Memory and errors of the device: what is told after one, and where it points."""

from __future__ import annotations

import pytest

from tests.hardware.machines import child

_LATE = """
import os, sys, traceback
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
shell.run_cell("import torch; t = torch.zeros(4, device='cuda'); "
               "at = torch.tensor([9], device='cuda'); torch.cuda.synchronize()")
shell.run_cell("{magic}\\nt[at]", store_history=True)
print("LATE")
frames = traceback.extract_tb(sys.last_value.__traceback__)
print([os.path.basename(each.filename) for each in frames][-1])
print("AFTER")
shell.run_cell("%gpu_mem")
shell.run_cell("%%gpu_mem\\nprint('ran')")
print(flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("magic", ["%%cuda_sync_time", "%%pin_loader --watch"])
def test_a_late_error_shows_none_of_our_waiting(magic):
    """What the wait at the end reports says its words, and no file of ours."""
    shown, rest = child(_LATE.format(magic=magic)).split("LATE\n")
    last, after = rest.split("AFTER\n")

    assert "device-side assert" in shown
    assert last.strip() == "notebook.py"  # which raises it, where the cell has ended
    for file in ("around_cell.py", "waiting.py", "accelerator.py", "__init__.py"):
        assert file not in shown
    assert "ran" in after  # memory is still told: the allocator's counters are there


_ASSERTED = """
import os
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
shell.run_cell("import torch; t = torch.zeros(4, device='cuda')")
shell.run_cell("t[torch.tensor([9], device='cuda')]; torch.cuda.synchronize()")
print("TOLD", shell.run_line_magic("gpu_mem", "-o -q"))
print("TOLD", shell.run_line_magic("gpu_mem", "fit 2GiB -o -q"))
print(flush=True)
os._exit(0)
"""


def test_a_device_in_error_is_not_said_to_have_room():
    """What a driver library still counts is no memory that anybody can get."""
    _, balance, fits = child(_ASSERTED).split("TOLD")

    assert "cuda:0 does not tell what is free" in balance
    assert "restart the kernel" in balance
    assert "2.00 GiB may fit on cuda:0 or not" in fits.splitlines()[0]
