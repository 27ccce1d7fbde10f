"""Notebooks through the real nbconvert."""

from __future__ import annotations

from functools import cache

from tests.frontends.outputs import NOTEBOOKS, Output, of_notebook, outputs
from tests.gallery.samples import PARTS, RICHEST

COURSE = "04_streams_and_races"


def notebook(shown: tuple[Output, ...]):
    """A notebook with a cell for each output, in both of its forms."""
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    def cell(output):
        forms = {"text/plain": output.text, "text/html": output.html}
        return new_code_cell(
            "%show", outputs=[new_output("display_data", forms)], execution_count=1
        )

    return new_notebook(cells=list(map(cell, shown)))


@cache
def known() -> dict:
    """Each notebook by its name, and the outputs of ours in it.

    Converters look at elements and attributes: each kind that there is is in the parts
    and in the richest views.
    """
    import nbformat

    files = {path.stem: path for path in NOTEBOOKS}
    chosen = ("tour", COURSE)
    every = {each.name: each for each in outputs()}
    samples = tuple(every[name] for name in (*dict(PARTS), *RICHEST))
    return {"samples": (notebook(samples), samples)} | {
        name: (nbformat.read(files[name], as_version=4), of_notebook(files[name]))
        for name in chosen
    }


def to_html(name: str, **options: object) -> str:
    """One of these notebooks as `nbconvert --to html` writes it."""
    from nbconvert import HTMLExporter

    return HTMLExporter(**options).from_notebook_node(known()[name][0])[0]
