"""Long work: how far it is, how long it still takes, and how to end it."""

from __future__ import annotations

import pytest

from tests.browser import hands
from tests.browser.lab import PAGES
from tests.browser.page import VIEWS

pytestmark = pytest.mark.browser

# What a notebook has that an interrupted magic could leave changed.
HOW_THINGS_ARE = """\
def how_things_are():
    import gc, multiprocessing, os, random, threading
    import torch
    return {
        'names': sorted(name for name in globals() if not name.startswith('_')),
        'collects': gc.isenabled(),
        'variables': dict(os.environ),
        'random': random.getstate(),
        'torch': torch.get_rng_state().tolist(),
        'threads': torch.get_num_threads(),
        'workers': len(multiprocessing.active_children()),
    }
"""

CHANGED = "now = how_things_are(); [name for name in now if now[name] != before[name]]"

SLOW_LOADER = """\
import time
import torch
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.zeros(8)

slow_dl = DataLoader(Slow(), batch_size=2)
torch.set_num_threads(2)
"""

# Each would go on for an hour: only an interrupt can end it within a test.
LONG = {
    "%cuda_sync_time": "%cuda_sync_time --repeat 99999 sum(range(3_000_000))",
    "%%cuda_sync_time": "%%cuda_sync_time --repeat 99999\nsum(range(3_000_000))",
    "%pin_loader": "%pin_loader slow_dl --budget 10m",
}


@pytest.mark.parametrize(
    ("live", "typed"),
    [(page, LONG["%cuda_sync_time"]) for page in PAGES]
    + [("lab", LONG["%%cuda_sync_time"]), ("lab", LONG["%pin_loader"])],
    ids=[*PAGES, "cell", "pin_loader"],
    indirect=["live"],
)
def test_a_long_magic_shows_time_left_and_ends_when_interrupted(live, typed):
    """One line counts in its own cell; the stop button ends the work, and no more."""
    page = live.page
    hands.run(page, HOW_THINGS_ARE + SLOW_LOADER)
    hands.run(page, "before = now = None")
    hands.run(page, "before = how_things_are()")
    place = hands.begin(page, typed)
    page.wait_for_function(f"/estimated .* left/.test(look.cells()[{place}][0]?.words)")
    live.view(VIEWS["wide"])
    live.photograph("running")
    assert len(hands.shown(page, place)) == 1
    hands.interrupt(page)
    hands.finish(page, place)
    live.photograph("interrupted")

    progress, error = hands.shown(page, place)
    assert "stopped at" in progress["words"]
    assert " left" not in progress["words"]
    assert error["words"].strip().endswith("KeyboardInterrupt:")
    # Between two runs of the user's code there is a frame of ours to be stopped in.
    assert error["words"].count("/gpumagic/") <= 1
    (changed,) = hands.run(page, CHANGED)
    assert changed["words"].strip() == "[]"
    assert live.complaints == []
