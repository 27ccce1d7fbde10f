"""Runs the tour notebook in a real kernel on whatever device is here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gpumagic.errors import GpuMagicError, MissingPackage
from gpumagic.report.units import count_text, seconds_text

_DEFAULT_OUT = "build/tour.html"
_PATIENCE_S = 300


def run(out: str | None = None) -> str:
    """Run the tour, write it as HTML, and return how it went, with the path."""
    try:
        import nbclient
        import nbconvert
        import nbformat
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the demo needs the package {error.name}",
            f"{sys.executable} -m pip install ipykernel nbclient nbconvert",
        ) from None
    notebook = nbformat.read(_tour_path(), as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=_PATIENCE_S,
        startup_timeout=_PATIENCE_S,
        iopub_timeout=_PATIENCE_S,  # otherwise outputs that come late are left out
        kernel_name="python3",
        # The kernel only speaks to us: its remarks on encryption are noise here.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    started = time.monotonic()
    try:
        client.execute()
        failure = None
    except nbclient.exceptions.CellExecutionError as error:
        failure = f"{error.ename}: {error.evalue}"
    page = Path(out or _DEFAULT_OUT).resolve()
    page.parent.mkdir(parents=True, exist_ok=True)
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    page.write_text(html, encoding="utf-8")
    if failure is not None:
        raise GpuMagicError(f"a cell of the tour failed: {failure}", f"look at {page}")
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    took = seconds_text(time.monotonic() - started)
    return f"The tour ran: {count_text(cells, 'cell')} in {took}.\nOpen it: {page}"


def _tour_path() -> Path:
    """The tour: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package, package.parent):
        path = folder / "notebooks" / "tour.ipynb"
        if path.exists():
            return path
    raise GpuMagicError("the tour notebook is not installed", "reinstall gpumagic")
