"""What each sample of `%gpu_open` shows."""

from __future__ import annotations

HEADINGS = {
    "rank-gpu-bound": "A trace of one process, which keeps the GPU busy",
    "rank-loader": "The GPU waits for the DataLoader",
    "rank-tiny-kernels": "Kernels are shorter than their launches",
    "rank-syncs": "The GPU waits for the host, which waits for the GPU",
    "rank-communicates": "A third of the time goes into communication alone",
    "rank-no-device": "A trace without any work of a GPU",
    "rank-cut": "A file that ends in the middle, with entries of unknown kinds",
    "rank-amd": "A short trace of an AMD GPU",
    "rank-odd-step": "One step took much longer than all others",
    "rank-stacks": "A trace with stacks tells which lines launched what",
    "ranks-straggler": "Eight ranks, one of which is slow in backward",
    "ranks-equal": "Eight ranks that are alike",
    "ranks-in-turn": "Now one rank is late, now another",
    "ranks-two-of-128": "Two ranks of a job of 128",
    "ranks-128": "128 ranks, one of which waits for its input",
    "ranks-clocks-apart": "Ranks whose clocks cannot be put together",
    "ranks-all-slower": "One rank is slower in all that it does",
    "ranks-unmatched": "Two ranks that did nothing together",
    "runs-slower": "Two runs, the second of which is slower",
    "runs-faster": "Two runs, the second of which is faster",
    "runs-same": "Two runs that take the same time",
    "runs-per-step": "Two runs with different numbers of steps",
    "runs-idler": "Two runs, in the second of which the GPU is idle for longer",
}
