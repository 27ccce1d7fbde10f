"""Drawing takes none of the user's random numbers, not even the first time."""

from __future__ import annotations

import subprocess
import sys

SEEDED_THEN_DRAWN = """
import random

random.seed(0)
from gpumagic.drawing import Drawing

Drawing("A report", ()).text()
drawn = random.random()
random.seed(0)
raise SystemExit(drawn != random.random())
"""


def test_the_first_drawing_of_a_process_leaves_the_random_numbers():
    """What is seeded before the first report gives the same numbers after it."""
    done = subprocess.run(
        [sys.executable, "-c", SEEDED_THEN_DRAWN], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
