"""Ctrl-C between two instructions is met there, not one instruction later."""

from __future__ import annotations

import _thread
import signal

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend import interrupts

# Notes the signal and runs no handler, as Ctrl-C does during a long call in C.
ctrl_c = _thread.interrupt_main


@pytest.fixture(autouse=True)
def machine():
    """A simulated machine on which something has been computed."""
    with gpumagic.simulate("h100") as box:
        torch.ones(2, device="sim")
        yield box


class Block:
    """Has to be left through its end."""

    left = 0

    def __enter__(self):
        """Begin the block."""

    def __exit__(self, *_):
        self.left += 1


def test_a_block_is_left_through_its_end_if_ctrl_c_falls_on_its_last_call():
    """What was pressed during a long call at the end of a block stops it inside."""
    block = Block()

    with pytest.raises(KeyboardInterrupt), block:
        ctrl_c()

    assert block.left == 1


def test_cleaning_up_is_not_what_is_interrupted():
    """The function that a `finally` calls runs to its end."""
    tidied = []

    def tidy():
        tidied.append(True)

    def interrupted():
        try:
            ctrl_c()
        finally:
            tidy()

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert tidied == [True]


def test_one_ctrl_c_is_one_interrupt():
    """After it has been raised nothing of it is left."""
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()

    assert sum(range(1000)) == 499_500
    assert (torch.ones(2, device="sim") + 1).tolist() == [2, 2]


def test_c_code_that_runs_handlers_is_not_interrupted_inside():
    """It goes on as if nothing had happened; the interrupt falls behind it."""
    done = []

    with pytest.raises(KeyboardInterrupt):
        done.extend(map(signal.raise_signal, (signal.SIGINT,)))

    assert done == [None]


def test_an_interpreter_laid_out_in_another_way_is_not_read(monkeypatch):
    """Where its marks are not in their place, the handler goes on requesting."""
    monkeypatch.setattr(interrupts, "_MEETS_AT_ONCE", False)
    monkeypatch.setattr(interrupts, "_INTERPRETER", 0)
    later = object()

    assert interrupts.raising_at_once(later, None, raise_now=None) is later
