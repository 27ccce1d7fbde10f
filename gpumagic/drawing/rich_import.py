"""Imports rich and leaves the user's random numbers where they were.

On its import rich takes one from Python's own generator: whoever has called
`random.seed(0)` would get other numbers from the first report on.
"""

from __future__ import annotations

import random

_state = random.getstate()
try:
    import rich.style  # noqa: F401 -- it is this module that takes the number
finally:
    random.setstate(_state)
