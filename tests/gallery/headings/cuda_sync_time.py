"""What each sample of `%%cuda_sync_time` shows."""

from __future__ import annotations

HEADINGS = {
    "gpu-bound": "The host was soon done, and waited for the GPU",
    "launch-bound": "The GPU was done as soon as the code was",
    "syncs": "The code itself waited for the GPU, in lines that are named",
    "tail-and-backlog": "Work went on in another stream, and earlier work came first",
    "failed": "The cell raised an error",
    "simulated": "A cell on the simulated GPU",
    "turns": "Two GPUs that work in turn",
    "small-work": "Launching was the limit, and the GPU was busy for a seventh",
    "reading": "A loop that reads a value in each round, on CUDA",
    "every-flag": "Every note and warning that there is",
    "profile-two-streams": "What ran when, on two streams",
    "repeated-noisy": "Many runs that do not agree",
    "faster": "The new code is faster",
    "races": "Two streams use the same memory without a wait",
    "lines": "What each line took, on the host and on the GPU",
    "operators": "What torch's operators took on a machine without a GPU",
    "hostile": "Names that are made to break a page",
}
