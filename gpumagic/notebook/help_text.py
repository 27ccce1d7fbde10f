"""What `?` and `--help` show of a magic: how to begin, the few options, the others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpumagic.notebook.arguments import actions_of, examples_of, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH = 78
_MEANING_AT = 24  # where argparse, too, begins to say what something does


class Unwritten(argparse.HelpFormatter):
    """Writes no help: argparse asks for it before all of ours is known."""

    def format_help(self) -> str:
        """Nothing."""
        return ""


def help_text(parser: argparse.ArgumentParser) -> str:
    """What `?` and `--help` show: what it is for, how to begin, then the rest."""
    from inspect import cleandoc

    purpose, _, further = cleandoc(parser.description or "").partition("\n\n")
    # The words of a magic have a list of their own.
    actions = [each for each in actions_of(parser) if each.metavar != "WORD"]
    actions.sort(key=lambda each: bool(each.option_strings))
    usual = [each for each in actions if not getattr(each, "more", False)]
    more = [each for each in actions if each not in usual]
    sections = (
        purpose,
        _beside(examples_of(parser)),
        _rows(words_of(parser), "words:"),
        _rows({typed(each): each.help or "" for each in usual}, "options:"),
        _rows({typed(each): each.help or "" for each in more}, "more options:"),
        further,
    )
    return "\n\n".join(filter(None, sections)) + "\n"


def typed(action: argparse.Action) -> str:
    """An option as it is typed, with what stands behind it."""
    value = action.metavar or "|".join(map(str, action.choices or (action.dest,)))
    if not action.option_strings:
        return str(value)
    spellings = ", ".join(action.option_strings)
    if action.nargs == 0:
        return spellings
    return f"{spellings} [{value}]" if action.nargs == "?" else f"{spellings} {value}"


def _rows(meanings: Mapping[str, str], heading: str = "") -> str:
    """What is typed, and beside it what that does."""
    rows = (_row(typed, meaning) for typed, meaning in meanings.items())
    return "\n".join((*filter(None, (heading,)), *rows)) if meanings else ""


def _row(typed: str, meaning: str) -> str:
    from textwrap import fill

    begin, indent = f"  {typed:<{_MEANING_AT - 3}} ", " " * _MEANING_AT
    is_short = len(begin) == _MEANING_AT
    text = fill(
        meaning,
        _WIDTH,
        initial_indent=begin if is_short else indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return text if is_short else f"{begin.rstrip()}\n{text}"


def _beside(lines: Mapping[str, str]) -> str:
    """Lines to begin with, and what each does in a column of its own."""
    wide = max(map(len, lines), default=0)
    return "\n".join(f"  {line:<{wide}}  {does}" for line, does in lines.items())
