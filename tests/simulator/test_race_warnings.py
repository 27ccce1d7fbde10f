"""The warning of a data race in real shells names cells as their user sees them."""

from __future__ import annotations

import pytest

from tests import own_process
from tests.notebook.shells import see_in_kernel, see_in_terminal

pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def there_is_a_simulator():
    """Its cells switch it on."""
    own_process.require_simulator()


CELLS = [
    "import torch, warnings, gpumagic; box = gpumagic.simulate('h100')",
    "warnings.simplefilter('always'); side = torch.sim.Stream()",
    """
x = torch.ones(10_000, device="sim") * 2
with side:
    total = x.sum()
""",
]


@pytest.fixture(scope="module")
def in_kernel():
    """What each cell of a notebook came to."""
    return see_in_kernel([*CELLS, CELLS[-1]])


@pytest.mark.kernel
@pytest.mark.parametrize("where", ["terminal", "kernel"])
def test_a_warning_names_the_cell_and_shows_its_line(where, in_kernel):
    """No temporary file of the shell's is named; the line stands below the words."""
    cells = see_in_terminal(CELLS) if where == "terminal" else in_kernel
    seen = cells[len(CELLS) - 1]

    first, *_, last = seen.printed.strip().splitlines()
    assert first.startswith("In [3]:3: DataRace: simulated H100 SXM: In [3], line 3 ")
    assert last.strip() == "total = x.sum()"


@pytest.mark.kernel
def test_a_cell_that_is_run_again_is_told_of_again(in_kernel):
    """Its text is the same, and so is the file that a kernel makes of it."""
    again = in_kernel[len(CELLS)].printed
    assert again.startswith("In [4]:3: DataRace: simulated H100 SXM: In [4], line 3 ")
