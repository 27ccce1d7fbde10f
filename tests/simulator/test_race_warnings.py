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


@pytest.mark.kernel
@pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])
def test_a_warning_names_the_cell_and_shows_its_line(see):
    """No temporary file of the shell's is named; the line stands below the words."""
    *_, seen = see(CELLS)

    first, *_, last = seen.printed.strip().splitlines()
    assert first.startswith("In [3]:3: DataRace: simulated H100 SXM: In [3], line 3 ")
    assert last.strip() == "total = x.sum()"


IN_CONTAINERS = [
    """
import torch, warnings, gpumagic, weakref
warnings.simplefilter("always")
box = gpumagic.simulate("2xh100")
odd = weakref.proxy(set())  # raises whatever it is asked for
copying = {"of": [[torch.sim.Stream(k), torch.sim.Stream(k)] for k in range(2)]}
streams = copying["of"]
""",
    """
x = torch.ones(10_000, device="sim:1") * 2
with streams[1][0]:
    total = x.sum()
""",
]


@pytest.mark.kernel
def test_a_warning_names_a_stream_in_a_list_as_it_is_typed():
    """What it says to type can be typed; odd objects beside it do no harm."""
    *_, seen = see_in_kernel(IN_CONTAINERS)

    assert "streams[1][0].wait_stream(" in seen.printed.replace("\n", "")
