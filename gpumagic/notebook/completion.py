"""Completes the options of our magics, and what each of them says can stand there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.notebook.arguments import next_place, options_of, words_of
from gpumagic.notebook.faults import Hook

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable
    from contextlib import ExitStack

    from gpumagic.devices.protocols import Driver
    from gpumagic.notebook.arguments import Offers
    from gpumagic.notebook.session import Session

# `%name words`, `%%name words` and `result = %name words`, up to the cursor.
_CALL = re.compile(r"(?:.*=)?\s*(%%?)(\w+)(\s.*?)(\S*)", re.DOTALL)
_NAMES_OF_MAGICS = "IPCompleter.magic_matcher"


class _Offer(NamedTuple):
    """What can be put at the cursor."""

    begun: str  # the word that is there
    words: list[str]  # all that it can become
    # whether code can stand here as well, which IPython completes
    beside_code: bool = False


class Completion:
    """A matcher for the completer of a shell."""

    def __init__(self, shell: Any, session: Session, names: Collection[str]) -> None:
        self.shell = shell
        self.session = session
        self.names = names
        # A fault on Tab must not take the words of others away.
        self.candidates = Hook(self._candidates, "completion of our magics")

    def install(self, undo: ExitStack) -> None:
        """Add a matcher of the newest kind that this IPython knows."""
        matchers = self.shell.Completer.custom_matchers
        matcher = self._by_context() if _knows_contexts() else self._by_text()
        matchers.append(matcher)
        undo.callback(lambda: matcher in matchers and matchers.remove(matcher))

    def _candidates(self, text_until_cursor: str) -> _Offer | None:
        """All that the begun word can become; None where we do not know."""
        call = _CALL.fullmatch(text_until_cursor)
        magic = self._magic(call[2]) if call else None
        parser: argparse.ArgumentParser | None = getattr(magic, "parser", None)
        if call is None or parser is None:
            return None
        sign, _, before, begun = call.groups()
        plain, awaiting = next_place(parser, before)
        positional = [each for each in parser._actions if not each.option_strings]  # noqa: SLF001
        if awaiting is not None:
            return _offer(begun, self._values(awaiting, magic, begun))
        is_code = any(each.metavar == "CODE" for each in positional)
        if begun.startswith("-") and not (plain and is_code):
            return _offer(begun, self._options(parser, magic, begun))
        if plain and is_code:
            return _offer(begun, self._notebook_names(), beside_code=True)
        if plain:
            behind = getattr(parser, "offers", {}) if len(plain) == 1 else {}
            return _offer(begun, _offered(behind.get(plain[0], ()), magic, begun))
        words = [each.split()[0] for each in words_of(parser) if sign == "%"]
        for action in positional:
            words += self._values(action, magic, begun)
        return _offer(begun, words, beside_code=is_code)

    def _magic(self, name: str) -> Any:
        if name not in self.names:
            return None
        return self.shell.find_line_magic(name) or self.shell.find_cell_magic(name)

    def _options(
        self, parser: argparse.ArgumentParser, magic: Any, begun: str
    ) -> Iterable[str]:
        """The options, or behind a `=` what the one in front of it takes."""
        options = options_of(parser)
        spelling, attached, value = begun.partition("=")
        if attached and spelling in options:
            values = self._values(options[spelling], magic, value)
            return [f"{spelling}={each}" for each in values]
        return [each for each in (*options, "--help") if each.startswith("--")]

    def _values(
        self, action: argparse.Action, magic: Any, begun: str
    ) -> Collection[str]:
        """What can stand there: choices, what is declared, or what the metavar says."""
        if action.choices is not None:
            return [str(choice) for choice in action.choices]
        if offers := getattr(action, "offers", ()):
            return _offered(offers, magic, begun)
        values: dict[Any, Callable[[], Collection[str]]] = {
            "NAME": self._notebook_names,
            "DEVICE": self._devices,
            "CODE": self._notebook_names,
        }
        return values.get(action.metavar, list)()

    def _notebook_names(self) -> Collection[str]:
        hidden = self.shell.user_ns_hidden
        return [
            name
            for name in list(self.shell.user_ns)
            if not name.startswith("_") and name not in hidden
        ]

    def _devices(self) -> Collection[str]:
        """The CPU, the GPUs, and simulated ones by the word that code has for them."""
        from gpumagic.devices.simulated import word_of

        drivers = {"cuda": self.session.driver_of_this_machine}
        if self.session.driver.simulated:
            drivers[word_of("sim")] = self.session.driver
        return ["cpu", *(each for pair in drivers.items() for each in _numbered(*pair))]

    def _by_context(self) -> Callable[[Any], Any]:
        """The matcher as IPython 8.6 and later know it."""
        from IPython.core.completer import SimpleCompletion, context_matcher

        @context_matcher(identifier="gpumagic")  # type: ignore[untyped-decorator]
        def match(context: Any) -> Any:
            offer = self.candidates(context.text_until_cursor) or _Offer("", [])
            suppressed = {_NAMES_OF_MAGICS} if offer.beside_code else bool(offer.words)
            return {
                "completions": [
                    SimpleCompletion(word, type=_kind_of(word)) for word in offer.words
                ],
                "matched_fragment": offer.begun,
                "suppress": suppressed,
            }

        return match  # type: ignore[no-any-return]

    def _by_text(self) -> Callable[[str], list[str]]:
        """The matcher as IPython 7 knows it; the line is the completer's state."""

        def match(text: str) -> list[str]:
            line = self.shell.Completer.text_until_cursor
            begun, words, _ = self.candidates(line) or _Offer("", [])
            # `text` is what IPython takes for the begun word: `cuda:` ends one.
            return [word[len(begun) - len(text) :] for word in words]

        return match


def _offered(offers: Offers, magic: Any, begun: str) -> list[str]:
    return [*(offers(magic.__self__, begun) if callable(offers) else offers)]


def _offer(begun: str, words: Iterable[str], *, beside_code: bool = False) -> _Offer:
    fitting = {word for word in words if word.startswith(begun)}
    return _Offer(begun, sorted(fitting), beside_code)


def _numbered(word: str, driver: Driver) -> list[str]:
    return [f"{word}:{number}" for number in range(len(driver.inventory().gpus))]


def _kind_of(word: str) -> str:
    """What JupyterLab writes beside a completion."""
    return "option" if word.startswith("-") else "value"


def _knows_contexts() -> bool:
    from IPython.core import completer

    return hasattr(completer, "context_matcher")
