"""README and guides are true: cells run on every IPython, commands and figures exist.

What their cells print is held in `tests/docs/test_cells.py`, on the newest IPython.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import ALL, README, REPOSITORY, TOLD, blocks, name_of
from tests.notebook.shells import see_in_kernel

MEASURED = (
    "load_time",
    "cell_floor",
    "cell_timing",
    "h200/cell_timing",
    "memory_line",
    "prefetching",
    "reading_traces",
    "select_status",
    "tensor_picture",
    "simulator_overhead",
)
COMPARISON = REPOSITORY / "docs" / "comparison.md"


def _cells(path):
    return [block.text for block in blocks(path, "python")]


def _needs_torch(path):
    return any(word in cell for cell in _cells(path) for word in ("torch", "simulate"))


WITHOUT_TORCH = [path for path in TOLD if _cells(path) and not _needs_torch(path)]


@pytest.mark.kernel
@pytest.mark.parametrize("path", WITHOUT_TORCH, ids=name_of)
def test_every_cell_that_needs_no_torch_runs(path):
    """Typed into one notebook from the top, no cell of the page fails."""
    seen = see_in_kernel(_cells(path))

    failed = [each.traceback for each in seen if each.status != "ok"]
    assert not failed, failed[0]


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_make_target_that_is_named_exists(path):
    """`make x` is typed nowhere without a target x."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`make (\w+)`|^make (\w+)", text, re.MULTILINE)
    assert {each for pair in named for each in pair if each} <= targets


@pytest.mark.parametrize("path", [README, COMPARISON], ids=name_of)
def test_the_measured_tables_are_the_measured_results(path):
    """Every time in a table of the comparison stands in the results, rounded."""
    results = REPOSITORY / "benchmarks" / "results"
    medians: dict[str, float] = {}
    for name in MEASURED:
        text = (results / f"{name}.json").read_text(encoding="utf-8")
        medians |= {f"{name} {k}": v for k, v in json.loads(text)["median_s"].items()}
    section = path.read_text(encoding="utf-8").partition("# How it compares\n")[2]
    tables = section.partition("\n## When something")[0]
    rows = "\n".join(re.findall(r"^\|.*", tables, re.MULTILINE))
    shown = re.findall(r"\b(?<!\.)([\d.]+) (s|ms|us)\b", rows)
    assert len(shown) > 8
    for number, unit in shown:
        scale = {"s": 1, "ms": 1e3, "us": 1e6}[unit]
        digits = len(number.partition(".")[2])
        assert number in {f"{each * scale:.{digits}f}" for each in medians.values()}
