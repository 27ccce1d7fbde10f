"""What the tests of the memory magic share."""

from __future__ import annotations

import pytest

import gpumagic


@pytest.fixture
def box():
    """A simulated machine with two H100, switched on for one test."""
    with gpumagic.simulate("2xh100") as machine:
        yield machine
