from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.gpu_select import folders, restart
from gpumagic.gpu_select.restart import Kept
from tests.gpu_select.kernels import kernel, run

REPOSITORY = Path(__file__).parents[2]
KEY = "kernel-1.json"


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


def in_another_process(code: str) -> str:
    """What a script prints that keeps its state where the test does."""
    prepare = "import sys; before = {*sys.modules}"
    prepare += "\nfrom gpumagic.gpu_select import restart as keeping\n"
    return subprocess.run(
        [sys.executable, "-c", prepare + code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout.strip()


def keep_before_restart() -> Path:
    """Keep a request as the process before this one did; where it lies."""
    in_another_process(f"keeping.keep('free -n 2', ['GPU-2', 'GPU-0'], {KEY!r})")
    (file,) = folders.private().iterdir()
    return file


def change(file: Path, **changes: object) -> None:
    """Change what is kept, as another process or time would have kept it."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_a_process_has_kept_the_next_one_takes():
    """The request comes back in the user's words, with its GPUs in order."""
    began = time.time() - 1
    keep_before_restart()

    kept = restart.take(KEY)

    assert (kept.text, kept.uuids) == ("free -n 2", ("GPU-2", "GPU-0"))
    assert began <= kept.when <= time.time()


def test_a_request_is_used_once():
    """A second restart starts without it."""
    keep_before_restart()
    assert restart.exists(KEY)
    restart.take(KEY)
    assert not restart.exists(KEY)
    assert restart.take(KEY) is None


def test_another_key_gives_nothing():
    """A request belongs to one notebook."""
    keep_before_restart()
    assert not restart.exists("kernel-2.json")
    assert restart.take("kernel-2.json") is None


def test_the_process_that_kept_it_does_not_take_it():
    """Loading the extension again without a restart leaves the request alone."""
    restart.keep("2", ["GPU-2"], KEY)
    assert restart.take(KEY) is None
    assert in_another_process(f"print(keeping.take({KEY!r}).text)") == "2"


def test_the_last_request_counts():
    """Whoever changes their mind before the restart gets what they said last."""
    keep_before_restart()
    in_another_process(f"keeping.keep('1', ['GPU-1'], {KEY!r})")
    assert restart.take(KEY).text == "1"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"when": time.time() - 2 * 3600}, id="two hours ago"),
        {"when": float("nan")},
        {"host": "another"},
        {"boot": "another"},
        {"uuids": "GPU-1"},
        {"uuids": [1]},
        {"text": None},
    ],
    ids=str,
)
def test_what_is_old_foreign_or_wrong_is_thrown_away(changes):
    """Nothing is chosen by what may no longer be meant, and it does not stay."""
    file = keep_before_restart()
    change(file, **changes)
    assert restart.take(KEY) is None
    assert not file.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"\xff", b"[" * 10_000])
def test_garbage_is_thrown_away(content):
    """A spoilt file does no more than being no request."""
    file = keep_before_restart()
    file.write_bytes(content)
    assert restart.take(KEY) is None
    assert not file.exists()


def test_what_nobody_comes_for_is_taken_away_by_the_next():
    """Requests of notebooks that were never started again do not pile up."""
    file = keep_before_restart()
    os.utime(file, (0, 0))
    restart.keep("2", ["GPU-2"], "kernel-2.json")
    assert not file.exists()


def test_what_is_kept_is_for_the_user_alone(tmp_path):
    """No other user can read what was asked for."""
    (tmp_path / "gpumagic").mkdir(mode=0o755)
    restart.keep("2", ["GPU-2"], KEY)
    (file,) = folders.private().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_written_is_an_oserror(monkeypatch):
    """The caller is told that nothing is kept; looking finds nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/1")
    with pytest.raises(OSError, match="/proc/1"):
        restart.keep("2", ["GPU-2"], KEY)
    assert not restart.exists(KEY)
    assert restart.take(KEY) is None


def test_looking_makes_no_folder(tmp_path):
    """Loading the extension leaves nothing in the home of a user."""
    assert not restart.exists(KEY)
    assert restart.take(KEY) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["", "relative/path"])
def test_a_home_of_state_that_is_no_path_is_the_usual_one(home, monkeypatch, tmp_path):
    """An empty or relative XDG_STATE_HOME counts as not set."""
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.private(make=False) == tmp_path / ".local/state/gpumagic"


@given(st.text(), st.lists(st.text()), st.text())
@hypothesis_settings(deadline=None, max_examples=50)
def test_any_request_is_kept_as_it_is(text, uuids, key):
    """What is kept under a key is what is taken, whatever the characters."""
    restart.keep(text, uuids, key)
    (file,) = folders.private().iterdir()
    change(file, pid=0)
    assert restart.take(key)[:2] == Kept(text, tuple(uuids), 0.0)[:2]


def test_loading_brings_in_nothing_that_was_not_there():
    """Asking whether something is kept imports neither json nor dataclasses."""
    heavy = in_another_process(
        "keeping.exists(None)\n"
        "new = {*sys.modules} - before\n"
        "print(new & {'json', 'dataclasses', 'hashlib', 'tempfile'})"
    )
    assert heavy == "set()"


# ---------------------------------------------------------------- the key


class TerminalInteractiveShell(SimpleNamespace):
    """What IPython in a terminal has for a shell."""


def test_a_notebook_in_vs_code_is_known_by_its_path(monkeypatch):
    """VS Code makes a new connection file for each start, and the path stays."""
    monkeypatch.setenv("JPY_SESSION_NAME", "b.ipynb")
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/anna/a.ipynb"})
    assert restart.key(shell) == "/home/anna/a.ipynb"


def test_a_kernel_of_another_kind_is_known_by_its_session(monkeypatch):
    """Where there is no ipykernel, the name of the session is the key."""
    shell = SimpleNamespace(user_ns={})
    assert restart.key(shell) is None
    monkeypatch.setenv("JPY_SESSION_NAME", "b.ipynb")
    assert restart.key(shell) == "b.ipynb"


def test_a_terminal_and_a_script_have_no_key(monkeypatch):
    """What nobody restarts has nothing to keep, even when a notebook started it."""
    monkeypatch.setenv("JPY_SESSION_NAME", "b.ipynb")
    assert restart.key(TerminalInteractiveShell(user_ns={})) is None
    assert in_another_process("print(keeping.key())") == "None"


@pytest.mark.kernel
def test_a_request_outlives_the_restart_of_a_kernel(tmp_path):
    """The second life of a kernel has the key of the first, and takes its request."""
    look = "from gpumagic.gpu_select import restart as keeping; print(keeping.key())"
    with kernel(tmp_path) as one, kernel(tmp_path) as other:
        first, pid, _ = run(
            one,
            look,
            "import os; print(os.getpid())",
            "keeping.keep('2', ['GPU-2'], keeping.key())",
        )
        one.restart_kernel()
        second, new_pid, kept = run(
            one,
            look,
            "import os; print(os.getpid())",
            "print(keeping.take(keeping.key()))",
        )
        assert first == second == Path(one.connection_file).name
        assert pid != new_pid
        assert kept.startswith("Kept(text='2', uuids=('GPU-2',)")
        assert run(other, look) != [first]
