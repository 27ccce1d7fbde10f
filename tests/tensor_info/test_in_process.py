"""The tests that switch the simulator on, in processes of their own."""

from __future__ import annotations

import pytest

from tests import own_process

pytest.importorskip("torch")

GROUPS = own_process.groups_beside(__file__, {"either name": ("device",)})


@pytest.mark.parametrize("files", GROUPS.values(), ids=GROUPS)
def test_in_a_process_of_its_own(files):
    """Every behaviour that these files state holds in a fresh process."""
    own_process.check(*files)
