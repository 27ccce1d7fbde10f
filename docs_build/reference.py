"""Options of a magic as `%magic?` shows them, and its Python functions."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from gpumagic.notebook.arguments import actions_of, examples_of, words_of

if TYPE_CHECKING:
    import argparse

    from docs_build.rooms import Room

# What is typed otherwise than the place where it lives.
_TYPED = {
    "gpumagic.simulator.simulate": "gpumagic.simulate",
    "gpumagic.simulator.device": "gpumagic.device",
    "gpumagic.simulator.box.Box": "The box that it returns",
}


def options(room: Room) -> str:
    """A section with every option, read from the parser that the magic itself uses."""
    parser: argparse.ArgumentParser = room.magic.parser
    more = [each for each in actions_of(parser) if getattr(each, "more", False)]
    usual = [each for each in actions_of(parser) if each not in more]
    parts = (
        "## All options",
        f"What `{room.title}?` shows.",
        _cell(inspect.cleandoc(parser.description or "")),
        _table("To begin with", _rows_of(examples_of(parser))),
        _table("Option", [*_rows_of(words_of(parser)), *map(_row, usual)]),
        _table("More options", list(map(_row, more))),
    )
    return "\n\n".join(filter(None, parts))


def _table(heading: str, rows: list[str]) -> str:
    return "\n".join((f"| {heading} | |", "| --- | --- |", *rows)) if rows else ""


def _rows_of(meanings: dict[str, str]) -> list[str]:
    return [f"| `{each}` | {_cell(does)} |" for each, does in meanings.items()]


def _row(action: argparse.Action) -> str:
    return f"| {_spelling(action)} | {_cell(action.help or '')} |"


def functions(room: Room) -> str:
    """A section with every public function: signature and docstring."""
    return "\n\n".join(("## In Python", *map(_function, room.functions)))


def _function(name: str) -> str:
    """What mkdocstrings replaces by signature and docstring, below the typed name."""
    typed = _TYPED.get(name, name)
    return f"::: {name}\n    options:\n      heading: {typed}\n      toc_label: {typed}"


def _spelling(action: argparse.Action) -> str:
    """Each spelling as it is typed, with what stands behind it."""
    value = "" if action.nargs == 0 else f" {_value(action)}"
    if action.nargs == "?":
        value = f" [{_value(action)}]"
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    return ", ".join(f"`{each}{value}`" for each in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return " or ".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _cell(text: str) -> str:
    """Text that stays as it is in a table: `|`, `*` and `<` are signs of Markdown."""
    for sign in "\\`*_<|[":
        text = text.replace(sign, f"\\{sign}")
    return text
