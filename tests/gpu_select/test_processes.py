"""Whose process it is that the driver lists."""

from __future__ import annotations

import os

import pytest

from gpumagic.gpu_select import processes

HERE = os.getpid()


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """A /proc of our own, in the machine's first namespace."""
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    (tmp_path / str(HERE)).mkdir()
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    return tmp_path


def test_a_process_of_this_user_is_mine(listed, monkeypatch):
    """The owner of the process decides, and nobody else's is mine."""
    assert processes.is_mine(HERE) is True
    monkeypatch.setattr(os, "getuid", lambda: listed.stat().st_uid + 1)
    assert processes.is_mine(HERE) is False


def test_a_process_that_is_gone_belongs_to_nobody_known(listed):
    """What cannot be looked up is unknown, not another's."""
    assert not (listed / "1").exists()
    assert processes.is_mine(1) is None


def test_in_a_container_no_number_is_believed(listed):
    """There the driver's number is another process than the one of that number."""
    (listed / "self" / "ns" / "pid").unlink()
    (listed / "self" / "ns" / "pid").symlink_to("pid:[4026532198]")
    assert processes.is_mine(HERE) is None
