"""The course on a GPU: every notebook runs there, and its solutions are right."""

from __future__ import annotations

import pytest

# Where they are missing, this file is skipped, and does not keep others from running.
pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from tests.fakes.cuda import is_on
from tests.notebooks.running import (
    COURSE,
    executed,
    read,
    said,
    solved,
    tagged,
)

pytestmark = [pytest.mark.hardware, pytest.mark.kernel]

# Exercises that only the times of a GPU make right, by their places: the host of a
# machine without one is slow beside kernels of some microseconds, and products that are
# large enough to take longer are not worked out.
_OF_TIMES = {
    "03_asynchrony": (1, 2),
    "04_streams_and_races": (1, 2),
    "07_feeding_the_gpu": (1,),
    "08_more_than_one_gpu": (0,),
}


@pytest.mark.parametrize("path", COURSE, ids=lambda path: path.stem)
def test_it_runs_on_a_gpu_with_its_solutions(path):
    """No cell fails, and every check says right."""
    ran = executed(solved(read(path)))

    verdicts = [said(cell) for cell in tagged(ran, "check")]
    assert verdicts
    left_out = _OF_TIMES.get(path.stem, ()) if is_on() else ()
    wrong = [
        verdict
        for place, verdict in enumerate(verdicts)
        if not verdict.startswith("right: ") and place not in left_out
    ]
    assert wrong == []
