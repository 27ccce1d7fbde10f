"""What a choice of free GPUs promises where the driver tells little, or users share."""

from __future__ import annotations

import os
import tempfile

import pytest

from gpumagic.gpu_select import claims, folders, restart
from gpumagic.gpu_select.machine import Place
from gpumagic.gpu_select.usage import usage_of
from tests.gpu_select.claimants import claim_files
from tests.gpu_select.free_ones import MINE, choose, numbers, refusal, said
from tests.gpu_select.machines import GIB, TOTAL, gpu, machine


def test_what_the_driver_keeps_for_itself_is_nobodys_use():
    """Where used memory is not told it is what is neither free nor the driver's."""
    kept = gpu(
        0,
        memory_used_bytes=None,
        memory_free_bytes=40 * GIB,
        memory_reserved_bytes=30 * GIB,
    )

    usage = usage_of(Place(kept), lambda _: False, own_yield=False)

    assert usage.used_bytes == 10 * GIB


def test_own_processes_free_no_more_than_there_is():
    """Processes that yield may be told to hold more than is in use."""
    crowded = gpu(0, used_gib=10, pids=[MINE], each_gib=30)

    usage = usage_of(Place(crowded), lambda _: True, own_yield=True)

    assert (usage.free_bytes, usage.used_bytes) == (TOTAL, 0)


def test_a_gpu_of_unknown_model_is_not_the_model_that_was_asked_for():
    """Who asks for an H100 is not given a GPU that does not say what it is."""
    nameless = gpu(0, name=None)

    assert numbers(choose(machine(nameless, gpu(1)), name="h100")) == [1]
    error = refusal(machine(nameless), name="h100")
    assert "its model is unknown" in said(error.opinions)[0]


def test_a_claim_can_be_read_by_others_whatever_the_umask(tmp_path, monkeypatch):
    """A user who keeps files to themselves still tells others which GPU is taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0o077)
    try:
        with claims.held_open() as ledger:
            ledger.take(["GPU-0"])
        (file,) = claim_files()
        assert file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
        claims.release()


@pytest.mark.parametrize("sizes", [(None, None), (3 * GIB, None)])
def test_unknown_memory_stays_unknown(sizes):
    """Figures that the driver does not tell do not become zero."""
    total, free = sizes
    silent = gpu(
        0, memory_total_bytes=total, memory_free_bytes=free, memory_used_bytes=None
    )

    usage = usage_of(Place(silent), lambda _: True, own_yield=True)

    assert (usage.free_bytes, usage.used_bytes) == (None, None)


def test_a_request_that_cannot_be_kept_leaves_no_half_of_it(tmp_path, monkeypatch):
    """Where the file cannot be put in its place, nothing stays of it."""
    # Given a folder in the place of the file
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    restart.keep("free", ["GPU-0"], "kernel-1.json")
    (file,) = folders.private().iterdir()
    file.unlink()
    file.mkdir()

    # When
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        restart.keep("free", ["GPU-0"], "kernel-1.json")

    # Then
    assert list(folders.private().iterdir()) == [file]
