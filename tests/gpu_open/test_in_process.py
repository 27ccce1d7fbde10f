"""The tests of opened files that switch the simulator on, in a process of their own."""

from __future__ import annotations

import pytest

from tests import own_process

pytest.importorskip("torch")


def test_in_a_process_of_their_own():
    """Every behaviour that the files state holds where the simulator is met first."""
    own_process.check(*own_process.files_beside(__file__))
