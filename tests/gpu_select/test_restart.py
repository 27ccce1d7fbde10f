"""A request is kept once and taken once."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select import restart
from gpumagic.gpu_select.notebook import kept_file, key_of
from gpumagic.gpu_select.report import Action
from gpumagic.gpu_select.request import read
from tests.gpu_select.samples import OPEN, gpu


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


KEY = "kernel-1.json"


REPORT = replace(OPEN, rows=(gpu(2, predicted=0), gpu(0, predicted=1)))
UUIDS = (gpu(2).uuid, gpu(0).uuid)


def keep(key=KEY, **changes):
    """Keep a request as the process before this one did; where it lies."""
    file = kept_file(key)
    restart.keep(file, key, read("free", n=2), REPORT)
    content = json.loads(file.read_text())
    content["process"][1] -= 1
    file.write_text(json.dumps(content | changes))
    return file


def test_what_a_process_has_kept_the_next_one_takes_once():
    """The request comes back in the user's words, with its GPUs in order."""
    file = keep()

    again = restart.take(file, KEY, read)
    assert again == replace(read(UUIDS), text="free -n 2", action=Action.KEPT)
    assert not file.exists()
    assert restart.take(file, KEY, read) is None
    assert restart.take(kept_file("kernel-2.json"), "kernel-2.json", read) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"when": time.time() - 2 * 3600},
        {"when": float("nan")},
        {"process": ["another", 1, None]},
        {"meant": [1]},
        {"meant": "nonsense"},
        {"text": None},
        {"key": "another"},
    ],
    ids=["old", "no time", "process", "number", "nonsense", "text", "key"],
)
def test_what_is_old_foreign_or_wrong_is_thrown_away(changes):
    """Nothing is chosen by what may no longer be meant, and it does not stay."""
    file = keep(**changes)
    assert restart.take(file, KEY, read) is None
    assert not file.exists()


def test_what_cannot_be_kept_is_an_error_that_leaves_nothing():
    """The user is told what to type after the restart; no half of a file stays."""
    kept_file(KEY).mkdir(parents=True)
    with pytest.raises(GpuMagicError, match="cannot be kept") as caught:
        keep()
    assert "then type %gpu_select free -n 2 first" in caught.value.hint
    assert list(kept_file(KEY).parent.iterdir()) == [kept_file(KEY)]


def test_a_notebook_is_known_by_what_outlives_a_restart(monkeypatch):
    """In VS Code by its path, elsewhere by its session where there is no ipykernel."""
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", None)
    assert key_of(SimpleNamespace(user_ns={})) == ""
    monkeypatch.setenv("JPY_SESSION_NAME", "b.ipynb")
    assert key_of(SimpleNamespace(user_ns={})) == "b.ipynb"
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/anna/a.ipynb"})
    assert key_of(shell) == "/home/anna/a.ipynb"
