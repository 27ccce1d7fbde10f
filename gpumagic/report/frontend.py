"""Where this code is running, and so what is shown of a report there."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any


def running_shell() -> Any | None:
    """The IPython shell of this process; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython, "get_ipython", lambda: None)()


def settings_of(shell: Any | None) -> Any | None:
    """The `GpuMagic` of a shell with the extension loaded.

    It is found by its name: a reload makes a new class of it.
    """
    configurables = getattr(shell, "configurables", ())
    ours = (each for each in configurables if type(each).__name__ == "GpuMagic")
    return next(ours, None)


def bundle(shown: Any) -> dict[str, str]:
    """What IPython is to show: in a terminal text, in a notebook text and HTML."""
    shell = running_shell()
    settings = settings_of(shell)
    if settings is None:
        drawing, how = shown.drawing(), {}
    else:
        session = settings.session
        if _is_echo() and session.was_shown(shown, settings.parent.execution_count):
            return {"text/plain": f"<{type(shown).__name__}: shown above>"}
        drawing = session.without_repetition(shown, shown.drawing())
        how = {"width": settings.width}
    if shell is not None and is_terminal(shell):
        return {"text/plain": drawing.terminal()}
    forms: dict[str, str] = drawing.mimebundle(**how)
    return (
        forms
        if getattr(settings, "html", True)
        else {"text/plain": forms["text/plain"]}
    )


def _is_echo() -> bool:
    """Whether IPython shows a cell's value, and not what the user asked to display."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "compute_format_data":
        frame = frame.f_back
    return frame is not None


def cell_numbers(shell: Any | None) -> dict[str | None, int]:
    """The number of each cell, as in In [3], by the file that its code counts as."""
    numbers: dict[str | None, int] = getattr(
        getattr(shell, "compile", None), "_filename_map", {}
    )
    return numbers


def running_cell(shell: Any | None) -> int | None:
    """The number of the cell that runs now, or was the last to; None without any.

    The shell's own count is, by version, that of this cell or the next. `%%gpu_ranks`
    gives a cell the notebook's number, which may be less than that of others.
    """
    numbers = cell_numbers(shell).values()
    counted: int | None = getattr(shell, "execution_count", None)
    return counted if counted in numbers else max(numbers, default=None)


def is_terminal(shell: Any) -> bool:
    """Whether output goes to a terminal and not to a notebook."""
    names = (base.__name__ for base in type(shell).__mro__)
    return "TerminalInteractiveShell" in names


def front_end(shell: Any | None) -> str:
    """The front end by name, as far as it can be told from inside."""
    if shell is None:
        return "Python, without IPython"
    if is_terminal(shell):
        return "IPython in a terminal"
    for name, is_it in _NOTEBOOKS:
        if is_it(shell):
            return name
    return "a Jupyter kernel (which front end cannot be told)"


def _cell_metadata(shell: Any) -> dict[str, Any]:
    """What the front end sent along with the running cell."""
    parent = getattr(shell, "parent_header", None) or {}
    if not parent and hasattr(shell, "get_parent"):
        parent = shell.get_parent()
    metadata = parent.get("metadata", {}) if isinstance(parent, dict) else {}
    return metadata if isinstance(metadata, dict) else {}


def _is_colab(_: Any) -> bool:
    return "google.colab" in sys.modules


def _is_kaggle(_: Any) -> bool:
    return "KAGGLE_KERNEL_RUN_TYPE" in os.environ


def _is_vscode(shell: Any) -> bool:
    cell = str(_cell_metadata(shell).get("cellId", ""))
    return "__vsc_ipynb_file__" in shell.user_ns or cell.startswith("vscode-")


def _is_jupyter(shell: Any) -> bool:
    return "cellId" in _cell_metadata(shell) or "JPY_SESSION_NAME" in os.environ


# The first that fits: services that wrap a Jupyter kernel come before Jupyter.
_NOTEBOOKS = (
    ("Google Colab", _is_colab),
    ("Kaggle", _is_kaggle),
    ("VS Code", _is_vscode),
    ("JupyterLab or Notebook", _is_jupyter),
)
