"""All outputs there are to look at: the gallery's, and those of the notebooks."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.gallery.samples import drawn

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))

_WIDE = 2_000
_INNERMOST = re.compile(r"<details\b[^>]*>(?:(?!<details\b).)*?</details>", re.DOTALL)


class Output(NamedTuple):
    """An output in both of its forms; the text as wide as it may want to be."""

    name: str
    text: str
    html: str

    @property
    def in_sight(self) -> str:
        """The HTML as it is before anything is opened."""
        html, seen = self.html, ""
        while html != seen:
            seen, html = html, _INNERMOST.sub("", html)
        return html


@cache
def outputs() -> tuple[Output, ...]:
    """Every output of ours that somebody may look at elsewhere."""
    samples = [
        Output(name, each.whole().text(_WIDE), str(each.html()))
        for name, each in drawn().items()
    ]
    return (*samples, *(each for path in NOTEBOOKS for each in of_notebook(path)))


def of_notebook(path: Path) -> list[Output]:
    """The outputs of a notebook that have HTML."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    bundles = [
        output["data"]
        for cell in cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", ())
    ]
    return [
        Output(
            f"{path.stem}-{number}",
            "".join(bundle["text/plain"]),
            "".join(bundle["text/html"]),
        )
        for number, bundle in enumerate(bundles, start=1)
    ]
