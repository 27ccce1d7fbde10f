"""What a notebook has kept, written to a file by its ending."""

from __future__ import annotations

import pytest

from gpumagic.report import log


@pytest.mark.parametrize("name", ["LOG.CSV", "log.Json"])
def test_an_ending_in_capitals_is_the_same_ending(tmp_path, name):
    """A log is saved by its ending, however that is written."""
    log.save_rows(str(tmp_path / name), [{"a": 1}], ["a"])

    assert "1" in (tmp_path / name).read_text(encoding="utf-8")
