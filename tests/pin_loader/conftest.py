"""What the tests of the loader magic share."""

from __future__ import annotations

import pytest

import gpumagic


@pytest.fixture
def box():
    """A simulated machine with one H100, switched on for one test."""
    with gpumagic.simulate("h100") as machine:
        yield machine
