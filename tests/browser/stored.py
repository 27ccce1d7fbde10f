"""What a notebook file holds: the outputs that Jupyter has saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def stored_outputs(notebook: Path) -> dict[str, str]:
    """The HTML in a notebook file by the source of the cell that displayed it.

    The second HTML of a cell has the word "again" behind the source.
    """
    return {
        f"{cell}{' again' * number}": bundle["text/html"]
        for cell, bundles in stored_bundles(notebook).items()
        for number, bundle in enumerate(b for b in bundles if "text/html" in b)
    }


def stored_bundles(notebook: Path) -> dict[str, list[dict[str, str]]]:
    """What each cell of a notebook file has displayed, in every form, by its source."""
    return {_text(cell["source"]): _bundles(cell) for cell in _cells(notebook)}


def stored_errors(notebook: Path) -> dict[str, str]:
    """The errors that cells have ended with, by their source: the name of each."""
    return {
        _text(cell["source"]): output["ename"]
        for cell in _cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "error"
    }


def save_stranger(notebook: Path) -> str:
    """Write the same as if it came from elsewhere: Jupyter has not signed this one."""
    saved = json.loads(notebook.read_text(encoding="utf-8"))
    saved["metadata"]["from"] = "elsewhere"
    stranger = notebook.with_stem(f"{notebook.stem}-stranger")
    stranger.write_text(json.dumps(saved), encoding="utf-8")
    return stranger.name


def _cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def _bundles(cell: dict) -> list[dict[str, str]]:
    displayed = (output["data"] for output in cell["outputs"] if "data" in output)
    return [{kind: _text(it) for kind, it in data.items()} for data in displayed]


def _text(lines: str | list[str]) -> str:
    return "".join(lines)
