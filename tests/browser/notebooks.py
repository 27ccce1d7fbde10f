"""Notebooks that were run and saved elsewhere: `python -m tests.browser.notebooks`.

Jupyter trusts a notebook whose content it has signed, so the trusted one must
differ from the other by more than its name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.browser.lab import environment

if TYPE_CHECKING:
    from pathlib import Path

_ELEMENT = re.compile(r"<(\w+)([^>]*)>")
_ATTRIBUTE = re.compile(r" (\w+)=")
_STYLE = re.compile(r"([a-z-]+):")

SHOW = """\
from IPython.display import display
from tests.gallery.samples import everything

drawings = dict(everything())

def show(name):
    display(drawings[name].mimebundle(), raw=True)"""

# An untrusted notebook loses the picture and keeps the word.
SENTINEL = "display({'text/html': '<svg></svg>sentinel'}, raw=True)"

REAL = (
    "%load_ext gpumagic",
    "%gpu_doctor",
    "%%gpu_doctor\nimport os\n\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'",
)


# Content that a browser could stumble over, whatever else is in it.
ALWAYS = ("hostile", "long", "wide", "many", "eight", "edges", "whole")


def cells() -> list[str]:
    """A cell for each sample that shows something new, then the magics themselves."""
    from tests.gallery.samples import everything

    html = {name: str(drawing.html()) for name, drawing in everything()}
    chosen = telling(html)
    samples = [f"show({name!r})" for name in html if name in chosen]
    return [SHOW, SENTINEL, *samples, *REAL]


def telling(html: dict[str, str]) -> set[str]:
    """The samples that together have every element, with every set of styles.

    Of two samples with the same ones a browser makes the same: what they say is for
    the golden files to tell.
    """
    seen: set[tuple[str, ...]] = set()
    chosen = {name for name in html if any(word in name for word in ALWAYS)}
    for name in sorted(html, key=lambda name: (name not in chosen, -len(html[name]))):
        looks = set(map(_look, _ELEMENT.findall(html[name])))
        if name in chosen or looks - seen:
            chosen.add(name)
            seen |= looks
    return chosen


def _look(element: tuple[str, str]) -> tuple[str, ...]:
    """An element's name, its attributes, and what its styles are about."""
    tag, rest = element
    return tag, *sorted(_ATTRIBUTE.findall(rest)), *sorted(set(_STYLE.findall(rest)))


def save(folder: Path) -> None:
    """Run the notebook once, and save it trusted and untrusted for a server.

    In a process of its own: the browser's event loop and a kernel client's do
    not go together.
    """
    subprocess.run(
        [sys.executable, "-m", "tests.browser.notebooks"],
        env=environment(folder),
        cwd=folder / "root",
        check=True,
    )


def main() -> None:
    """Write `untrusted.ipynb` and `trusted.ipynb` here."""
    import nbformat
    from nbclient import NotebookClient
    from nbformat.sign import NotebookNotary
    from nbformat.v4 import new_code_cell

    notebook = notebook_of(map(new_code_cell, cells()))
    quiet = ["--IPKernelApp.log_level=ERROR"]
    NotebookClient(
        notebook, timeout=600, startup_timeout=600, extra_arguments=quiet
    ).execute()
    nbformat.write(notebook, "untrusted.ipynb")
    notebook.metadata["signed"] = True
    nbformat.write(notebook, "trusted.ipynb")
    NotebookNotary().sign(nbformat.read("trusted.ipynb", as_version=4))


def save_empty(folder: Path, name: str) -> str:
    """Write a notebook with one empty cell; its file's name."""
    import nbformat
    from nbformat.v4 import new_code_cell

    nbformat.write(notebook_of([new_code_cell()]), folder / f"{name}.ipynb")
    return f"{name}.ipynb"


def notebook_of(cells):
    """A notebook for the kernel that is installed beside JupyterLab."""
    from nbformat.v4 import new_notebook

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=list(cells), metadata={"kernelspec": kernel})


if __name__ == "__main__":
    main()
