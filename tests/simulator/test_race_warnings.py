"""The warning of a data race in real shells names cells as their user sees them."""

from __future__ import annotations

import pytest

from tests.ipython.shells import see_in_kernel, see_in_terminal

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
@pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])
def test_a_warning_names_the_cell_and_shows_its_line(see):
    """No temporary file of the shell's is named; the line stands below the words."""
    *_, seen = see(CELLS)

    first, *_, last = seen.printed.strip().splitlines()
    assert first.startswith("In [3]:3: DataRace: simulated H100 SXM: In [3], line 3 ")
    assert last.strip() == "total = x.sum()"
