from __future__ import annotations

import os
import signal
import tempfile
import time

import pytest

from gpumagic.gpu_select import claims
from tests.gpu_select.claimants import HOLDER, claim_files, forge, holder, others

NINE_HOURS_S = 9 * 3600.0


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch) -> None:
    """Claims of these tests meet no others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_claim_is_seen_by_others_with_its_holder(tmp_path):
    """A notebook is told which process of which user has claimed a GPU."""
    with holder(tmp_path) as process:
        claim = others()["GPU-held"]

        assert claim.holder.pid == process.pid
        assert f"pid {process.pid} of {claim.user}, " in str(claim)


def test_a_process_does_not_count_its_own_claim_as_anothers():
    """Asking again may give the same GPU again."""
    with claims.held_open() as ledger:
        ledger.take(["GPU-0"])
        assert ledger.others() == {}
    claims.release()


def test_a_new_claim_replaces_the_one_before_it(tmp_path):
    """What a notebook no longer uses is free for others at once."""
    twice = HOLDER.replace(
        "    ledger.take", "    ledger.take(['old'])\n    ledger.take"
    )
    with holder(tmp_path, twice):
        assert set(others()) == {"GPU-held"}


def test_taking_nothing_gives_up_the_claim_before():
    """A choice of no GPU leaves no claim behind."""
    with claims.held_open() as ledger:
        ledger.take(["GPU-0"])
        ledger.take([])
    assert claim_files() == []


def test_a_released_claim_is_gone():
    """`release` gives up what this process has claimed."""
    with claims.held_open() as ledger:
        ledger.take(["GPU-0"])
    claims.release()
    assert claim_files() == []


def test_a_process_that_ends_gives_up_its_claim(tmp_path):
    """An interpreter that exits leaves no file."""
    with holder(tmp_path) as process:
        process.stdin.close()
        process.wait(timeout=300)
        assert claim_files() == []


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_process_has_no_claim(tmp_path, reaped):
    """A killed kernel frees its GPU, before its parent has noticed as well."""
    with holder(tmp_path) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            process.wait()
        assert len(claim_files()) == 1

        assert others() == {}
        assert claim_files() == []  # what the dead have left is taken away


def test_a_process_that_got_the_number_of_a_dead_one_has_not_its_claim():
    """A pid alone proves nothing: the start time has to fit as well."""
    file = forge(start_ticks=1)
    assert others() == {}
    assert not file.exists()


def test_a_claim_from_before_a_reboot_is_gone():
    """What another boot has left behind means no process of this one."""
    forge(boot="another")
    assert others() == {}


def test_a_process_whose_start_cannot_be_read_is_believed():
    """Where only the pid is known, a process that exists keeps its claim."""
    forge()
    assert set(others()) == {"GPU-forged"}


def test_a_claim_from_another_container_counts_for_some_hours():
    """A process that cannot be seen is believed until its claim is old."""
    forge(namespace="pid:[1]", pid=2**22 + 1)
    assert "in another container" in str(others()["GPU-forged"])

    forge(namespace="pid:[1]", when=time.time() - NINE_HOURS_S)
    assert others() == {}


def test_a_forked_child_does_not_own_the_claim_of_its_parent(tmp_path):
    """The end of a worker process leaves the notebook's claim alone."""
    fork = """
child = os.fork()
if not child:
    with claims.held_open() as ledger:
        seen = set(ledger.others())
    claims.release()
    os._exit(seen != {"GPU-held"})
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
sys.stdin.read()
"""
    with holder(tmp_path, then="import os" + fork) as process:
        assert process.stdout.readline() == "0\n"
        assert set(others()) == {"GPU-held"}


def test_a_claim_stays_with_the_program_that_replaces_its_process(tmp_path):
    """`os.exec` keeps the process, and so its claim."""
    replaced = """
import os
os.execv(sys.executable, [sys.executable, "-c", "print('new', flush=True); input()"])
"""
    with holder(tmp_path, then=replaced) as process:
        assert process.stdout.readline() == "new\n"
        assert set(others()) == {"GPU-held"}
        process.kill()
        process.wait()
        assert others() == {}


def test_a_child_forked_under_the_lock_does_not_keep_it():
    """A worker that is forked by another thread meanwhile locks nobody out."""
    with claims.held_open():
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    try:
        assert others() == {}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
