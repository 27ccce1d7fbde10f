from __future__ import annotations

import fcntl
import os
import tempfile

import pytest

from gpumagic.gpu_select import claims, folders
from tests.gpu_select.claimants import claim_files, forge, holder


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch) -> None:
    """Claims of these tests meet no others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_stuck_lock_is_waited_for_only_so_long(tmp_path):
    """Claims are still read and written where another process keeps the lock."""
    with holder(tmp_path):
        stuck = os.open(folders.shared(), os.O_RDONLY)
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with claims.held_open(timeout_s=0.05) as ledger:
            assert set(ledger.others()) == {"GPU-held"}
            ledger.take(["GPU-0"])
        os.close(stuck)

        assert "another process has kept the claims locked for 50" in ledger.problem
        assert len(claim_files()) == 2
    claims.release()


@pytest.mark.parametrize(
    "content",
    ["", "garbage", "[]", "{}", "\udcff", "[" * 10_000, '{"pid": -1}', "1" * 10_000],
)
def test_a_file_of_garbage_is_said_and_taken_away(content):
    """A spoilt file costs its own claim, and no other."""
    forge()
    spoilt = folders.shared() / "claim-spoilt.json"
    spoilt.write_bytes(content.encode(errors="surrogateescape"))

    with claims.held_open() as ledger:
        assert set(ledger.others()) == {"GPU-forged"}

    assert "makes no sense" in ledger.problem
    assert not spoilt.exists()


def test_what_is_no_plain_file_is_neither_followed_nor_waited_for(tmp_path):
    """A link, a pipe or a folder under the name of a claim does no harm."""
    secret = tmp_path / "secret"
    secret.write_text(forge().read_text())
    (folders.shared() / "claim-of-another.json").unlink()
    (folders.shared() / "claim-link").symlink_to(secret)
    os.mkfifo(folders.shared() / "claim-pipe")
    (folders.shared() / "claim-folder").mkdir()

    with claims.held_open() as ledger:
        assert ledger.others() == {}
    assert ledger.problem is not None
    assert secret.exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    """Nobody can make a notebook write its claims elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "gpumagic-claims").symlink_to(elsewhere)

    with claims.held_open() as ledger:
        assert ledger.others() == {}
        ledger.take(["GPU-0"])

    assert "This is not a folder" in ledger.problem
    assert list(elsewhere.iterdir()) == []


def test_a_machine_without_a_folder_has_no_claims(monkeypatch):
    """Where nothing can be made, choosing goes on and the reason is said."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/1")

    with claims.held_open() as ledger:
        assert ledger.others() == {}
        ledger.take(["GPU-0"])
    claims.release()

    assert "cannot be looked up" in ledger.problem


def test_the_working_directory_does_not_stand_in_for_temporary_files(
    tmp_path, monkeypatch
):
    """Where no temporary file can be written, none is put beside the notebook."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        folders.shared()


@pytest.mark.parametrize("failing", ["open", "rename"])
def test_a_claim_that_cannot_be_written_leaves_no_half_of_it(monkeypatch, failing):
    """On a full disk or in a read-only folder nothing raises, and nothing stays."""
    with claims.held_open() as ledger, monkeypatch.context() as broken:
        ledger.take(["GPU-0"])
        broken.setattr(os, failing, no_space)
        ledger.take(["GPU-1"])

    assert "No space left on device" in ledger.problem
    assert list(folders.shared().iterdir()) == []


def no_space(*_: object, **__: object) -> None:
    """What a full disk says."""
    raise OSError(28, "No space left on device")
