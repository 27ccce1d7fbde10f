"""Makes the README's pictures anew: `python -m tests.browser.pictures`.

Each is a sample report in a real JupyterLab, below the cell that would ask for it.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.browser import chromium, lab, notebooks
from tests.browser.page import View, open_notebook
from tests.gallery.samples import everything

FOLDER = lab.REPOSITORY / "docs" / "pictures"
VIEW = View(980, 1.5)

# GitHub scales a picture down; a reader on a slow line still waits for all of it.
_MOST_BYTES = 200_000
_MARGIN = 4


class Picture(NamedTuple):
    """A file, the sample of the gallery in it, and what is typed above that.

    Of a long one the upper part, of so many pixels, is enough.
    """

    file: str
    sample: str
    typed: str
    most_pixels: float = math.inf


PICTURES = (
    Picture("gpu_doctor.png", "gpu_doctor-eight-gpus", "%gpu_doctor"),
    Picture(
        "cuda_sync_time.png",
        "cuda_sync_time-profile-two-streams",
        "%%cuda_sync_time --trace trace.json\nloss = step(batch)",
    ),
    Picture("gpu_mem.png", "gpu_mem-cell", "%%gpu_mem\nloss = step(batch)"),
    Picture("pin_loader.png", "pin_loader-fixed", "%pin_loader train_dl", 942),
    Picture("tensor_info.png", "tensor_info-slice-with-gaps", "%tensor_info x[:, ::2]"),
)


def main() -> None:
    """Write every picture, and say where."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.running(Path(folder)) as server,
        chromium.running() as browser,
    ):
        for picture in PICTURES:
            target = FOLDER / picture.file
            target.write_bytes(_take(picture, server, browser))
            sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes\n")


def _take(picture, server, browser):
    _save(picture, server.root / "picture.ipynb")
    notebook = open_notebook(browser, server, "picture.ipynb", picture.file)
    notebook.view(VIEW)
    # A cell that is not the current one has no toolbar and no frame.
    notebook.page.locator(".jp-Cell").nth(1).click()
    notebook.page.mouse.move(0, 0)
    box = notebook.page.locator(".jp-Cell").first.bounding_box()
    taken = notebook.picture(
        box["x"] - _MARGIN,
        box["y"] - _MARGIN,
        box["width"] + 2 * _MARGIN,
        min(box["height"], picture.most_pixels) + 2 * _MARGIN,
    )
    notebook.page.context.close()
    if len(taken) > _MOST_BYTES:
        raise RuntimeError(f"{picture.file} has {len(taken):,} bytes")
    return taken


def _save(picture, path):
    import nbformat
    from nbformat.v4 import new_code_cell, new_output

    drawing = dict(everything())[picture.sample]
    shown = new_output("display_data", drawing.mimebundle())
    asked = new_code_cell(picture.typed, outputs=[shown], execution_count=2)
    nbformat.write(notebooks.notebook_of([asked, new_code_cell()]), path)


if __name__ == "__main__":
    main()
