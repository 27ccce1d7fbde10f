"""The README is true: its cells run, its commands exist, its output is today's."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.ipython.shells import REPOSITORY, environment, see_in_kernel

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


MEASURED = (
    "load_time",
    "cell_floor",
    "cell_timing",
    "memory_line",
    "prefetching",
    "select_status",
    "tensor_picture",
    "simulator_overhead",
)


def blocks(language: str) -> list[str]:
    """All fenced blocks of a language, in order."""
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.kernel
def test_every_python_block_runs_in_order():
    """Typed into one notebook from the top, no cell of the README fails."""
    cells = blocks("python")
    if importlib.util.find_spec("torch") is None:
        # The simulated GPU is torch's device; its blocks are one after another.
        first = next(i for i, cell in enumerate(cells) if "simulate" in cell)
        last = max(i for i, cell in enumerate(cells) if "box.off()" in cell)
        del cells[first : last + 1]
    seen = see_in_kernel(cells)
    failed = [each.traceback for each in seen if each.status != "ok"]
    assert not failed, failed[0]
    assert len(seen) > 4
    # The last value of the watched cell is shown, as in a plain cell.
    assert "45" in [each.result for each in seen]


def test_the_script_block_runs_by_itself():
    """What is said to work in a script works in a file of its own."""
    start = "import os\n\nimport gpumagic\n"
    (script,) = (each for each in blocks("python") if each.startswith(start))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Changed: CUDA_DEVICE_ORDER went from unset to 'PCI_BUS_ID'" in done.stdout


@pytest.mark.kernel
def test_the_output_shown_is_what_a_run_gives():
    """The topics in the printed table are those of a run today, in that order."""
    (report,) = see_in_kernel(["%load_ext gpumagic", "%gpu_doctor"])[1].shown
    (printed,) = (each for each in blocks("text") if "What is here" in each)
    assert _topics(printed) == [
        topic for topic in _topics(report["text/plain"]) if topic in _topics(printed)
    ]
    assert len(_topics(printed)) > 6


def test_every_make_target_in_the_readme_exists():
    """`make x` is typed nowhere without a target x."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    assert set(re.findall(r"make (\w+)(?: |`|$)", README, re.MULTILINE)) <= targets


def test_every_local_link_leads_somewhere():
    """Pictures, pages and headings that are linked are there."""
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("http"):
            assert (REPOSITORY / target).exists(), target


def _topics(text: str) -> list[str]:
    row = r"^  (\S.*?)  +[✓i!✗?] (?:ok|note|warn|prob|unk)"
    return re.findall(row, text, re.MULTILINE)


def test_the_measured_table_is_the_measured_result():
    """Every time in the comparison stands in the committed results, rounded."""
    results = REPOSITORY / "benchmarks" / "results"
    medians: dict[str, float] = {}
    for name in MEASURED:
        text = (results / f"{name}.json").read_text(encoding="utf-8")
        medians |= json.loads(text)["median_s"]
    section = README.partition("## How it compares")[2].partition("\n## ")[0]
    shown = re.findall(r"\| ([\d.]+) (ms|us) (?=\|)", section)
    assert len(shown) > 8
    for number, unit in shown:
        scale = {"ms": 1e3, "us": 1e6}[unit]
        digits = len(number.partition(".")[2])
        assert number in {f"{each * scale:.{digits}f}" for each in medians.values()}


@pytest.mark.kernel
def test_the_race_shown_is_the_one_that_is_told():
    """The sentences of the printed race are those that a notebook shows today."""
    pytest.importorskip("torch")
    (printed,) = (each for each in blocks("text") if "DataRace" in each)
    python = blocks("python")
    start = next(each for each in python if "simulate(" in each)
    plain = (each for each in python if not each.startswith("%"))
    race = next(each for each in plain if "with side:" in each)
    listen = (
        "import warnings\n"
        "said = []\n"
        "warnings.simplefilter('always')\n"
        "warnings.showwarning = lambda text, *_, **__: said.append(str(text))\n"
    )

    *_, told = see_in_kernel([start, listen, race, "said[0]"])

    words = re.sub(r"\d+", "N", " ".join(printed.split()).removeprefix("DataRace: "))
    assert re.sub(r"\d+", "N", " ".join(eval(told.result).split())) == words  # noqa: S307


@pytest.mark.kernel
def test_the_failing_view_shown_is_explained_so_today():
    """The sentences on the view that fails are those that a notebook shows."""
    pytest.importorskip("torch")
    (printed,) = (each for each in blocks("text") if ".view(24) fails" in each)
    x = next(each for each in blocks("python") if "x = torch.arange" in each)
    ask = next(each for each in blocks("python") if "--view 24" in each)
    seen = see_in_kernel(["%load_ext gpumagic", "import torch", x, ask])[-1]
    (shown,) = (each["text/plain"] for each in seen.shown)
    assert shown.startswith(printed.rstrip())
