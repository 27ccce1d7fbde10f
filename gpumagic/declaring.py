"""What a magic declares: its options, what can be put there, its words; and its help.

A room says all of it in front of its method. The parser, the Tab key and `?` read it
from there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import ArgDecorator

from gpumagic.arguments import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Offers = Iterable[str] | Callable[[Any, str], Iterable[str]]

_WIDTH = 78
_MEANING_AT = 24  # where argparse, too, begins to say what something does


class argument(ArgDecorator):  # type: ignore[misc]  # noqa: N801 - as IPython's
    """An option or a word of a line, as `add_argument` of argparse takes it.

    Args:
        spellings: How it is typed; without dashes, the name of a positional.

        offers: What Tab puts there: words, or a function of the room's magics and
            what is typed so far. By default the metavar tells: NAME, DEVICE, CODE.

        keywords: For argparse.
    """

    def __init__(self, *spellings: str, offers: Offers = (), **keywords: Any) -> None:
        self.spellings = spellings
        self.offers = offers
        self.keywords = keywords

    def add_to_parser(
        self, parser: argparse.ArgumentParser, group: argparse.ArgumentParser | None
    ) -> None:
        """Add it to a parser that is being made."""
        action = (group or parser).add_argument(*self.spellings, **self.keywords)
        vars(action)["offers"] = self.offers


class word(ArgDecorator):  # type: ignore[misc]  # noqa: N801 - beside `argument`
    """A word that the line form answers, when it stands behind the name.

    Args:
        spelling: The word, and what may stand behind it: `log [FILE]`.

        does: A few words on it, for the help.
    """

    def __init__(self, spelling: str, does: str) -> None:
        self.spelling = spelling
        self.does = does

    def add_to_parser(
        self, parser: argparse.ArgumentParser, _: argparse.ArgumentParser | None
    ) -> None:
        """Add it to a parser that is being made, and to the end of its help."""
        words = words_of(parser) | {self.spelling: self.does}
        vars(parser)["words"] = words
        rows = (f"  {word:<{_MEANING_AT - 2}}{does}" for word, does in words.items())
        parser.epilog = "\n".join(("words:", *rows))


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says in one sentence what a magic is for, then how it is typed, then the rest."""

    def __init__(self, prog: str, **keywords: Any) -> None:
        super().__init__(prog, **{**keywords, "width": _WIDTH})
        self._kept_usage: tuple[Any, Any, Any] | None = None

    def add_usage(
        self, usage: Any, actions: Any, groups: Any, prefix: str | None = None
    ) -> None:
        """Keep the usage until the first sentence has been said."""
        del prefix  # argparse's is a word; here it is a percent sign
        self._kept_usage = (usage, actions, groups)

    def add_text(self, text: str | None) -> None:
        """Add a text; the usage comes behind the first sentence of the first one.

        Args:
            text: The docstring of a magic, and later what stands below its options.
        """
        if self._kept_usage:
            from inspect import cleandoc

            summary, _, text = cleandoc(text or "").partition("\n\n")
            super().add_text(summary)
            super().add_usage(*self._kept_usage, prefix="  %")
            self._kept_usage = None
        super().add_text(text)

    def start_section(self, heading: str | None) -> None:
        """Begin a list; nobody types the word "positional"."""
        super().start_section(heading and heading.removeprefix("positional "))
