"""What each sample of `%gpu_open` shows: said beside the samples, of which are many."""

from __future__ import annotations

from tests.gpu_open.samples import HEADINGS

__all__ = ["HEADINGS"]
