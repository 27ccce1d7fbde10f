"""The words after a magic: declared, read as argparse reads them, refused by name.

A room declares them in front of its method; the parser, the Tab key and `?` read them
from there. Only options ever reach an argument parser. Code is cut off by position and
kept to the letter: joined from words again, `print("a    b")` would become another
program.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import ArgDecorator

from gpumagic.errors import GpuMagicError, UsageProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Options = Mapping[str, argparse.Action]
    _Role = tuple[re.Match[str], Any]  # a word, with its option
    Offers = Iterable[str] | Callable[[Any, str], Iterable[str]]

_BELOW_ZERO = re.compile(r"-\.?\d")
# What argparse says of the value of an option.
_OF_AN_OPTION = re.compile(r"argument ([^:]+): (.*)", re.DOTALL)
_EXAMPLES = {"TIME": "10s", "SIZE": "2GiB", "N": "4", "MACHINE": "h100"}
# A word: runs of plain characters and of quoted text, up to a blank.
_WORD = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")
_OPTION = re.compile(r"\s*((?:-[A-Za-z]|--[A-Za-z][\w-]*)(?:=\S*)?)(?:\s|$)")
_HELP = ("-h", "--help")
_USAGE = "type {} --help to see all options"


class argument(ArgDecorator):  # type: ignore[misc]  # noqa: N801 - as IPython's
    """An option or a word of a line, as `add_argument` of argparse takes it.

    `offers` is what Tab puts there: words, or a function of the room's magics and of
    what is typed so far; by default the metavar tells (NAME, DEVICE, CODE). `more` is
    for what few people need: the help lists it last. `takes` is what a value looks like
    that may be left out (`nargs="?"`); any other word behind the option is code.
    """

    def __init__(
        self,
        *spellings: str,
        offers: Offers = (),
        more: bool = False,
        takes: str = "",
        **keywords: Any,
    ) -> None:
        self.spellings, self.keywords = spellings, keywords
        self.ours = {"offers": offers, "more": more, "takes": takes}

    def add_to_parser(
        self, parser: argparse.ArgumentParser, group: argparse.ArgumentParser | None
    ) -> None:
        """Add it to a parser that is being made."""
        action = (group or parser).add_argument(*self.spellings, **self.keywords)
        vars(action).update(self.ours)


class word(ArgDecorator):  # type: ignore[misc]  # noqa: N801 - beside `argument`
    """A word that the line form answers, such as `log [FILE]`, and what it does.

    `offers` is what Tab puts behind it, as for an `argument`.
    """

    def __init__(self, spelling: str, does: str, *, offers: Offers = ()) -> None:
        self.spelling, self.does, self.offers = spelling, does, offers

    def add_to_parser(
        self, parser: argparse.ArgumentParser, _: argparse.ArgumentParser | None
    ) -> None:
        """Add it to a parser that is being made."""
        vars(parser).setdefault("words", {})[self.spelling] = self.does
        offers = vars(parser).setdefault("offers", {})
        offers[self.spelling.split()[0]] = self.offers


class examples(ArgDecorator):  # type: ignore[misc]  # noqa: N801 - beside `argument`
    """Lines to begin with, each with what it does; the help shows them first."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self.lines = lines

    def add_to_parser(
        self, parser: argparse.ArgumentParser, _: argparse.ArgumentParser | None
    ) -> None:
        """Add them to a parser that is being made."""
        vars(parser)["examples"] = self.lines


# ------------------------------------------------------------------------------ reading


def parse(parser: argparse.ArgumentParser, name: str, line: str) -> argparse.Namespace:
    """Read a line that holds options and plain words only."""
    options = options_of(parser)
    words = _with_values_attached(options, _words(line, name))
    try:
        namespace, unknown = parser.parse_known_args(words)
    except GpuMagicError as error:  # raised by an option's own `type`
        raise UsageProblem(error.problem, error.hint) from None
    except UsageError as error:  # argparse's own verdict, handed on by IPython
        problem = _in_our_words(options, name, str(error))
        raise problem or UsageProblem(f"{name}: {error}", _USAGE.format(name)) from None
    _check_quantities(options, name, namespace)
    if unknown:
        raise _unknown_word(parser, name, unknown[0])
    return namespace


def split_code(
    parser: argparse.ArgumentParser, name: str, line: str
) -> tuple[argparse.Namespace, str]:
    """Read the options at the front of a line, and hand back the code behind them.

    The first word that is no known option, or a `--`, ends the options.
    """
    roles = _roles(parser, line)
    words = list(takewhile(lambda role: role[1] is not None, roles))
    end = words[-1][0].end() if words else 0
    options, code = line[:end], line[end:]
    if re.match(r"\s*--(\s|$)", code):
        code = code.lstrip()[2:]
    elif option := _OPTION.match(code):  # but not the code `-x.sum()` or `-1`
        raise _unknown_word(parser, name, option[1])
    return parse(parser, name, options), code.strip()


def names_of_parts(text: str) -> tuple[str, ...]:
    """Words for parts of a report, with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Let a command show parts of its report, as a magic does."""
    parser.add_argument(
        "--show",
        type=names_of_parts,
        default=(),
        metavar="PARTS",
        help="with these parts",
    )
    parser.add_argument("--all", action="store_true", help="with all parts")


def parts_asked_alone(line: str) -> tuple[str, ...] | None:
    """The parts that a line asks for and nothing else; none named for all of them."""
    words = line.rstrip().rstrip(";").replace("--show=", "--show ", 1).split()
    match words:
        case ["--all"]:
            return ()
        case ["--show", names]:
            return names_of_parts(names)
    return None


def wants_help(line: str) -> bool:
    """Whether the first word asks how the magic is used."""
    return line.split(maxsplit=1)[:1] in ([word] for word in _HELP)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All that can be typed behind a magic, as argparse knows it."""
    return list(parser._actions)  # noqa: SLF001 - argparse has no public list


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option by each of its spellings, such as `-o` and `--output`."""
    return {
        spelling: action
        for action in actions_of(parser)
        for spelling in action.option_strings
    }


def examples_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Lines to begin with, each with what it does."""
    return dict(getattr(parser, "examples", {}))


def words_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What each word that a magic answers does, such as `log [FILE]`."""
    return dict(getattr(parser, "words", {}))


def next_place(
    parser: argparse.ArgumentParser, line: str
) -> tuple[list[str], argparse.Action | None]:
    """Where a further word would stand."""
    *before, (_, option) = _roles(parser, f"{line} x")
    return [word[0] for word, its_option in before if its_option is None], option


def _roles(parser: argparse.ArgumentParser, line: str) -> Iterator[_Role]:
    """Each word with the option that it names or gives a value to, if it does."""
    options = options_of(parser)
    option: argparse.Action | None = None
    awaited, takes = 0, ""
    for word in _WORD.finditer(line):
        if awaited:
            awaited -= 1
        elif takes and re.fullmatch(takes, word[0]):
            takes = ""
        else:
            spelling, _, attached = word[0].partition("=")
            option = options.get(spelling.rstrip(";"))  # it silences the line
            nargs = 0 if option is None else option.nargs
            awaited = nargs if isinstance(nargs, int) else int(nargs is None)
            awaited = 0 if attached else awaited
            takes = "" if attached else getattr(option, "takes", "")
        yield word, option


def _words(line: str, name: str) -> list[str]:
    """The words as the program should see them: `--label='a b'` as `--label=a b`."""
    for word in _WORD.finditer(line):
        if word[0].startswith("#"):
            line = line[: word.start()]
            break
    line = line.rstrip().rstrip(";")
    if left_over := _WORD.sub("", line).strip():
        raise UsageProblem(
            f"{name}: the quotation mark {left_over[0]} is not closed",
            f"close it, or leave it out: {line.strip()}",
        )
    quoted = re.compile(r"\"([^\"]*)\"|'([^']*)'")
    words = _WORD.findall(line)
    return [
        quoted.sub(lambda found: found[1] or found[2] or "", each) for each in words
    ]


def _unknown_word(
    parser: argparse.ArgumentParser, name: str, word: str
) -> UsageProblem:
    """What is not known, with what was meant: begun so, or written nearly so.

    Without their dashes, which all options have in common: with them `--wat` is
    taken for `--repeat`.
    """
    import difflib

    choices = [
        str(choice)
        for action in actions_of(parser)
        for choice in (() if action.option_strings else action.choices or ())
    ]
    answered = (each.split()[0] for each in words_of(parser))
    known = [*options_of(parser), *_HELP, *choices, *answered]
    bare = {each.lstrip("-"): each for each in known}
    spelling = word.partition("=")[0]
    typed = spelling.lstrip("-")
    meant = [each for each in bare if each.startswith(typed) and len(typed) > 1]
    meant = meant or difflib.get_close_matches(typed, bare, n=1, cutoff=0.6)
    offered = " or ".join(bare[each] for each in meant)
    kind = "option" if spelling.startswith("-") else "word"
    hint = f"did you mean {offered}?" if meant else _USAGE.format(name)
    return UsageProblem(f"{name} has no {kind} {spelling}", hint)


# -------------------------------------------------------------------- values of options


def _with_values_attached(options: Options, words: list[str]) -> list[str]:
    """`--view -1,2` as `--view=-1,2`: argparse takes the dash for another option."""
    attached: list[str] = []
    for word in words:
        option = options.get(attached[-1]) if attached else None
        if option is not None and option.nargs is None and _BELOW_ZERO.match(word):
            attached[-1] += f"={word}"
        else:
            attached.append(word)
    return attached


def _in_our_words(options: Options, name: str, said: str) -> UsageProblem | None:
    """What argparse says of a value, with what to type instead; None of all else."""
    about = _OF_AN_OPTION.fullmatch(said)
    spelling = about[1].split("/")[-1] if about else ""
    if about is None or spelling not in options:
        return None
    action = options[spelling]
    choices = [f"{spelling} {choice}" for choice in action.choices or ()]
    number = _EXAMPLES["N"] if action.type in (int, float) else action.dest.upper()
    metavar = str(action.metavar or number)
    example = f"{spelling} {_EXAMPLES.get(metavar, metavar)}"
    problem = f"{name} {spelling}: {about[2].partition(' (choose from')[0]}"
    return UsageProblem(problem, f"write {' or '.join(choices) or example}")


def _check_quantities(
    options: Options, name: str, namespace: argparse.Namespace
) -> None:
    """Refuse what is no TIME or SIZE under the name of its option."""
    from gpumagic.report.units import parse_bytes, parse_seconds

    readers: dict[Any, Any] = {"TIME": parse_seconds, "SIZE": parse_bytes}
    for spelling, option in options.items():
        text = getattr(namespace, option.dest, None)
        if option.metavar in readers and isinstance(text, str):
            try:
                readers[option.metavar](text)
            except GpuMagicError as error:
                problem = f"{name} {spelling}: {error.problem}"
                raise UsageProblem(problem, error.hint) from None
