"""The front end is named as far as it can be told, and no further."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpumagic.report import frontend
from gpumagic.report.frontend import front_end, is_terminal


class TerminalInteractiveShell:
    """IPython's own, by name."""

    user_ns: dict = {}  # noqa: RUF012


class ZMQInteractiveShell:
    """A Jupyter kernel's, by name."""

    def __init__(self, metadata=None, **user_ns):
        self.user_ns = user_ns
        self.parent_header = {"metadata": metadata or {}}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """No trace of any front end."""
    for name in ("JPY_SESSION_NAME", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        (None, "Python, without IPython"),
        (TerminalInteractiveShell(), "IPython in a terminal"),
        (ZMQInteractiveShell(), "a Jupyter kernel (which front end cannot be told)"),
        (ZMQInteractiveShell({"cellId": "a"}), "JupyterLab or Notebook"),
        (ZMQInteractiveShell({"cellId": "a"}, __vsc_ipynb_file__="x"), "VS Code"),
        (ZMQInteractiveShell({"cellId": "vscode-notebook-cell:/x"}), "VS Code"),
    ],
)
def test_the_shell_tells(shell, name):
    """What the shell and the running cell say."""
    assert front_end(shell) == name
    assert is_terminal(shell) == (name == "IPython in a terminal")


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAGGLE_KERNEL_RUN_TYPE", "Kaggle"),
        ("JPY_SESSION_NAME", "JupyterLab or Notebook"),
    ],
)
def test_the_environment_tells(monkeypatch, variable, name):
    """What the surroundings say where the shell does not."""
    monkeypatch.setenv(variable, "1")
    assert front_end(ZMQInteractiveShell()) == name


def test_colab_comes_before_jupyter(monkeypatch):
    """A service that wraps Jupyter is named, not what it wraps."""
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert front_end(ZMQInteractiveShell({"cellId": "a"})) == "Google Colab"


@pytest.mark.parametrize(
    ("counted", "numbers", "running"),
    [
        (5, [1, 5], 5),  # by some versions the count is that of the running cell
        (6, [1, 5], 5),  # by others that of the next
        (5, [1, 5, 40], 5),  # an engine has run more cells than the notebook
        (1, [], None),
    ],
)
def test_the_running_cell_has_its_number_in_every_version(counted, numbers, running):
    """Whichever way a version counts."""
    files = {f"cell {each}": each for each in numbers}
    compiler = SimpleNamespace(_filename_map=files)
    shell = SimpleNamespace(compile=compiler, execution_count=counted)

    assert frontend.running_cell(shell) == running
