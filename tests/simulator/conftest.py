"""What the tests of the simulator share."""

from __future__ import annotations

import pytest

import gpumagic
from tests import own_process


@pytest.fixture
def box():
    """A simulated machine with two H100, switched on for one test."""
    with gpumagic.simulate("2xh100") as machine:
        yield machine


@pytest.fixture(scope="module")
def kept_box():
    """The same, for all tests of a file: they leave nothing on it that matters."""
    with gpumagic.simulate("2xh100") as machine:
        yield machine


@pytest.fixture(scope="session")
def fork():
    """Runs programs in processes that have imported torch, and no more of it."""
    with own_process.forks("import torch, gpumagic") as run:
        yield run
