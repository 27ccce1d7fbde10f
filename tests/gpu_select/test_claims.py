"""Claims are seen by all, survive trouble, and end with the process that made them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.gpu_select import claims, processes
from gpumagic.gpu_select.claims import Claim, claim_text, claims_in
from gpumagic.gpu_select.processes import Process, Standing, standing, this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]

HOLDER = """
import sys
from gpumagic.gpu_select import claims

with claims.held_open() as held:
    held.take(["GPU-held"])
print(held.problem or "held", flush=True)
"""


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen:
    """A process on the machine whose temporary files lie in this folder."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)},
    )


@contextmanager
def holder(folder: Path, code: str = HOLDER, then: str = "") -> Iterator:
    """A process that has claimed GPU-held, and goes on until its input ends."""
    with start(code + (then or "sys.stdin.read()"), folder) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.kill()


def others() -> dict[str, Claim]:
    """What this test sees of others, where all is well."""
    with claims.held_open() as held:
        found = held.others()
    assert held.problem is None
    return found


def claim_files() -> list[Path]:
    """The files of all claims, of the dead too."""
    return sorted(claims.shared_folder().glob("claim-*"))


def forge(**changes: object) -> Path:
    """Put a claim of this test's parent there, with some of it changed."""
    parent = json.loads(claim_text(["GPU-forged"], this_process(), time.time()))
    parent |= {"pid": os.getppid(), "start_ticks": None, **changes}
    file = claims.shared_folder() / "claim-of-another.json"
    file.write_text(json.dumps(parent))
    return file


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
    with claims.held_open() as held:
        held.take(["GPU-0"])
        assert held.others() == {}
    claims.release()


def test_a_new_claim_replaces_the_one_before_it(tmp_path):
    """What a notebook no longer uses is free for others at once."""
    twice = HOLDER.replace("    held.take", "    held.take(['old'])\n    held.take")
    with holder(tmp_path, twice):
        assert set(others()) == {"GPU-held"}


def test_taking_nothing_gives_up_the_claim_before():
    """A choice of no GPU leaves no claim behind."""
    with claims.held_open() as held:
        held.take(["GPU-0"])
        held.take([])
    assert claim_files() == []


def test_a_released_claim_is_gone():
    """`release` gives up what this process has claimed."""
    with claims.held_open() as held:
        held.take(["GPU-0"])
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
    with claims.held_open() as held:
        seen = set(held.others())
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


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text() | st.integers())
)
FIELDS = ("uuids", "pid", "start_ticks", "boot", "namespace", "user", "when")
SOUND = json.loads(claim_text(["GPU-1a2b"], this_process(), 0.0))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, ANYTHING)))
@hypothesis_settings(deadline=None)
def test_any_content_is_either_claims_or_refused(changes):
    """Whatever stands in a file, reading it raises nothing but ValueError."""
    try:
        found = claims_in(json.dumps(SOUND | changes))
    except ValueError:
        return
    for claim in found:
        assert standing(claim.holder) in Standing
        assert claim.text(0.0).isprintable()


@given(
    st.lists(st.text()),
    st.builds(
        Process,
        st.integers(1, 2**22),
        st.none() | st.integers(0),
        st.none() | st.text(),
        st.none() | st.text(),
    ),
    st.floats(0, 1e12),
)
@hypothesis_settings(deadline=None)
def test_what_is_written_is_read_again(uuids, process, when):
    """A claim comes out of its file as it went in."""
    found = claims_in(claim_text(uuids, process, when))
    assert [claim.uuid for claim in found] == uuids
    assert all((claim.holder, claim.when) == (process, when) for claim in found)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [(-5, "just now"), (0.4, "just now"), (42, "42.0 s ago"), (200, "3 min ago")],
)
def test_a_claim_says_how_old_it_is(age_s, words):
    """The age is rounded to what a reader wants to know."""
    claim = Claim("GPU-1a2b", Process(4242), "anna", when=1000.0)
    assert claim.text(1000.0 + age_s) == f"pid 4242 of anna, {words}"


def test_this_process_lives_and_others_of_its_number_do_not():
    """A process knows itself again by all that is known of it."""
    me = this_process()
    assert standing(me) is Standing.ALIVE
    assert standing(Process(2**40, None, me.boot, me.namespace)) is Standing.GONE


def test_a_process_of_others_that_proc_hides_is_alive(monkeypatch):
    """Where /proc shows nobody's but one's own, asking by a signal tells."""
    me = this_process()
    hidden = Process(os.getppid(), None, me.boot, me.namespace)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(processes, "_state_and_start", lambda _: ("?", None))
    monkeypatch.setattr(os, "kill", refuse)

    assert standing(hidden) is Standing.ALIVE


def test_a_stuck_lock_is_waited_for_only_so_long(tmp_path):
    """Claims are still read and written where another process keeps the lock."""
    with holder(tmp_path):
        stuck = os.open(claims.shared_folder(), os.O_RDONLY)
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with claims.held_open(timeout_s=0.05) as held:
            assert set(held.others()) == {"GPU-held"}
            held.take(["GPU-0"])
        os.close(stuck)

        assert "another process has kept the claims locked for 50" in held.problem
        assert len(claim_files()) == 2
    claims.release()


@pytest.mark.parametrize(
    "content",
    ["", "garbage", "[]", "{}", "\udcff", "[" * 10_000, '{"pid": -1}', "1" * 10_000],
)
def test_a_file_of_garbage_is_said_and_taken_away(content):
    """A spoilt file costs its own claim, and no other."""
    forge()
    spoilt = claims.shared_folder() / "claim-spoilt.json"
    spoilt.write_bytes(content.encode(errors="surrogateescape"))

    with claims.held_open() as held:
        assert set(held.others()) == {"GPU-forged"}

    assert "makes no sense" in held.problem
    assert not spoilt.exists()


def test_what_is_no_plain_file_is_neither_followed_nor_waited_for(tmp_path):
    """A link, a pipe or a folder under the name of a claim does no harm."""
    secret = tmp_path / "secret"
    secret.write_text(forge().read_text())
    (claims.shared_folder() / "claim-of-another.json").unlink()
    (claims.shared_folder() / "claim-link").symlink_to(secret)
    os.mkfifo(claims.shared_folder() / "claim-pipe")
    (claims.shared_folder() / "claim-folder").mkdir()

    with claims.held_open() as held:
        assert held.others() == {}
    assert held.problem is not None
    assert secret.exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    """Nobody can make a notebook write its claims elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "gpumagic-claims").symlink_to(elsewhere)

    with claims.held_open() as held:
        assert held.others() == {}
        held.take(["GPU-0"])

    assert "This is not a folder" in held.problem
    assert list(elsewhere.iterdir()) == []


def test_a_machine_without_a_folder_has_no_claims(monkeypatch):
    """Where nothing can be made, choosing goes on and the reason is said."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/1")

    with claims.held_open() as held:
        assert held.others() == {}
        held.take(["GPU-0"])
    claims.release()

    assert "cannot be looked up" in held.problem


def test_the_working_directory_does_not_stand_in_for_temporary_files(
    tmp_path, monkeypatch
):
    """Where no temporary file can be written, none is put beside the notebook."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        claims.shared_folder()


@pytest.mark.parametrize("failing", ["open", "rename"])
def test_a_claim_that_cannot_be_written_leaves_no_half_of_it(monkeypatch, failing):
    """On a full disk or in a read-only folder nothing raises, and nothing stays."""
    with claims.held_open() as held, monkeypatch.context() as broken:
        held.take(["GPU-0"])
        broken.setattr(os, failing, no_space)
        held.take(["GPU-1"])

    assert "No space left on device" in held.problem
    assert list(claims.shared_folder().iterdir()) == []


def no_space(*_: object, **__: object) -> None:
    """What a full disk says."""
    raise OSError(28, "No space left on device")


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
    with claims.held_open(timeout_s=300) as held:
        taken = held.others()
        time.sleep(0.001)  # as long as a look at the GPUs takes at least
        free = [gpu for gpu in gpus if gpu not in taken]
        held.take(free[:1])
    print(*free[:1], held.problem or "", flush=True)
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
with claims.held_open() as held:
    print(held.problem, *held.others(), flush=True)
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
        assert claims.shared_folder().stat().st_mode & 0o7777 == 0o1777


def as_user(uid: int) -> str:
    """A holder of another user's, who keeps all files private."""
    become = f"""
import fcntl, os, pwd, tempfile
os.setgroups([]), os.setgid({uid}), os.setuid({uid}), os.umask(0o077)
"""
    return HOLDER.replace("\nwith", f"{become}\nwith")


def test_a_claim_can_be_read_by_others_whatever_the_umask(tmp_path, monkeypatch):
    """A user who keeps files to themselves still tells others which GPU is taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0o077)
    try:
        with claims.held_open() as held:
            held.take(["GPU-0"])
        (file,) = claim_files()
        assert file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
        claims.release()
