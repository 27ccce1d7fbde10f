"""torch's sync debug mode on a stand-in: what is noted, and that all is put back."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest

from gpumagic.devices.sync_watch import watch_syncs
from gpumagic.errors import DeviceError
from tests.cuda_sync_time.waiting_torch import (
    DISABLED,
    ERROR,
    SYNC,
    WARN,
    Tensor,
    Torch,
)


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


def test_each_time_counts(torch):
    """A line in a loop is noted each time, though Python would warn once."""
    loss = Tensor(torch)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with watch_syncs(torch, "cuda") as seen:
            for _ in range(5):
                loss.item()

    assert len(seen) == 5


def test_a_condition_is_told_as_one(torch):
    """A tensor that is asked whether it is true is no call, and told all the same."""
    found = Tensor(torch)

    with watch_syncs(torch, "cuda") as seen:
        if found:
            found.cpu()

    assert [each.what for each in seen] == ["a tensor as a condition", ".cpu()"]


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


def test_everything_is_as_before_where_the_code_raises(torch):
    """A cell that raises leaves nothing behind, and has its waits in the list."""
    before = state_of(torch)
    loss = Tensor(torch)

    with pytest.raises(ZeroDivisionError), watch_syncs(torch, "cuda") as seen:
        loss.item() / 0

    assert state_of(torch) == before
    assert len(seen) == 1


def test_other_warnings_reach_the_user(torch):
    """What has nothing to do with waits is shown as it would have been."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with watch_syncs(torch, "cuda"):
            warnings.warn("mind the gap", stacklevel=1)
            Tensor(torch).item()

    assert [str(each.message) for each in shown] == ["mind the gap"]


def test_filters_of_the_code_stay(torch):
    """What the cell itself sets, in filters or in the mode, outlives the block."""
    torch.mode = WARN
    with warnings.catch_warnings():
        with watch_syncs(torch, "cuda"):
            warnings.simplefilter("ignore", ResourceWarning)
            torch.set_mode(DISABLED)

        assert warnings.filters[0][2] is ResourceWarning
        assert not any("synchronizing" in str(each[1]) for each in warnings.filters)
    assert torch.mode == DISABLED


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


def test_threads_are_seen(torch):
    """What another thread waits for is noted with the line of that thread."""
    loss = Tensor(torch)

    with watch_syncs(torch, "cuda") as seen:
        thread = threading.Thread(target=lambda: 2 * loss.item())
        thread.start()
        thread.join()

    assert [each.what for each in seen] == [".item()"]


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_kinds_without_the_mode_are_refused(torch, kind):
    """Where torch has no such mode, entering says so and what to type."""
    with pytest.raises(DeviceError, match=kind) as caught, watch_syncs(torch, kind):
        pass

    assert "--syncs" in caught.value.hint


def test_a_torch_without_cuda_is_refused():
    """The torch of this machine can be asked without harm, and says why not."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has CUDA")

    with pytest.raises(DeviceError, match="without CUDA"), watch_syncs(torch, "cuda"):
        pass
