"""Completes the options of our magics, and the names and devices they take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpumagic.arguments import options_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection
    from contextlib import ExitStack

    from gpumagic.session import Session

# `%name words`, `%%name words` and `result = %name words`, up to the cursor.
_CALL = re.compile(r"(?:.*=)?\s*%%?(\w+)\s+(.*)", re.DOTALL)


class Completion:
    """A matcher for the completer of a shell."""

    def __init__(self, shell: Any, session: Session, names: Collection[str]) -> None:
        self.shell = shell
        self.session = session
        self.names = names

    def install(self, undo: ExitStack) -> None:
        """Add a matcher of the newest kind that this IPython knows."""
        matchers = self.shell.Completer.custom_matchers
        matcher = self._by_context() if _knows_contexts() else self._by_text()
        matchers.append(matcher)
        undo.callback(lambda: matcher in matchers and matchers.remove(matcher))

    def candidates(self, text_until_cursor: str) -> tuple[str, list[str]] | None:
        """The begun word and all that it can become; None where we do not know."""
        call = _CALL.fullmatch(text_until_cursor)
        parser = self._parser(call[1]) if call else None
        if call is None or parser is None:
            return None
        *before, begun = re.split(r"\s+", call[2])
        found = self._possible(parser, before[-1] if before else "", begun)
        return begun, sorted(word for word in found if word.startswith(begun))

    def _parser(self, name: str) -> argparse.ArgumentParser | None:
        if name not in self.names:
            return None
        method = self.shell.find_line_magic(name) or self.shell.find_cell_magic(name)
        return getattr(method, "parser", None)

    def _possible(
        self, parser: argparse.ArgumentParser, previous: str, begun: str
    ) -> Collection[str]:
        options = options_of(parser)
        if previous in options and options[previous].nargs != 0:
            return self._values(options[previous])
        if begun.startswith("-"):
            return [word for word in (*options, "--help") if word.startswith("--")]
        positional = [each for each in parser._actions if not each.option_strings]  # noqa: SLF001
        return [value for action in positional for value in self._values(action)]

    def _values(self, action: argparse.Action) -> Collection[str]:
        """What an option takes: its choices, or what its metavar stands for."""
        if action.choices is not None:
            return [str(choice) for choice in action.choices]
        values: dict[Any, Callable[[], Collection[str]]] = {
            "NAME": self._notebook_names,
            "DEVICE": self._devices,
        }
        return values.get(action.metavar, list)()

    def _notebook_names(self) -> Collection[str]:
        hidden = self.shell.user_ns_hidden
        return [
            name
            for name in self.shell.user_ns
            if not name.startswith("_") and name not in hidden
        ]

    def _devices(self) -> Collection[str]:
        gpus = self.session.driver.inventory().gpus
        return ["cpu", *(f"cuda:{number}" for number in range(len(gpus)))]

    def _by_context(self) -> Callable[[Any], Any]:
        """The matcher as IPython 8.6 and later know it."""
        from IPython.core.completer import SimpleCompletion, context_matcher

        @context_matcher(identifier="gpumagic")  # type: ignore[untyped-decorator]
        def match(context: Any) -> Any:
            begun, words = self.candidates(context.text_until_cursor) or ("", [])
            return {
                "completions": [
                    SimpleCompletion(word, type=_kind_of(word)) for word in words
                ],
                "matched_fragment": begun,
                "suppress": bool(words),
            }

        return match  # type: ignore[no-any-return]

    def _by_text(self) -> Callable[[str], list[str]]:
        """The matcher as IPython 7 knows it; the line is the completer's state."""

        def match(text: str) -> list[str]:
            found = self.candidates(self.shell.Completer.text_until_cursor)
            begun, words = found or ("", [])
            # `text` is what IPython takes for the begun word: `cuda:` ends one.
            return [word[len(begun) - len(text) :] for word in words]

        return match


def _kind_of(word: str) -> str:
    """What JupyterLab writes beside a completion."""
    return "option" if word.startswith("-") else "value"


def _knows_contexts() -> bool:
    from IPython.core import completer

    return hasattr(completer, "context_matcher")
