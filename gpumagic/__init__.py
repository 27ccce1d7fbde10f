"""IPython magics that choose, time, watch and explain the GPU, cell by cell."""

from __future__ import annotations

__version__ = "0.1.0"
