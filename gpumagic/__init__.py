"""IPython magics that choose, time, watch and explain the GPU, cell by cell.

In a notebook: `%load_ext gpumagic`, then `%gpu_doctor`. Importing this module
imports nothing heavy; torch comes in when a question needs it.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext gpumagic` calls."""
    from gpumagic import extension

    extension.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext gpumagic` and `%reload_ext gpumagic` call."""
    from gpumagic import extension

    extension.unload(shell)
    extension.forget_modules()
