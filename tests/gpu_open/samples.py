"""Reports of every kind of recording, by the room's two halves."""

from __future__ import annotations

from tests.gpu_open import samples_traces

SAMPLES = samples_traces.SAMPLES
