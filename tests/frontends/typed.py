"""What is typed into a terminal: every magic, and one mistake with each."""

from __future__ import annotations

# Short, so that no terminal folds what is typed.
SETUP = (
    "%load_ext gpumagic",
    "import torch, gpumagic, torch.utils.data as data",
    "box = gpumagic.simulate('2xh100')",
    "x = torch.randn(1024, 1024, device='sim:0')",
    "import os, tempfile; os.chdir(tempfile.mkdtemp())",
    "images = torch.rand(512, 3, 64, 64)",
    "loader = data.DataLoader(images, 64)",
    "from time import sleep",
    "late = lambda batch: sleep(0.3) or torch.ones(9)",
    "slow = data.DataLoader(range(900), 9, collate_fn=late)",
)
REPORTS = (
    "%gpu_doctor -v r",
    "%gpu_select -v r",
    "%gpu_select 1 --dry-run -v r",
    "%cuda_sync_time -v r --lines y = x @ x",
    "%cuda_sync_time -v r --repeat 5 x + 1;",
    "%cuda_sync_time -q --name base x + 1;",
    "%cuda_sync_time -v r --repeat 5 --vs base x + 1;",
    "%gpu_mem -v r",
    "%gpu_mem map -v r",
    "%gpu_mem leaks -v r",
    "%gpu_mem fit 100GiB -v r",
    "%cuda_sync_time -q --trace t.json x @ x;",
    "%gpu_open t.json -v r",
    "%tensor_info -v r x",
    "%tensor_info -v r x.t(), x[:, ::2]",
    "%tensor_info -v r --view 7,-1 x.t()",
    "%pin_loader loader --budget 2s -v r",
)
CELLS = (
    "%%gpu_doctor -v r\nimport os",
    "%%cuda_sync_time --syncs -v r\ntotal = 0.0\ntotal += (x @ x).sum().item()",
    "%%cuda_sync_time --profile -v r\ny = x @ x",
    "%%cuda_sync_time --races -v r\ny = x @ x",
    "%%gpu_mem --lines -v r\nz = x @ x\nw = z + 1",
    "%%pin_loader --watch -v r\nfor pixels in loader: pixels.to('sim:0')",
)
MISTAKES = (
    "%gpu_doctor --jsno",
    "%gpu_select 7",
    "%cuda_sync_time --wat x",
    "%gpu_mem everything",
    "%gpu_open t.jsno",
    "%tensor_info nope",
    "%pin_loader 3",
)
LONG = "%pin_loader slow --budget 3m"
