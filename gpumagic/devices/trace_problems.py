"""Why a trace is missing, or not whole, and what to do about it: pairs of sentences."""

from __future__ import annotations

LOST = (
    "the trace was lost: the code used torch's profiler itself",
    "leave the profiler to one of the two: run this without --profile",
)
UNENDED = (
    "the trace was lost: what was traced did not come to its end",
    "the times do not depend on it",
)
CAPTURING = (
    "a graph is being captured, which the profiler would break: it waits at its end",
    "run this without --profile, or profile the replay of the graph",
)
BLIND = (
    "no GPU activity could be traced",
    "a GPU serves one profiler at a time: is nsys, DCGM or another one attached?",
)
HEADLESS = (
    "the first kernels of this trace are missing: CUPTI loses more with each trace",
    "restart the kernel; torch built for CUDA 13.1 or newer loses none",
)
