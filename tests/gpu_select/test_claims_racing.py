from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpumagic.gpu_select import folders
from tests.gpu_select.claimants import HOLDER, holder, start

if TYPE_CHECKING:
    import subprocess

# Chooses when told to, at a moment that is the same for all, and says what.
CHOOSER = """
import sys, time
from gpumagic.gpu_select import claims

gpus = [f"GPU-{number}" for number in range(int(sys.argv[1]))]
for line in sys.stdin:
    if line == "release\\n":
        claims.release()
        print("released", flush=True)
        continue
    while time.monotonic() < float(line):
        pass
    with claims.held_open(timeout_s=300) as ledger:
        taken = ledger.others()
        time.sleep(0.001)  # as long as a look at the GPUs takes at least
        free = [gpu for gpu in gpus if gpu not in taken]
        ledger.take(free[:1])
    print(*free[:1], ledger.problem or "", flush=True)
"""


@pytest.mark.parametrize(("workers", "gpus", "rounds"), [(2, 4, 200), (6, 8, 40)])
def test_processes_that_choose_at_the_same_moment_never_choose_the_same(
    tmp_path, workers, gpus, rounds
):
    """However often they race, each process gets a GPU that no other has."""
    with ExitStack() as running:
        racers = [
            running.enter_context(start(CHOOSER, tmp_path, str(gpus)))
            for _ in range(workers)
        ]
        tell(racers, "release")  # once they answer, they have started
        for _ in range(rounds):
            chosen = tell(racers, str(time.monotonic() + 0.005))
            assert len(set(chosen)) == workers, chosen
            assert all(each.startswith("GPU-") for each in chosen)
            assert set(tell(racers, "release")) == {"released"}
        for racer in racers:
            racer.stdin.close()


def tell(racers: list[subprocess.Popen], line: str) -> list[str]:
    """Tell all at once, and hear what each says."""
    for racer in racers:
        racer.stdin.write(f"{line}\n")
        racer.stdin.flush()
    return [racer.stdout.readline().strip() for racer in racers]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
def test_users_share_the_folder_whatever_their_umask(monkeypatch):
    """Users see each other's claims, and the dead one of another is no claim."""
    look = """
with claims.held_open() as ledger:
    print(ledger.problem, *ledger.others(), flush=True)
sys.stdin.read()
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        machine = Path(name)
        machine.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        with holder(machine, as_user(40001)) as anna:
            with holder(machine, as_user(40002), then=look) as bert:
                assert bert.stdout.readline() == "None GPU-held\n"
            anna.kill()
            anna.wait()
            with holder(machine, as_user(40002), then=look) as bert:
                assert bert.stdout.readline() == "None\n"
        assert folders.shared().stat().st_mode & 0o7777 == 0o1777


def as_user(uid: int) -> str:
    """A holder of another user's, who keeps all files private."""
    become = f"""
import fcntl, os, pwd, tempfile
os.setgroups([]), os.setgid({uid}), os.setuid({uid}), os.umask(0o077)
"""
    return HOLDER.replace("\nwith", f"{become}\nwith")
