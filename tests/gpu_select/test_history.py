"""A guess from the cells: the first call that is known to start CUDA."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_select.history import guess

LOADER = "from torch.utils.data import DataLoader"
LOOP = """
loader = DataLoader(data, pin_memory=True)
for batch in loader:
    batch.cuda()"""
STARTING = [
    ("import torch\ntorch.cuda.is_available()", 2, "torch.cuda.is_available()"),
    ("from torch import cuda\ncuda.synchronize()", 2, "torch.cuda.synchronize()"),
    ("import torch as t\nx = 1\nt.cuda.mem_get_info()", 3, "torch.cuda.mem_get_info()"),
    ("import torch\nx = torch.ones(3).cuda()", 2, "cuda()"),
    ("x = model.to('cuda:1')", 1, "to()"),
    ("import torch\nd = torch.device('cuda')\nm.to(d)", 3, "to()"),
    ("import torch\ntorch.zeros(3, device='cuda')", 2, "torch.zeros()"),
    ("import torch\ntorch.Generator('cuda')", 2, "torch.Generator()"),
    ("import torch\ntorch.load('x', map_location='cuda')", 2, "torch.load()"),
    ("x.pin_memory()", 1, "pin_memory()"),
    ("import cupy as cp\ncp.zeros(3)", 2, "cupy.zeros()"),
    ("from numba import cuda\ncuda.to_device(x)", 2, "numba.cuda.to_device()"),
    ("import jax.numpy as jnp\njnp.ones(3)", 2, "jax.numpy.ones()"),
    ("import jax\njax.devices()", 2, "jax.devices()"),
    ("lib.cuInit(0)", 1, "cuInit()"),
    ("%%time\nx.cuda()", 2, "cuda()"),
    ("!ls\n%matplotlib inline\nx.cuda()", 3, "cuda()"),
    (
        LOADER + LOOP,
        3,
        "DataLoader()",
    ),
    (
        f"{LOADER}\nfound = [x for x in DataLoader(data, pin_memory=True)]",
        2,
        "DataLoader()",
    ),
]
HARMLESS = [
    "import torch\ntorch.cuda.device_count()",
    "import torch\ntorch.device('cuda')",
    "import torch\ntorch.cuda.manual_seed(1)",
    "import torch\ntorch.cuda.empty_cache()",
    "import torch\nx.to('cpu')",
    "torch.cuda.is_available",
    f"{LOADER}\nDataLoader(data, pin_memory=True)",
    "from numba import cuda\n@cuda.jit\ndef f(): ...",
    "import kornia",  # it is not imported here
    "%%bash\nx.cuda()",
    "%%writefile train.py\nx.cuda()",
    "x.cuda() +",
    "",
    "print('x.cuda()')",
]


@pytest.mark.parametrize(("cell", "line", "by"), STARTING)
def test_what_is_known_to_start_cuda_is_found(cell, line, by):
    """The line and the call are named, whatever the module was imported as."""
    found = guess({3: cell})
    assert found is not None
    assert (found.cell, found.line, found.by, found.guess) == (3, line, by, True)
    assert found.source == cell.splitlines()[line - 1].strip()


@pytest.mark.parametrize("cell", HARMLESS)
def test_what_does_not_start_cuda_is_not_blamed(cell):
    """Harmless calls, foreign languages and cells that do not parse give no guess."""
    assert guess({1: cell}) is None


def test_the_first_call_of_all_cells_is_taken():
    """Cells count in the order of their numbers, and names carry over."""
    cells = {9: "t.cuda.synchronize()", 2: "import torch as t", 4: "t.ones(1).cuda()"}
    assert guess(cells).cell == 4


def test_what_was_run_counts_before_what_was_only_defined():
    """The body of a function is suspected only if nothing else is."""
    define = "def f(x):\n    return x.cuda()"
    assert guess({1: define, 2: "y.pin_memory()"}).cell == 2
    assert (guess({1: define, 2: "f(y)"}).cell, guess({1: define}).line) == (1, 2)


def test_a_suspect_library_is_named_if_it_is_imported(monkeypatch):
    """An import counts after every call, and also where no cell shows it."""
    monkeypatch.setitem(__import__("sys").modules, "kornia", object())
    found = guess({1: "import kornia.filters as k", 2: "x = 1"})
    assert (found.cell, found.by) == (1, "import kornia")
    assert guess({1: "import kornia", 2: "x.cuda()"}).cell == 2
    elsewhere = guess({})
    assert (elsewhere.cell, elsewhere.by, elsewhere.guess) == (
        None,
        "import kornia",
        True,
    )


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 9), st.text(max_size=80), max_size=4))
def test_no_text_makes_it_fail(cells):
    """Whatever was typed, there is a guess or there is none."""
    found = guess(cells)
    assert found is None or found.guess
