"""What the tests of the tensor magic share."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from gpumagic.tensor_info import names

_LOOK_S = 1e-9


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No search is cut short because the machine was busy with something else.

    Each look at the clock finds it a nanosecond later.
    """
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(looks) * _LOOK_S)
    monkeypatch.setattr(names, "time", clock)
