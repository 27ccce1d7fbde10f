"""The words after a magic: options as argparse reads them, code untouched.

Only options ever reach an argument parser. Code is cut off by position and kept
to the letter: joined from words again, `print("a    b")` would become another
program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, UsageProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

# A word: runs of plain characters and of quoted text, up to a blank.
_WORD = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")
_HELP = ("-h", "--help")


def parse(parser: argparse.ArgumentParser, name: str, line: str) -> argparse.Namespace:
    """Read a line that holds options and plain words only.

    Args:
        parser: The parser that IPython's `@magic_arguments` has made.

        name: What the user typed, such as `%gpu_doctor`, for the messages.

        line: The rest of the line; a `# comment` at its end does not count, nor
            does the `;` with which a cell is silenced.
    """
    from gpumagic import option_values  # the first use pays, not loading

    said = _without_comment(line).rstrip().rstrip(";")
    words = [_unquoted(word) for word in _words(said, name)]
    options = options_of(parser)
    words = list(option_values.with_values_attached(options, words))
    try:
        namespace, unknown = parser.parse_known_args(words)
    except GpuMagicError as error:  # raised by an option's own `type`
        raise UsageProblem(error.problem, error.hint) from None
    except Exception as error:
        # argparse's own verdict arrives as IPython's UsageError, which is not
        # imported here: this module serves the command line as well.
        if type(error).__name__ != "UsageError":
            raise
        problem = option_values.in_our_words(options, name, str(error))
        raise problem or UsageProblem(f"{name}: {error}", usage_hint(name)) from None
    option_values.check_quantities(options, name, namespace)
    if unknown:
        raise _unknown_word(parser, name, unknown[0])
    return namespace


def split_code(
    parser: argparse.ArgumentParser, name: str, line: str
) -> tuple[argparse.Namespace, str]:
    """Read the options at the front of a line, and hand back the code behind them.

    The first word that is no known option, or a `--`, ends the options.
    """
    end = 0
    words = _option_words(parser, line)
    for word in words:
        end = word.end()
    options, code = line[:end], line[end:]
    if re.match(r"\s*--(\s|$)", code):
        code = code.lstrip()[2:]
    elif re.match(r"\s*-", code) and _looks_like_option(code.split()[0]):
        raise _unknown_word(parser, name, code.split()[0])
    return parse(parser, name, options), code.strip()


def wants_help(line: str) -> bool:
    """Whether the first word asks how the magic is used."""
    return line.split(maxsplit=1)[:1] in ([word] for word in _HELP)


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option by each of its spellings, such as `-o` and `--output`."""
    return {
        spelling: action
        for action in parser._actions  # noqa: SLF001 - argparse has no public list
        for spelling in action.option_strings
    }


def words_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What each word that a magic answers does, such as `log [FILE]`."""
    return dict(getattr(parser, "words", {}))


def next_place(
    parser: argparse.ArgumentParser, line: str
) -> tuple[list[str], argparse.Action | None]:
    """Where a further word would stand.

    Returns:
        The plain words of the line, and the option that waits for its value.
    """
    *before, (_, option) = _roles(parser, f"{line} x")
    return [word[0] for word, its_option in before if its_option is None], option


def usage_hint(name: str) -> str:
    """What to type to see all options."""
    return f"type {name} --help to see all options"


def _roles(
    parser: argparse.ArgumentParser, line: str
) -> Iterator[tuple[re.Match[str], argparse.Action | None]]:
    """Each word with the option that it names or gives a value to, if it does."""
    options = options_of(parser)
    option: argparse.Action | None = None
    awaited = 0
    for word in _WORD.finditer(line):
        if awaited:
            awaited -= 1
        else:
            spelling, _, attached = word[0].partition("=")
            option = options.get(spelling.rstrip(";"))  # it silences the line
            awaited = 0 if attached or option is None else _values_taken(option)
        yield word, option


def _option_words(
    parser: argparse.ArgumentParser, line: str
) -> Iterator[re.Match[str]]:
    """The leading words that are options or the values of options."""
    for word, option in _roles(parser, line):
        if option is None:
            return
        yield word


def _values_taken(action: argparse.Action) -> int:
    return action.nargs if isinstance(action.nargs, int) else int(action.nargs is None)


def _looks_like_option(word: str) -> bool:
    """`-x` and `--words`, but not the code `-x.sum()` or `-1`."""
    return re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word) is not None and (
        word.startswith("--") or len(word) == len("-x")
    )


def _words(line: str, name: str) -> list[str]:
    words = _WORD.findall(line)
    left_over = _WORD.sub("", line).strip()
    if left_over:
        raise UsageProblem(
            f"{name}: the quotation mark {left_over[0]} is not closed",
            f"close it, or leave it out: {line.strip()}",
        )
    return words


def _without_comment(line: str) -> str:
    for word in _WORD.finditer(line):
        if word[0].startswith("#"):
            return line[: word.start()]
    return line


def _unquoted(word: str) -> str:
    """`--label='a b'` as the program should see it: `--label=a b`."""
    return re.sub(r"\"([^\"]*)\"|'([^']*)'", lambda m: m[1] or m[2] or "", word)


def _unknown_word(
    parser: argparse.ArgumentParser, name: str, word: str
) -> UsageProblem:
    spelling = word.partition("=")[0]
    kind = "option" if spelling.startswith("-") else "word"
    hint = _nearest(spelling, _known_words(parser)) or usage_hint(name)
    return UsageProblem(f"{name} has no {kind} {spelling}", hint)


def _nearest(spelling: str, known: list[str]) -> str:
    """What was meant: a word that begins so, or one that is written nearly so.

    Without their dashes, which all options have in common: with them `--wat` is
    taken for `--repeat`.
    """
    import difflib

    bare = {word.lstrip("-"): word for word in known}
    typed = spelling.lstrip("-")
    meant = [each for each in bare if each.startswith(typed) and len(typed) > 1]
    meant = meant or difflib.get_close_matches(typed, bare, n=1, cutoff=0.6)
    return f"did you mean {' or '.join(bare[each] for each in meant)}?" if meant else ""


def _known_words(parser: argparse.ArgumentParser) -> list[str]:
    choices: list[Any] = [
        choice
        for action in parser._actions  # noqa: SLF001 - argparse has no public list
        for choice in (action.choices or () if not action.option_strings else ())
    ]
    words = (word.split()[0] for word in words_of(parser))
    return [*options_of(parser), *_HELP, *map(str, choices), *words]
