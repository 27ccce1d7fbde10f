"""Whoever asks for a GPU gets one that no other process has, and harms nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpumagic.gpu_select import claims
from tests.fakes.run import machine_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
HOLDER = """
import os, sys
from gpumagic.gpu_select import claims

with claims.one_at_a_time() as held:
    held.take(["GPU-held"])
print(held.problem or "held", flush=True)
"""


def start(code: str, folder: Path, *arguments: str, **env: str) -> subprocess.Popen:
    """A process on the machine whose temporary files lie in this folder."""
    machine = {"TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY), **env}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **machine},
    )


@contextmanager
def holder(folder: Path, code: str = HOLDER, then: str = "") -> Iterator:
    """A process that has claimed GPU-held, and goes on until its input ends."""
    with start(code + (then or "sys.stdin.read()"), folder) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.kill()


def others(*uuids: str) -> dict[str, str]:
    """What this test sees of others, where all is well."""
    with claims.one_at_a_time() as held:
        found = held.of_others(uuids or ["GPU-held", "GPU-0"])
    assert not held.problem
    return found


def take(*uuids: str) -> str | None:
    """Claim these here; what was in the way."""
    with claims.one_at_a_time() as held:
        held.take(uuids)
    return held.problem


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch) -> Iterator[None]:
    """Claims of these tests meet no others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    take()


def test_a_claim_is_seen_by_others_as_long_as_its_process_lives(tmp_path):
    """A notebook is told which process has a GPU; killed, it has it no more."""
    with holder(tmp_path) as process:
        assert others() == {"GPU-held": f"pid {process.pid} of user {os.getuid()}"}
        process.kill()
        process.wait()
        assert others() == {}


def test_a_process_does_not_count_its_own_claim_as_anothers(tmp_path):
    """Asking again may give the same GPU again, and a new claim replaces the old."""
    twice = HOLDER.replace("    held.take", "    held.take(['GPU-0'])\n    held.take")
    take("GPU-1")
    assert others("GPU-1") == {}
    assert dict(claims.held()).keys() == {"GPU-1"}
    take()
    assert list(claims.held()) == []
    with holder(tmp_path, twice):
        assert others().keys() == {"GPU-held"}


@pytest.mark.parametrize("place", ["file", "link", "nowhere"])
def test_a_folder_that_cannot_be_had_is_said_and_nothing_is_claimed(
    place, tmp_path, monkeypatch
):
    """A file or a link in its place is not followed; choosing goes on."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if place == "file":
        claims.folder().touch()
    elif place == "link":
        claims.folder().symlink_to(elsewhere)
    else:
        monkeypatch.setattr(tempfile, "tempdir", "/proc/1")

    with claims.one_at_a_time() as held:
        held.take(["GPU-0"])
        assert held.of_others(["GPU-0"]) == {}

    assert "cannot be seen" in held.problem
    assert list(elsewhere.iterdir()) == []


def tell(racers: list[subprocess.Popen], line: str) -> list[str]:
    """Tell all at once, and hear what each says."""
    for racer in racers:
        racer.stdin.write(f"{line}\n")
        racer.stdin.flush()
    return [racer.stdout.readline().strip() for racer in racers]


STUDENT = """
import functools, sys, time
from gpumagic.gpu_select import claims, select

claims.one_at_a_time = functools.partial(claims.one_at_a_time, timeout_s=300)
print("here", flush=True)
sys.stdin.readline()
try:
    (row,) = select("free").mapped("predicted")
    print(row.physical, flush=True)
except Exception as error:
    print(error, flush=True)
sys.stdin.read()
"""


def test_thirty_who_ask_in_the_same_second_do_not_get_the_same(tmp_path):
    """Eight GPUs go to eight of twelve, and the others are told who has them."""
    env = machine_environment(tmp_path, scenario="idle_eight_gpus")
    with ExitStack() as running:
        students = [
            running.enter_context(start(STUDENT, tmp_path, **env)) for _ in range(12)
        ]
        for each in students:
            assert each.stdout.readline() == "here\n"
        said = tell(students, "go")
        for each in students:
            each.stdin.close()

    chosen = [int(each) for each in said if each.isdecimal()]
    assert len(chosen) == len(set(chosen)) == 8, said
    refused = [each for each in said if not each.isdecimal()]
    assert all("1 GPU asked for, none free" in each for each in refused)
