"""Reports of every kind of recording."""

from __future__ import annotations

from tests.gpu_open import samples_snapshots, samples_traces

_EVERY = (*samples_traces.SAMPLES, *samples_snapshots.SAMPLES)
SAMPLES = tuple((name, report) for name, _, report in _EVERY)
HEADINGS = {name: heading for name, heading, _ in _EVERY}
