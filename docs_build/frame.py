"""A frame dressed as a notebook dresses an output, with the page's light or dark."""

from __future__ import annotations


def place(name: str) -> str:
    """A mark in Markdown that is replaced by what belongs there, as HTML."""
    return f'<div class="output" id="output-{name}"></div>'


def framed(shown: str) -> str:
    """HTML of an output; `output.css` undoes what the site would do to it."""
    # The theme's own scripts wrap a table that has no class.
    tables = shown.replace("<table ", '<table class="shown" ')
    return f'<div class="output">{tables}</div>'
