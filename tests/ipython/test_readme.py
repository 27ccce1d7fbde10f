"""The README is true: its cells run, its commands exist, its output is today's."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.ipython.shells import REPOSITORY, environment, see_in_kernel

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """All fenced blocks of a language, in order."""
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.kernel
def test_every_python_block_runs_in_order():
    """Typed into one notebook from the top, no cell of the README fails."""
    seen = see_in_kernel(blocks("python"))
    failed = [each.traceback for each in seen if each.status != "ok"]
    assert not failed, failed[0]
    assert len(seen) > 4
    # The last value of the watched cell is shown, as in a plain cell.
    assert "45" in [each.result for each in seen]


def test_the_script_block_runs_by_itself():
    """What is said to work in a script works in a file of its own."""
    script = blocks("python")[-2]
    assert script.startswith("import os\n\nimport gpumagic\n")
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
    (printed,) = blocks("text")
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
    for name in ("load_time", "cell_floor"):
        text = (results / f"{name}.json").read_text(encoding="utf-8")
        medians |= json.loads(text)["median_s"]
    section = README.partition("## How it compares")[2].partition("\n## ")[0]
    shown = re.findall(r"\| ([\d.]+) (ms|us) \|", section)
    assert len(shown) > 8
    for number, unit in shown:
        scale = {"ms": 1e3, "us": 1e6}[unit]
        digits = len(number.partition(".")[2])
        assert number in {f"{each * scale:.{digits}f}" for each in medians.values()}
