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
    "tensor_info": "Show how tensors lie in memory",
    "pin_loader": "Find out whether a DataLoader feeds the GPU",
}
OFFERED = {
    "%gpu_": {"%gpu_doctor", "%gpu_mem", "%gpu_select"},
    "%gpu_doctor --": {"--json", "--quiet", "--help"},
    "%gpu_select --": {"--dry-run", "--simulate", "--restart"},
    "%gpu_select --hazards ": {"report", "poison", "off"},
    "%%cuda_sync_time --": {"--repeat", "--profile", "--vs"},
    "%cuda_sync_time --b": {"--before", "--budget", "--bytes"},
    "%gpu_mem --": {"--lines", "--exact", "--cache"},
    "%tensor_info --": {"--view", "--alias", "--values"},
    "%pin_loader --": {"--diagnose", "--workers", "--watch"},
    "%pin_loader train": {"train_dl", "train_other"},
    "%pin_loader train_dl --device ": {"cpu"},
    "report = %gpu_mem --": {"--json", "--top"},
}


@pytest.mark.parametrize("live", PAGES, indirect=True)
def test_help_is_shown_in_words(live):
    """`?` and `--help` say what a magic is for, how it is called, and each option."""
    for name, purpose in MAGICS.items():
        (asked,) = hands.run(live.page, f"%{name}?")
        (helped,) = hands.run(live.page, f"%{name} --help")
        for help_text in (asked["words"], helped["words"]):
            assert purpose in help_text
            assert f"%{name} [" in help_text
            assert "-q, --quiet" in help_text
        longest = max(map(len, helped["words"].splitlines()))
        assert longest <= 80, f"%{name} --help is {longest} columns wide"
    live.view(VIEWS["wide"])
    live.photograph("help")
    assert live.complaints == []


def test_tab_completes_words_behind_each_magic(live):
    """Options, what they take, names and devices are offered as they are typed."""
    hands.run(live.page, "train_dl = train_other = 1")
    missing = {}
    for line, words in OFFERED.items():
        offered = hands.offered(live.page, line)
        if not words <= offered:
            missing[line] = words - offered
    assert missing == {}
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
