"""What the tests of the simulator share."""

from __future__ import annotations

import pytest

import gpumagic
from tests import own_process
from tests.simulator.interrupting import other_process


@pytest.fixture(scope="module")
def machine():
    """What is simulated: two H100; a file may want another."""
    return {"machine": "2xh100"}


@pytest.fixture
def box(machine):
    """A simulated machine, switched on for one test."""
    with gpumagic.simulate(**machine) as box:
        yield box


@pytest.fixture(scope="module")
def kept():
    """The machine that is kept on from test to test of a file, if one is."""
    boxes = []
    yield boxes
    _switch_off(boxes)


@pytest.fixture(autouse=True)
def off_for_others(request, kept):
    """A test that does not ask for the machine that is kept finds none on."""
    names = request.fixturenames
    if "kept_box" not in names or "box" in names:
        _switch_off(kept)


@pytest.fixture
def kept_box(request, kept, machine):
    """The same, for all tests of a file: they leave nothing on it that matters.

    A test that asks for a machine for itself has that one alone.
    """
    if "box" in request.fixturenames:
        return request.getfixturevalue("box")
    if not kept or not kept[-1].is_on:
        kept[:] = [gpumagic.simulate(**machine)]
    return kept[-1]


@pytest.fixture
def one_thread():
    """Let torch compute in the thread that asks, which needs no others for so little.

    A forked child has none, and cores may be few.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sender():
    """Another process that interrupts this one when told to."""
    with other_process() as one:
        yield one


def _switch_off(boxes):
    while boxes:
        boxes.pop().off()


@pytest.fixture(scope="session")
def fork():
    """Runs programs in processes that have imported torch, and no more of it.

    sympy is not of torch, but half of what its compiler takes to import.
    """
    with own_process.forks("import sympy, torch, gpumagic") as run:
        yield run
