"""The warning of a data race in real shells names cells as their user sees them."""

from __future__ import annotations

import pytest

from tests import own_process
from tests.notebook.shells import see_in_kernel

pytest.importorskip("torch")


CELLS = [
    "import torch, warnings, gpumagic; box = gpumagic.simulate('h100')",
    "warnings.simplefilter('always'); side = torch.sim.Stream()",
    """
x = torch.ones(10_000, device="sim") * 2
with side:
    total = x.sum()
""",
]


@pytest.mark.kernel
def test_a_warning_names_the_cell_and_shows_its_line():
    """No temporary file of the shell's is named; a cell run again is told of again."""
    own_process.require_simulator()

    *_, seen, again = see_in_kernel([*CELLS, CELLS[-1]])

    first, *_, last = seen.printed.strip().splitlines()
    assert first.startswith("In [3]:3: DataRace: simulated H100 SXM: In [3], line 3 ")
    assert last.strip() == "total = x.sum()"
    said = "In [4]:3: DataRace: simulated H100 SXM: In [4], line 3 "
    assert again.printed.startswith(said)
