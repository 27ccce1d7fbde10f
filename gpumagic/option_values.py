"""What stands behind an option, and how it is refused under the option's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, UsageProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    Options = Mapping[str, argparse.Action]

_BELOW_ZERO = re.compile(r"-\.?\d")
_OF_AN_OPTION = re.compile(r"argument (?P<spellings>[^:]+): (?P<said>.*)", re.DOTALL)
_NOT_READ = re.compile(r"invalid (int|float) value: (?P<text>.*)", re.DOTALL)
_NO_CHOICE = re.compile(r"invalid choice: (?P<text>.*) \(choose from", re.DOTALL)
_EXAMPLES = {
    "TIME": "10s",
    "SIZE": "2GiB",
    "N": "4",
    "K": "4",
    "R": "4",
    "PERCENT": "50",
}
_NUMBERS = {"int": "a whole number", "float": "a number"}


def with_values_attached(options: Options, words: list[str]) -> Iterator[str]:
    """`--budget -3s` as `--budget=-3s`: argparse takes the dash for another option."""
    waiting = ""
    for word in words:
        if waiting and _BELOW_ZERO.match(word):
            yield f"{waiting}={word}"
            waiting = ""
            continue
        if waiting:
            yield waiting
        takes_one = word in options and options[word].nargs is None
        waiting = word if takes_one else ""
        if not waiting:
            yield word
    if waiting:
        yield waiting


def in_our_words(options: Options, name: str, said: str) -> UsageProblem | None:
    """What argparse says of an option's value, with what to type instead.

    Args:
        options: Every option by each of its spellings.

        name: What the user typed, such as `%gpu_mem`.

        said: The words of argparse.

    Returns:
        None where it says something else.
    """
    about = _OF_AN_OPTION.fullmatch(said)
    spelling = about["spellings"].split("/")[-1] if about else ""
    if about is None or spelling not in options:
        return None
    action, verdict = options[spelling], about["said"]
    example = f"write {spelling} {_example(action)}"
    if verdict == "expected one argument":
        return UsageProblem(f"{name} {spelling}: there is no value behind it", example)
    if found := _NOT_READ.fullmatch(verdict):
        problem = f"{name} {spelling}: {found['text']} is not {_NUMBERS[found[1]]}"
        return UsageProblem(problem, example)
    if (found := _NO_CHOICE.match(verdict)) and action.choices:
        choices = " or ".join(f"{spelling} {choice}" for choice in action.choices)
        problem = f"{name} {spelling}: {found['text']} is not one of its words"
        return UsageProblem(problem, f"write {choices}")
    return None


def check_quantities(
    options: Options, name: str, namespace: argparse.Namespace
) -> None:
    """Refuse what is no TIME or SIZE under the name of its option.

    Raises:
        UsageProblem: There is one.
    """
    from gpumagic.units import parse_bytes, parse_seconds

    readers: dict[Any, Any] = {"TIME": parse_seconds, "SIZE": parse_bytes}
    for spelling, option in options.items():
        text = getattr(namespace, option.dest, None)
        if option.metavar in readers and isinstance(text, str):
            try:
                readers[option.metavar](text)
            except GpuMagicError as error:
                problem = f"{name} {spelling}: {error.problem}"
                raise UsageProblem(problem, error.hint) from None


def _example(action: argparse.Action) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    metavar = str(action.metavar or action.dest.upper())
    if action.type in (int, float) and metavar not in _EXAMPLES:
        return _EXAMPLES["N"]
    return _EXAMPLES.get(metavar, metavar)
