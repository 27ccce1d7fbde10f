"""The notebooks of the course as pages, with the outputs that they are kept with."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from typing import Any

from docs_build.frame import framed, place
from docs_build.links import REPOSITORY

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_HOW_TO_RUN = (
    "*This page is the notebook `notebooks/{name}.ipynb`, with its outputs.*\n"
)


@cache
def _notebooks() -> dict[str, list[dict[str, Any]]]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"]
        for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    }


def pages() -> dict[str, str]:
    """Each notebook as Markdown, with a place for the outputs of each cell."""
    return {
        f"notebooks/{name}.md": _markdown(name, cells)
        for name, cells in _notebooks().items()
    }


def _markdown(name: str, cells: list[dict[str, Any]]) -> str:
    title, *rest = [_cell(at, cell) for at, cell in enumerate(cells)]
    return "\n\n".join((title, _HOW_TO_RUN.format(name=name), *rest))


def _cell(at: int, cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source.replace("<details>", '<details markdown="1">')
    code = f"```python\n{source}\n```"
    return f"{code}\n\n{place(str(at))}" if cell["outputs"] else code


def with_outputs(page: str, name: str) -> str:
    """The HTML of a notebook's page with each output in its place."""
    cells = _notebooks().get(name.removeprefix("notebooks/").removesuffix(".md"), [])
    for at, cell in enumerate(cells):
        shown = "".join(map(_output, cell.get("outputs", ())))
        page = page.replace(place(str(at)), framed(shown))
    return page


def _output(output: dict[str, Any]) -> str:
    """One output in the form that a notebook would choose."""
    data = output.get("data", {})
    if "text/html" in data:
        return "".join(data["text/html"])
    if output["output_type"] == "error":
        text = "\n".join(output["traceback"])
    else:
        text = "".join(output.get("text", data.get("text/plain", "")))
    return f"<pre>{html.escape(_ESCAPES.sub('', text))}</pre>"
