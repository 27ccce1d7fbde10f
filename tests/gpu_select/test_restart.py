"""A request is kept once and taken once; a kernel restarts where it comes back."""

from __future__ import annotations

import asyncio
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

from gpumagic.devices.protocols import CudaState, Initialisation
from gpumagic.gpu_select import restart
from gpumagic.gpu_select.notebook import kept_folder, something_is_kept
from gpumagic.gpu_select.report import Action, Row, SelectReport, TorchLatch, Verdict
from gpumagic.gpu_select.restart import Kept
from tests import quick_python
from tests.gpu_select.kernels import LOOK, kernel, lives, run

REPOSITORY = Path(__file__).parents[2]
KEY = "kernel-1.json"


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


def in_another_process(code: str) -> str:
    """What a script prints that keeps its state where the test does."""
    prepare = "from gpumagic.gpu_select import restart\n"
    prepare += "from gpumagic.gpu_select.notebook import kept_folder\n"
    return quick_python.run(
        [sys.executable, "-c", prepare + code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
    ).stdout.strip()


def keep_before_restart() -> Path:
    """Keep a request as the process before this one did; where it lies."""
    in_another_process(
        f"restart.keep(kept_folder(), 'free -n 2', ['GPU-2', 'GPU-0'], {KEY!r})"
    )
    (file,) = kept_folder().iterdir()
    return file


def change(file: Path, **changes: object) -> None:
    """Change what is kept, as another process or time would have kept it."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_what_a_process_has_kept_the_next_one_takes():
    """The request comes back in the user's words, with its GPUs in order."""
    began = time.time() - 1
    keep_before_restart()

    kept = restart.take(kept_folder(), KEY)

    assert (kept.text, kept.uuids) == ("free -n 2", ("GPU-2", "GPU-0"))
    assert began <= kept.when <= time.time()


def test_a_request_is_used_once():
    """A second restart starts without it."""
    file = keep_before_restart()
    restart.take(kept_folder(), KEY)
    assert not file.exists()
    assert restart.take(kept_folder(), KEY) is None


def test_another_key_gives_nothing():
    """A request belongs to one notebook."""
    keep_before_restart()
    assert restart.take(kept_folder(), "kernel-2.json") is None


def test_the_process_that_kept_it_does_not_take_it():
    """Loading the extension again without a restart leaves the request alone."""
    restart.keep(kept_folder(), "2", ["GPU-2"], KEY)
    assert restart.take(kept_folder(), KEY) is None
    assert (
        in_another_process(f"print(restart.take(kept_folder(), {KEY!r}).text)") == "2"
    )


def test_the_last_request_counts():
    """Whoever changes their mind before the restart gets what they said last."""
    keep_before_restart()
    in_another_process(f"restart.keep(kept_folder(), '1', ['GPU-1'], {KEY!r})")
    assert restart.take(kept_folder(), KEY).text == "1"


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
    assert restart.take(kept_folder(), KEY) is None
    assert not file.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"\xff", b"[" * 10_000])
def test_garbage_is_thrown_away(content):
    """A spoilt file does no more than being no request."""
    file = keep_before_restart()
    file.write_bytes(content)
    assert restart.take(kept_folder(), KEY) is None
    assert not file.exists()


def test_what_nobody_comes_for_is_taken_away_by_the_next():
    """Requests of notebooks that were never started again do not pile up."""
    file = keep_before_restart()
    os.utime(file, (0, 0))
    restart.keep(kept_folder(), "2", ["GPU-2"], "kernel-2.json")
    assert not file.exists()


def test_what_is_kept_is_for_the_user_alone(tmp_path):
    """No other user can read what was asked for."""
    (tmp_path / "gpumagic").mkdir(mode=0o755)
    restart.keep(kept_folder(), "2", ["GPU-2"], KEY)
    (file,) = kept_folder().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_written_is_an_oserror(monkeypatch):
    """The caller is told that nothing is kept; looking finds nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/1")
    with pytest.raises(OSError, match="/proc/1"):
        restart.keep(kept_folder(), "2", ["GPU-2"], KEY)
    assert not something_is_kept()
    assert restart.take(kept_folder(), KEY) is None


def test_looking_makes_no_folder(tmp_path):
    """Loading the extension leaves nothing in the home of a user."""
    assert not something_is_kept()
    assert restart.take(kept_folder(), KEY) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["", "relative/path"])
def test_a_home_of_state_that_is_no_path_is_the_usual_one(home, monkeypatch, tmp_path):
    """An empty or relative XDG_STATE_HOME counts as not set."""
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_folder() == tmp_path / ".local/state/gpumagic"


@given(st.text(), st.lists(st.text()), st.text())
@hypothesis_settings(deadline=None, max_examples=50)
def test_any_request_is_kept_as_it_is(text, uuids, key):
    """What is kept under a key is what is taken, whatever the characters."""
    restart.keep(kept_folder(), text, uuids, key)
    (file,) = kept_folder().iterdir()
    change(file, pid=0)
    assert restart.take(kept_folder(), key)[:2] == Kept(text, tuple(uuids), 0.0)[:2]


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
    assert in_another_process("print(restart.key())") == "None"


@pytest.mark.kernel
def test_a_request_outlives_the_restart_of_a_kernel(tmp_path):
    """The second life of a kernel has the key of the first, and takes its request."""
    with kernel(tmp_path) as one, kernel(tmp_path) as other:
        first, pid, _ = run(
            one,
            LOOK,
            "import os; print(os.getpid())",
            "restart.keep(kept_folder(), '2', ['GPU-2'], restart.key())",
        )
        one.restart_kernel()
        second, new_pid, kept = run(
            one,
            LOOK,
            "import os; print(os.getpid())",
            "print(restart.take(kept_folder(), restart.key()))",
        )
        assert first == second == Path(one.connection_file).name
        assert pid != new_pid
        assert kept.startswith("Kept(text='2', uuids=('GPU-2',)")
        assert run(other, LOOK) != [first]


RESTART = "print(restart.restart(get_ipython(), what='GPU 2'))"


@pytest.mark.kernel
def test_a_kernel_of_a_server_restarts_itself_after_its_reply(tmp_path):
    """The cell is answered, the kernel ends in good order and comes up again."""
    note = tmp_path / "ended"
    before, after = asyncio.run(
        lives(
            tmp_path,
            [
                "import atexit, pathlib",
                f"atexit.register(pathlib.Path({str(note)!r}).touch)",
                LOOK,
                "restart.keep(kept_folder(), '2', ['GPU-2'], restart.key())",
                f"{RESTART}\nimport asyncio; await asyncio.sleep(1); print('at last')",
            ],
            [
                LOOK,
                "print(restart.take(kept_folder(), restart.key()).uuids)",
            ],
        )
    )
    assert [status for status, _ in before + after] == ["ok"] * 7
    assert before[4][1].startswith("The kernel ends now, and Jupyter starts it again")
    assert before[4][1].endswith("takes GPU 2 again.\nat last")
    assert note.exists()
    assert before[2] == after[0]
    assert after[1] == ("ok", "('GPU-2',)")


@pytest.mark.kernel
def test_no_other_cell_runs_in_a_kernel_that_is_about_to_end(tmp_path):
    """After "run all" the cells below are refused, and not half run."""
    note = tmp_path / "ran"
    before, after = asyncio.run(
        lives(
            tmp_path,
            [
                f"from gpumagic.gpu_select import restart\n{RESTART}",
                f"import pathlib; pathlib.Path({str(note)!r}).touch()",
            ],
            ["print('again')"],
        )
    )
    assert before[0][0] == "ok"
    assert before[1][0] == "error"
    assert "this cell has not run: the kernel is being restarted" in before[1][1]
    assert not note.exists()
    assert after == [("ok", "again")]


@pytest.mark.kernel
def test_a_thread_that_never_ends_does_not_keep_the_kernel(tmp_path):
    """The kernel comes up again even where its process would not end by itself."""
    hang = "import threading; threading.Thread(target=threading.Event().wait).start()"
    before, after = asyncio.run(
        lives(
            tmp_path,
            [f"from gpumagic.gpu_select import restart\n{hang}\n{RESTART}"],
            ["print('again')"],
        )
    )
    assert before[0][0] == "ok"
    assert after == [("ok", "again")]


@pytest.mark.kernel
def test_a_kernel_that_nobody_watches_is_not_ended(tmp_path):
    """Under a plain client the user is told to restart, and goes on."""
    with kernel(tmp_path) as manager:
        said, after = run(
            manager,
            f"from gpumagic.gpu_select import restart\n{RESTART}",
            "import time; time.sleep(1); print('still here')",
        )
    assert said.startswith("Restart the kernel now (Kernel, Restart); then %load_ext")
    assert after == "still here"


@pytest.mark.kernel
@pytest.mark.skipif(not Path("/proc").exists(), reason="it is read from /proc")
def test_a_kernel_started_by_a_notebook_is_not_ended(tmp_path):
    """It has the session's name from that notebook, and nobody starts it again."""
    cell = f"from gpumagic.gpu_select import restart\n{RESTART}"
    code = f"""
import sys
from pathlib import Path
from tests import quick_python
from tests.gpu_select.kernels import LOOK, kernel, run
with kernel(Path(sys.argv[1]), JPY_SESSION_NAME="a.ipynb") as manager:
    print(run(manager, {cell!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "JPY_SESSION_NAME": "a.ipynb",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Restart the kernel now" in done.stdout, done.stderr


def test_in_vs_code_the_user_is_told_where_to_click(monkeypatch):
    """VS Code is not surprised by a kernel that dies."""
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/anna/a.ipynb"})
    said = restart.restart(shell, what="GPU 2")
    assert said == (
        "Restart the kernel now (Restart, above the notebook); "
        "then %load_ext gpumagic takes GPU 2 again."
    )


def test_a_terminal_is_not_ended():
    """IPython in a terminal cannot come back by itself, and says so."""
    said = restart.restart(TerminalInteractiveShell(user_ns={}), what="GPU 2")
    assert said.startswith("Nothing is kept here")


def report(*rows: Row) -> SelectReport:
    """What a dry run would have chosen."""
    return SelectReport(
        action=Action.DRY_RUN,
        verdict=Verdict.FIXED,
        headline="",
        rows=rows,
        variables=(),
        driver=CudaState(Initialisation.INITIALISED),
        torch=TorchLatch.ABSENT,
    )


@pytest.mark.parametrize(
    ("rows", "mask"),
    [
        ((Row(0, None, "GPU-a", "01"), Row(1, None, "GPU-b", "02", predicted=0)), "1"),
        (
            (
                Row(0, None, "GPU-a", "01", predicted=1),
                Row(1, None, "GPU-b", "02", predicted=0),
            ),
            "1,0",
        ),
        (
            (Row(0, None, "GPU-a", "02", predicted=0), Row(1, None, "GPU-b", "01")),
            "GPU-a",
        ),
        ((Row(0, None, "MIG-a", "01", is_slice=True, predicted=0),), "MIG-a"),
        ((Row(0, None, "GPU-a", None, predicted=0),), "GPU-a"),
        ((Row(0, None, "GPU-a", "01"),), "-1"),
    ],
)
def test_the_line_to_type_in_a_terminal_names_what_was_chosen(rows, mask):
    """Numbers stand there only where they mean the same GPU to CUDA."""
    assert restart.without_keeping(report(*rows)).endswith(
        f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={mask} ipython"
    )


def test_only_a_kernel_with_a_session_comes_back(monkeypatch):
    """That a notebook sends the cells does not mean that a server has the kernel."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shell = SimpleNamespace(
        user_ns={},
        parent_header={"metadata": {"cellId": "1a2b"}},
        kernel=SimpleNamespace(io_loop=None),
    )
    assert not restart.comes_back(shell)
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    assert restart.comes_back(shell)


def test_a_request_that_cannot_be_kept_leaves_no_half_of_it(tmp_path, monkeypatch):
    """Where the file cannot be put in its place, nothing stays of it."""
    # Given a folder in the place of the file
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    restart.keep(kept_folder(), "free", ["GPU-0"], "kernel-1.json")
    (file,) = kept_folder().iterdir()
    file.unlink()
    file.mkdir()

    # When
    with pytest.raises(OSError, match=r"[Dd]irectory"):
        restart.keep(kept_folder(), "free", ["GPU-0"], "kernel-1.json")

    # Then
    assert list(kept_folder().iterdir()) == [file]
