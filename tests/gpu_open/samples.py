"""Reports of every kind of recording, from whichever halves of the room are there."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

HALVES = tuple(
    import_module(name)
    for name in ("tests.gpu_open.samples_traces", "tests.gpu_open.samples_snapshots")
    if find_spec(name)
)
SAMPLES = tuple(sample for half in HALVES for sample in half.SAMPLES)
