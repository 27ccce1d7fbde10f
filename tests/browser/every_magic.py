"""The notebook of somebody who tries every magic in each of its main forms.

It is typed into a page and run there, by the page's own kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.browser.notebooks import notebook_of

if TYPE_CHECKING:
    from pathlib import Path


class Typed(NamedTuple):
    """A cell, and a phrase that its report must have.

    Where `fails`, the phrase is from a usage error, and an error is what is to come.
    """

    text: str
    says: str = ""
    fails: bool = False


PREPARE = (
    Typed("%load_ext gpumagic"),
    Typed("%gpu_select --simulate 2xh100", "2 GPUs"),
    Typed(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "\n"
        "model = torch.nn.Sequential(\n"
        "    *[torch.nn.Linear(1024, 1024, device='sim') for _ in range(3)]\n"
        ")\n"
        "x = torch.ones(1024, 1024, device='sim')\n"
        "grid = torch.arange(24.0, device='sim').reshape(4, 6)\n"
        "images = TensorDataset(torch.rand(64, 3, 64, 64), torch.arange(64))\n"
        "train_dl = DataLoader(images, batch_size=16)\n"
        "x @ x;"
    ),
)

WHAT_IS_HERE = (
    Typed("%gpu_doctor", "How it was measured"),
    Typed(
        "%%gpu_doctor\n"
        "import os\n"
        "\n"
        "os.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\n"
        "len('four')",
        "CUDA_DEVICE_ORDER",
    ),
    Typed("del os.environ['CUDA_DEVICE_ORDER']"),
    Typed("%gpu_doctor --everything", "--everything", fails=True),
)

WHICH_GPUS = (
    Typed("%gpu_select", "sim:0"),
    Typed("%gpu_select 1 --dry-run", "dry run"),
    Typed("%gpu_select free -n 1 --dry-run", "Why"),
    Typed("%gpu_select 7", "7", fails=True),
)

HOW_LONG = (
    Typed("%cuda_sync_time x @ x", "simulated H100 SXM"),
    Typed("%%cuda_sync_time\nfor _ in range(20):\n    y = x @ x", "%%time would say"),
    Typed("%cuda_sync_time --name base --repeat 300ms (x + 1) * 2", "a call"),
    Typed("%cuda_sync_time --vs base --repeat 300ms (x + 1).mul_(2)", "base"),
    Typed(
        "%%cuda_sync_time --syncs\n"
        "total = 0.0\n"
        "for _ in range(3):\n"
        "    total += (x @ x).sum().item()",
        ".item()",
    ),
    Typed("%cuda_sync_time --profile model(x).sum().item()", "busy"),
    Typed(
        "%%cuda_sync_time --races\n"
        "side = torch.Stream('sim')\n"
        "filled = torch.empty(100, 100, device='sim').normal_()\n"
        "with side:\n"
        "    total = filled.sum()",
        "nothing makes it wait",
    ),
    Typed("%cuda_sync_time --repeat 300ms x @ x", "simulated H100"),
    Typed("%cuda_sync_time --repeat=soon x @ x", "=soon", fails=True),
)

WHERE_IT_WENT = (
    Typed("%gpu_mem", "model"),
    Typed("%%gpu_mem --lines\nloss = model(x).sum()\nloss.backward()", "peak"),
    Typed("%gpu_mem on", "A line after each cell"),
    Typed("z = torch.ones(1 << 20, device='sim')", "sim:0"),
    Typed("%gpu_mem off", "no longer"),
    Typed("torch.ones(1 << 22, device='sim').view(2048, 2048)"),
    Typed("%gpu_mem leaks", "Out["),
    Typed("%gpu_mem map", "model"),
    Typed("%gpu_mem fit 6GiB", "6.00 GiB fits"),
    Typed("torch.empty(1 << 40, device='sim')", "out of memory", fails=True),
    Typed("%gpu_mem why", "4.00 TiB"),
    Typed("%gpu_mem mpa", "mpa", fails=True),
)

WHAT_CAME_HOME = (
    Typed("%cuda_sync_time -q --trace t.json model(x).sum().item()"),
    Typed("%gpu_open t.json", "busy"),
    Typed("import shutil; again = shutil.copy('t.json', 'u.json')"),
    Typed("%gpu_open t.json u.json", "the same time"),
    Typed("%gpu_open t.jsno", "t.json", fails=True),
)

HOW_IT_LIES = (
    Typed("%tensor_info grid.t()", "transposed"),
    Typed("%tensor_info grid, grid.t(), grid[:, ::2]", "Pair by pair"),
    Typed("%tensor_info --view 24 grid.t()", "fails"),
    Typed("row = grid[0]\n%tensor_info --alias", "row"),
    Typed("%tensor_info --view 24", "no tensor", fails=True),
)

IS_IT_FED = (
    Typed("%pin_loader train_dl --budget 2s", "pinned"),
    Typed(
        "%%pin_loader --watch\nfor pixels, labels in train_dl:\n"
        "    pixels.to('sim').mean()",
        "train_dl",
    ),
    Typed("%pin_loader train_ld", "train_dl", fails=True),
)

CELLS = (
    *PREPARE,
    *WHAT_IS_HERE,
    *WHICH_GPUS,
    *HOW_LONG,
    *WHERE_IT_WENT,
    *WHAT_CAME_HOME,
    *HOW_IT_LIES,
    *IS_IT_FED,
)


def save(folder: Path, file: str) -> str:
    """Write the notebook; its file's name.

    Jupyter is told that any cell may fail: it would run nothing after one that does.
    """
    import nbformat
    from nbformat.v4 import new_code_cell

    go_on = {"tags": ["raises-exception"]}
    cells = [new_code_cell(typed.text, metadata=go_on) for typed in CELLS]
    nbformat.write(notebook_of(cells), folder / file)
    return file
