"""What JupyterLab offers to somebody who types: completion, and help."""

from __future__ import annotations

import pytest

from tests.browser import hands
from tests.browser.lab import PAGES
from tests.browser.page import VIEWS

pytestmark = pytest.mark.browser

MAGICS = {
    "gpu_doctor": "Say what is here for GPU work",
    "gpu_select": "Choose which GPUs this notebook uses",
    "cuda_sync_time": "Say how long a cell really took",
    "gpu_mem": "Say where the GPU memory went",
    "gpu_open": "Say what a recording tells",
    "tensor_info": "Show how tensors lie in memory",
    "pin_loader": "Find out whether a DataLoader feeds the GPU",
}
OFFERED = {
    "%gpu_": {"%gpu_doctor", "%gpu_mem", "%gpu_open", "%gpu_select"},
    "%gpu_doctor --": {"--json", "--quiet", "--help"},
    "%gpu_select --": {"--dry-run", "--simulate", "--restart"},
    "%gpu_select --simulate h": {"h100", "h200"},
    "%gpu_select f": {"free"},
    "%gpu_mem ma": {"map"},
    "%gpu_mem ": {"map", "leaks", "free", "why", "fit", "live", "on", "off"},
    "%cuda_sync_time ": {"on", "off", "train_dl"},
    "%cuda_sync_time --vs ba": {"baseline"},
    "%tensor_info train_": {"train_dl", "train_short"},
    "%%cuda_sync_time --": {"--repeat", "--profile", "--vs"},
    "%cuda_sync_time --l": {"--lines", "--live"},
    "%gpu_mem --": {"--lines"},
    "%gpu_open --": {"--compare", "--replay"},
    "%gpu_open kep": {"kept.json"},
    "%tensor_info --": {"--view", "--alias", "--values"},
    "%pin_loader --": {"--diagnose", "--workers", "--watch"},
    "%pin_loader train": {"train_dl", "train_short"},
    "%pin_loader train_dl --device ": {"cpu", "sim:0", "sim:1"},
    "report = %gpu_mem --": {"--json", "--lines"},
}
BEFORE = """
import gpumagic, torch
from torch.utils.data import DataLoader
box = gpumagic.simulate("2xh100")
train_dl, train_short = DataLoader(range(8)), DataLoader(range(2))
train_other = 1
%cuda_sync_time -q --name baseline 1 + 1
open("kept.json", "w").close()
"""


@pytest.mark.parametrize("live", PAGES, indirect=True)
def test_help_is_shown_in_words(live):
    """`?` and `--help` say what a magic is for, how it is called, and each option."""
    for name, purpose in MAGICS.items():
        (asked,) = hands.run(live.page, f"%{name}?")
        (helped,) = hands.run(live.page, f"%{name} --help")
        for help_text in (asked["words"], helped["words"]):
            assert purpose in help_text
            assert "\n::" not in f"\n{help_text}"
            assert help_text.index(purpose) < help_text.index(f"%{name}", 1)
            assert "-q, --quiet" in help_text
        longest = max(map(len, helped["words"].splitlines()))
        assert longest <= 80, f"%{name} --help is {longest} columns wide"
    live.view(VIEWS["wide"])
    live.photograph("help")
    assert live.complaints == []


def test_tab_completes_words_behind_each_magic(live):
    """Options, what they take, words, names and devices are offered as typed."""
    hands.run(live.page, BEFORE)
    missing = {}
    for line, words in OFFERED.items():
        offered = hands.offered(live.page, line)
        if not words <= offered:
            missing[line] = words - offered
    assert missing == {}
    assert "train_other" not in hands.offered(live.page, "%pin_loader train")
    offered = hands.offered(live.page, "%gpu_mem ")
    # JupyterLab adds the words of the cell itself.
    assert offered - {"%", "gpu_mem"} == OFFERED["%gpu_mem "]
    assert live.complaints == []


def test_a_completed_line_runs(live):
    """What Tab writes is what the magic takes, and the report appears."""
    hands.write(live.page, "%gpu_doctor --js")
    live.page.keyboard.press("Tab")
    live.page.locator(".jp-Completer-item").first.click()
    live.page.wait_for_function("look.lastLine() === '%gpu_doctor --json'")
    live.page.keyboard.press("Shift+Enter")
    hands.finish(live.page, 1)
    (report,) = hands.shown(live.page, 1)
    assert '"headline"' in report["words"]
    assert live.complaints == []
