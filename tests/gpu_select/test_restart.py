from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpumagic.devices.protocols import CudaState, Initialisation
from gpumagic.gpu_select import restart
from gpumagic.gpu_select.report import (
    Action,
    Row,
    SelectReport,
    TorchLatch,
    Verdict,
)
from tests.gpu_select.kernels import kernel, run
from tests.gpu_select.served import lives

REPOSITORY = Path(__file__).parents[2]
RESTART = "print(restart.restart(get_ipython(), what='GPU 2'))"


class TerminalInteractiveShell(SimpleNamespace):
    """What IPython in a terminal has for a shell."""


@pytest.mark.kernel
def test_a_kernel_of_a_server_restarts_itself_after_its_reply(tmp_path):
    """The cell is answered, the kernel ends in good order and comes up again."""
    note = tmp_path / "ended"
    look = "from gpumagic.gpu_select import restart; print(restart.key())"
    before, after = asyncio.run(
        lives(
            tmp_path,
            [
                "import atexit, pathlib",
                f"atexit.register(pathlib.Path({str(note)!r}).touch)",
                look,
                "keeping.keep('2', ['GPU-2'], keeping.key())",
                f"{RESTART}\nimport asyncio; await asyncio.sleep(1); print('at last')",
            ],
            [look, "print(keeping.take(keeping.key()).uuids)"],
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
from tests.gpu_select.kernels import kernel, run
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
