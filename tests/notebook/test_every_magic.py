"""What holds for every magic alike: its output options, misspelt words, failing cells.

No room tests these for itself.
"""

from __future__ import annotations

import itertools
import json

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic import extension
from gpumagic.extension import ROOMS
from gpumagic.notebook.session import Session

NAMES = [room.folder for room in ROOMS]
# What each looks at where it is typed in a line, on any machine and without an engine.
LINES = {
    "gpu_doctor": "",
    "gpu_select": "",
    "cuda_sync_time": "sum([1])",
    "tensor_info": "a",
}
# Those that stand above a cell, which they leave as it is.
ABOVE = {
    "gpu_doctor": "",
    "gpu_select": "",
    "cuda_sync_time": "",
    "gpu_mem": "",
    "pin_loader": "--watch",
    "tensor_info": "a",
}


@pytest.fixture(scope="module")
def shell():
    """A shell with the extension, and an array."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    shell = InteractiveShell.instance()
    extension.load(shell)
    shell.user_ns["a"] = np.arange(6)
    yield shell
    extension.unload(shell)
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


@pytest.fixture
def shown(monkeypatch):
    """What is displayed."""
    found = []
    monkeypatch.setattr(
        "gpumagic.notebook.magics.display", lambda *what, **_: found.extend(what)
    )
    return found


@pytest.mark.parametrize(("name", "line"), LINES.items())
def test_the_report_goes_where_the_options_say(shell, shown, name, line):
    """`-o` hands it out, `-v` keeps it, `-q` shows nothing, `--json` its values."""
    done = shell.run_cell(f"report = %{name} -o -q -v kept {line}")

    assert done.success, done.error_in_exec
    report = shell.user_ns["report"]
    assert shell.user_ns["kept"] is report
    assert shown == []
    shell.run_cell(f"%{name} --json {line}")
    (told,) = shown
    assert json.loads(told["text/plain"]).keys() == report.to_dict().keys()
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize(("name", "line"), ABOVE.items())
def test_a_cell_keeps_its_value_and_its_error(shell, name, line):
    """Whatever looks on, the value and the error are the cell's own; comments run."""
    value = shell.run_cell(f"%%{name} {line}\nb = 40\nb + 2").result
    failed = shell.run_cell(f"%%{name} {line}\n1 / 0")
    empty = shell.run_cell(f"%%{name} {line}\n# nothing here yet\n")

    assert value == 42
    assert isinstance(failed.error_in_exec, ZeroDivisionError)
    assert empty.success


@pytest.mark.parametrize("name", NAMES)
def test_what_is_misspelt_or_no_name_is_told_with_what_to_type(shell, name):
    """Nothing runs; the option that was meant is offered."""
    for typed, hint in (
        (f"%{name} --quite", "did you mean --quiet?"),
        (f"%{name} -v 1st", "type -v report"),
    ):
        error = shell.run_cell(typed).error_in_exec

        assert error.problem
        assert error.hint.startswith(hint)


class Shown:
    """Stands for a report."""


def test_a_dropped_report_hides_no_later_one():
    """A report that comes to lie where a dropped one lay is shown all the same."""
    session = Session()
    for _ in itertools.repeat(None, 1000):
        first = Shown()
        session.remember_shown(first, 3)
        place = id(first)
        del first
        second = Shown()
        if id(second) == place:
            break
    assert id(second) == place
    assert not session.was_shown(second, 3)
