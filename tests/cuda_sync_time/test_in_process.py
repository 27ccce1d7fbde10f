"""The timing tests that switch the simulator on, each file in a process of its own."""

from __future__ import annotations

import pytest

from tests import own_process

pytest.importorskip("torch")


@pytest.mark.parametrize(
    "file", own_process.files_beside(__file__), ids=lambda file: file.stem
)
def test_in_a_process_of_its_own(file):
    """Every behaviour that this file states holds in a fresh process."""
    own_process.check(file)
