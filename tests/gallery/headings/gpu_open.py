"""What each sample of `%gpu_open` shows: said beside the samples, of which are many."""

from __future__ import annotations

from tests.gpu_open.samples import HALVES

HEADINGS = {name: said for half in HALVES for name, said in half.HEADINGS.items()}
