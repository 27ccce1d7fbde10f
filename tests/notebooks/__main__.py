"""`python -m tests.notebooks [FILE ...]`: run notebooks and keep their outputs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.notebooks.running import COURSE, keep_outputs

for path in map(Path, sys.argv[1:] or COURSE):
    started = time.monotonic()
    keep_outputs(path)
    sys.stdout.write(f"{path}: {time.monotonic() - started:.1f} s\n")
