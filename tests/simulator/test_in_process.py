"""The tests that switch the simulator on, in processes of their own."""

from __future__ import annotations

import pytest

from tests import own_process

pytest.importorskip("torch")

# Files that switch the same on, of which each leaves the process as it was. Those that
# look whether something has been imported come first.
TOGETHER = {
    "device sim": (
        "data_loaders",
        "half_precision",
        "hooks",
        "host_indices",
        "other_libraries",
        "out_of_memory",
        "pinned_memory",
        "random",
        "runtime",
        "streams",
        "tensors",
        "training",
        "workloads",
    ),
    "standing in for CUDA": (
        "quick_start",
        "as_cuda",
        "graphs",
        "memory_history",
        "profiler",
    ),
    "either name": (
        "refusals",  # before torch remembers that CUDA was there
        "addresses",
        "attention",
        "compiling",
        "feeding_programs",
        "modules",
        "several_gpus",
    ),
    "on and off": ("off", "second_machine", "threads_and_forks"),
    "Ctrl-C": ("interrupts", "interrupt_handling"),
    "torch's own samples": ("autocast", "operator_database"),
}
GROUPS = own_process.groups_beside(__file__, TOGETHER)


@pytest.mark.parametrize("files", GROUPS.values(), ids=GROUPS)
def test_in_a_process_of_its_own(files):
    """Every behaviour that these files state holds in a fresh process."""
    own_process.check(*files)
