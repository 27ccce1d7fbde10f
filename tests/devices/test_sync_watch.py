"""torch's sync debug mode on a stand-in: what is noted, and that all is put back."""

from __future__ import annotations

import logging
import warnings

import pytest

from gpumagic.devices.sync_watch import watch_syncs
from tests.cuda_sync_time.waiting_torch import ERROR, SYNC, Tensor, Torch


@pytest.fixture
def torch():
    """A torch that has CUDA."""
    return Torch()


def state_of(torch):
    """All that a watch changes while it is there."""
    return (
        torch.mode,
        list(warnings.filters),
        warnings.showwarning,
        dict(vars(torch._C)),
        torch.cuda.Stream.synchronize,
        torch.cuda.Event.synchronize,
    )


def test_an_operation_that_waits_is_noted_by_its_line(torch):
    """The line and the call are the user's own; what it cost is not known."""
    loss = Tensor(torch)

    with watch_syncs(torch, "cuda") as seen:
        value = 2 * loss.item()

    (call,) = seen
    assert value == 2
    assert call.what == ".item()"
    assert call.line.where.startswith("test_sync_watch.py, line ")
    assert call.line.source == "value = 2 * loss.item()"
    assert call.waited_s is None


EXPLICIT = {
    "torch.cuda.synchronize()": lambda torch: torch.cuda.synchronize(),
    "torch.accelerator.synchronize()": (
        lambda torch: torch._C._accelerator_synchronizeDevice(0)
    ),
    "stream.synchronize()": lambda torch: torch.cuda.Stream().synchronize(),
    "event.synchronize()": lambda torch: torch.cuda.Event().synchronize(),
}


@pytest.mark.parametrize("what", EXPLICIT)
def test_an_explicit_wait_is_noted_once_and_timed(torch, what):
    """What the mode misses is noted, and what it sees as well does not count twice.

    So is the next one, with whatever waits between them.
    """
    with watch_syncs(torch, "cuda") as seen:
        EXPLICIT[what](torch)
        Tensor(torch).item()
        EXPLICIT[what](torch)

    assert [call.what for call in seen] == [what, ".item()", what]
    for call in seen[::2]:
        assert call.waited_s >= 0
        assert "lambda torch:" in call.line.source or "torch._C" in call.line.source


_OURS = """
def wait(torch):
    torch.cuda.Event().synchronize()
    torch.cuda.Stream().synchronize()
"""


def test_what_our_own_code_waits_for_is_not_noted(torch):
    """The user's line that it runs within has asked for nothing."""
    ours = {"__name__": "gpumagic.pin_loader.prefetcher"}
    exec(_OURS, ours)  # noqa: S102

    with watch_syncs(torch, "cuda") as seen:
        ours["wait"](torch)
        torch.cuda.Event().synchronize()

    assert [each.what for each in seen] == ["event.synchronize()"]
    assert seen[0].line.source == "torch.cuda.Event().synchronize()"


def test_everything_is_as_before(torch):
    """After the block the mode, filters, hook and functions are those of before."""
    before = state_of(torch)

    with watch_syncs(torch, "cuda"):
        during = state_of(torch)

    assert state_of(torch) == before
    assert all(one != other for one, other in zip(during, before, strict=True))


def test_a_hook_that_outlives_the_block_is_harmless(torch, monkeypatch):
    """Logging keeps what it replaced, puts it back, and it still shows warnings."""
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *each: shown.append(each))

    with watch_syncs(torch, "cuda") as seen:
        logging.captureWarnings(capture=True)
        logs = warnings.showwarning
    kept = warnings.showwarning
    logging.captureWarnings(capture=False)
    warnings.showwarning(UserWarning(SYNC), UserWarning, "train.py", 1)

    assert kept is logs
    assert seen == []
    assert [str(message) for message, *_ in shown] == [SYNC]


def test_an_error_mode_stays_one(torch):
    """Whoever wants waits to raise still has them raise; explicit ones are noted."""
    torch.mode = ERROR

    with watch_syncs(torch, "cuda") as seen:
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="synchronizing"):
            Tensor(torch).item()

    assert torch.mode == ERROR
    assert [each.what for each in seen] == ["torch.cuda.synchronize()"]
