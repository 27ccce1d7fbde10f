"""Datasets that a cell defines, in a real kernel: what is foreseen happens."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("torch")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tests.notebook.shells import see_in_kernel

pytestmark = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="not on Unix"
)

CELL = """
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.tensor(index)
"""
TOOLS = """
import tempfile, sys, os  # noqa: E402
from gpumagic.pin_loader.load import LoaderFailed, measure_loading  # noqa: E402
from gpumagic.pin_loader.pickled import unpicklable  # noqa: E402
from tests.pin_loader.sleepy import children  # noqa: E402

torch.set_num_threads(1)
folder = tempfile.mkdtemp()
os.chdir(folder)
sys.path.insert(0, folder)

def tell(dataset, method):
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context=method
    )
    remark = unpicklable(loader)
    print(method, "->", remark.text if remark else "nothing against it")
    try:
        found = measure_loading(loader, budget_s=0.1, patience_s=300)
        print("it works" if found.batch_s > 0 else "it took no time")
    except LoaderFailed as failure:
        print(failure.problem)
"""
FILE = f"%%writefile in_a_file.py\n{CELL}"
SERVER = """
import multiprocessing  # noqa: E402
print(unpicklable(DataLoader(Numbers()), "forkserver").text)
print(multiprocessing.get_start_method(allow_none=True), children())
"""
# It is stopped once its workers are there, and would go on for hours.
STOPPED = """
import signal, time  # noqa: E402

class Slow(Numbers):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.05)
        return super().__getitem__(index)

def stop(_):
    print(len(children()), "at work")
    os.kill(os.getpid(), signal.SIGINT)

slow = DataLoader(Slow(), num_workers=2, multiprocessing_context="fork")
measure_loading(slow, budget_s=100_000, progress=stop)
"""
CELLS = {
    "dataset": CELL,
    "tools": TOOLS,
    "server": SERVER,
    "fork": "tell(Numbers(), 'fork')\nprint(children())",
    "stopped": STOPPED,
    "after": "print(children())",
    "spawn": "tell(Numbers(), 'spawn')",
    "file": FILE,
    "cured": "import in_a_file\ntell(in_a_file.Numbers(), 'spawn')",
}


@pytest.fixture(scope="module")
def seen():
    """What each cell came to, in one kernel."""
    return dict(zip(CELLS, see_in_kernel(list(CELLS.values())), strict=True))


def test_a_fork_server_cannot_import_a_cell(seen):
    """Nothing is started to find that out, and no default is settled."""
    assert seen["server"].printed.splitlines() == [
        (
            "workers started by forkserver cannot import what this notebook "
            "defines: Numbers"
        ),
        "None set()",
    ]


def test_forked_workers_have_what_a_cell_defines(seen):
    """Under fork nothing is said against it, it works, and no worker is left."""
    assert seen["fork"].printed.splitlines() == [
        "fork -> nothing against it",
        "it works",
        "set()",
    ]


def test_stopping_a_cell_leaves_no_worker(seen):
    """The stop button of a notebook ends a trial with its workers."""
    assert seen["stopped"].printed == "2 at work\n"
    assert seen["stopped"].error.startswith("KeyboardInterrupt")
    assert seen["after"].printed == "set()\n"
