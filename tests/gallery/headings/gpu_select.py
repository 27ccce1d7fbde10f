"""What each sample of `%gpu_select` shows."""

from __future__ import annotations

HEADINGS = {
    "fixed": "CUDA has started: it is too late to choose",
    "fixed-for-torch": "torch has looked for GPUs in vain, and looks no more",
    "lost-in-a-fork": "A forked process cannot use CUDA",
    "nothing": "There is no GPU to choose",
    "selected": "Two GPUs were chosen by their numbers",
    "free": "The freest GPU was chosen, and why the others were not",
    "free-refused": "Too few GPUs are free: nothing was changed",
    "too-late": "A choice came too late: nothing was changed",
    "mig-slice": "A slice of a GPU was chosen",
    "slurm": "A scheduler has given two of eight GPUs",
    "sixteen-gpus": "Sixteen GPUs",
    "hostile": "Names that are made to break a page",
}
