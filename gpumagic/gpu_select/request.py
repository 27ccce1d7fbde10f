"""Reads what the user asks for: the words as they are typed, and what they mean."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.gpu_select.report import Action
from gpumagic.report.units import parse_bytes, parse_seconds

_BETWEEN = re.compile(r"[\s,]+")
_QUOTES = "[]()'\"`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
_NUMBER = re.compile(r"[0-9]{1,6}")
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_LONGEST_RANGE = 1024
_UUID = re.compile(r"(gpu-|mig-)([a-z0-9./_-]+)", re.IGNORECASE)
_TORCH_NAME = re.compile(r"(?:torch\.)?cuda:?([0-9]*)", re.IGNORECASE)


class Kind(enum.Enum):
    """What sort of choice is asked for."""

    NAMED = "named"
    NONE = "none"
    ALL = "all"
    FREE = "free"


_KINDS = {each.value: each for each in (Kind.NONE, Kind.ALL, Kind.FREE)}


@dataclass(frozen=True)
class Request:
    """A request that has been understood; the machine has not been asked yet."""

    kind: Kind
    names: tuple[str, ...]  # in order: "2", "GPU-1a2b", "MIG-..."
    text: str  # the request as one would type it again, options included
    count: int = 1  # of free ones, how many
    min_free_bytes: int = 0  # that each must have; 0: it must be free of others
    wait_s: float = 0.0  # how long to wait for free ones
    action: Action = Action.SELECTED  # what is to be done with the choice
    force: bool = False  # whether to leave the limit that the process was started with


def read(  # noqa: PLR0913 -- each one is an option of the magic
    what: object,
    *,
    n: int | None = None,
    min_free: str | int | None = None,
    wait: str | float | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> Request:
    """Understand names, divided by commas or blanks, or "none", "all" or "free".

    >>> read("0-2").names, read([3, "GPU-1a2b"]).text
    (('0', '1', '2'), '3,GPU-1a2b')
    """
    kind, names = meaning(what)
    head = ",".join(names) or kind.value
    size = f"{min_free}B" if isinstance(min_free, int) else min_free
    options = {"-n": n, "--min-free": size, "--wait": wait}
    said = [
        f"{name} {''.join(str(value).split())}"
        for name, value in options.items()
        if value and value != "0"
    ]
    if said and kind is not Kind.FREE:
        raise GpuMagicError(
            f"{said[0].split()[0]} chooses among free GPUs, and {head} says which",
            f"type %gpu_select {head}, or %gpu_select free {' '.join(said)}",
        )
    count = 1 if n is None else n
    if count < 1:
        raise GpuMagicError(
            f"-n {n} asks for no GPU", "type %gpu_select none to hide every GPU"
        )
    return Request(
        kind,
        names,
        " ".join([head, *(each for each in said if not each.startswith("--wait"))]),
        count=count,
        # Whoever asks for none shares with anybody.
        min_free_bytes=max(parse_bytes(size or "0B"), int(bool(size))),
        wait_s=parse_seconds(wait if isinstance(wait, str) else f"{wait or 0:f}s"),
        action=Action.DRY_RUN if dry_run else Action.SELECTED,
        force=force,
    )


def meaning(what: object) -> tuple[Kind, tuple[str, ...]]:
    """The sort of choice, and the names if there are any.

    >>> meaning("0-2")[1], meaning([3, "gpu-1a2b"])[1]
    (('0', '1', '2'), ('3', 'GPU-1a2b'))
    """
    words = _words(what)
    if not words:
        raise GpuMagicError(
            "no GPU is named",
            "type %gpu_select none to hide every GPU, or %gpu_select free to take one",
        )
    kinds = [word.lower() for word in words if word.lower() in _KINDS]
    if not kinds:
        return Kind.NAMED, tuple(name for word in words for name in _names_in(word))
    kind = kinds[0]
    others = [word for word in words if word.lower() != kind]
    if not others:
        return _KINDS[kind], ()
    hint = f"type %gpu_select {kind} alone, or the names without it"
    if kind == "free" and others[0].isdecimal():
        hint = f"for that many free GPUs type %gpu_select free -n {others[0]}"
    raise GpuMagicError(f"{kind!r} cannot stand among other words", hint)


def _words(what: object) -> list[str]:
    """The words of a text, of a number, or of all that is in a list."""
    if what is None or isinstance(what, bool):
        return []
    if isinstance(what, str):
        bare = (piece.strip(_QUOTES) for piece in _BETWEEN.split(what))
        return [word for word in bare if word]
    if isinstance(what, Iterable):
        return [word for each in what for word in _words(each)]
    return [str(what)]


def _names_in(word: str) -> list[str]:
    """One name, or the numbers of a range."""
    if _NUMBER.fullmatch(word):
        return [str(int(word))]
    if match := _RANGE.fullmatch(word):
        first, last = int(match[1]), int(match[2])
        if not first <= last < first + _LONGEST_RANGE:
            raise GpuMagicError(
                f"the range {word} names no GPUs",
                "type the lower number first, as in 0-3, or the numbers one by one",
            )
        return [str(number) for number in range(first, last + 1)]
    if match := _UUID.fullmatch(word):
        return [match[1].upper() + match[2]]
    if match := _TORCH_NAME.fullmatch(word):
        raise GpuMagicError(
            f"{word!r} is a name inside of one process, which comes from this choice",
            "numbers mean the GPUs of the machine, as nvidia-smi shows them: "
            f"type %gpu_select {match[1] or 'free'}",
        )
    hint = "type a number, a UUID, none, all or free"
    if re.fullmatch(r"-[0-9]+", word):
        hint = "type %gpu_select none to hide every GPU"
    raise GpuMagicError(
        f"{word!r} names no GPU", did_you_mean(word.lower(), _KINDS) or hint
    )
