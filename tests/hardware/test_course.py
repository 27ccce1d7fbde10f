"""The course on a GPU: every notebook runs there, and its solutions are right."""

from __future__ import annotations

import pytest

# Where they are missing, this file is skipped, and does not keep others from running.
pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from tests.notebooks.running import (
    COURSE,
    executed,
    read,
    said,
    solved,
    tagged,
)

pytestmark = [pytest.mark.hardware, pytest.mark.kernel]


@pytest.mark.parametrize("path", COURSE, ids=lambda path: path.stem)
def test_it_runs_on_a_gpu_with_its_solutions(path):
    """No cell fails, and every check says right."""
    ran = executed(solved(read(path)))

    verdicts = [said(cell) for cell in tagged(ran, "check")]
    assert verdicts
    assert all(verdict.startswith("right: ") for verdict in verdicts), verdicts
