"""Strings as people, programs and accidents write them into CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BLANKS = (" ", "  ", "\t", "\n", "\v", "\f", "\r", "\u00a0", "\u2003")
_WORDS = ("", "-", "+", "none", "all", "NoDevFiles", "void", '"0"', "'1'", "[0]", "nan")
_NUMBERS = (
    *("0-3", "0:2", "0x0", "0x1", "0X1", "0xg", "00", "010", "0b1", "1e0", "1.5"),
    *("2_0", "4294967296", "4294967297", "-4294967295", "9" * 30, "0" * 40 + "1"),
    *("\u0661", "\uff11", "\u00b9", "\u2460", "-\u0661", "1\u0661"),
)
_PREFIXES = ("GPU-", "MIG-", "MIG-GPU-", "gpu-", "Gpu-", "GPU", "MIG", "mig-", "GPU_")
_JUNK = "0123456789abcdefGPUMIgpumi-+,. /xX\t\u0661\u00e9\U0001f600\udc80"


def masks(names: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """So many values, the same for a seed, from names of GPUs and slices."""
    chance = random.Random(seed)  # noqa: S311 -- to be repeated, not to be secret
    for _ in range(count):
        yield _list(chance, names) if chance.random() < 0.95 else _junk(chance)


def _list(chance: random.Random, names: Sequence[str]) -> str:
    """Mostly entries of one sort, since an entry of another only ends the list."""
    sorts: tuple[Callable[[], str], ...] = (
        lambda: str(chance.randrange(6)),
        lambda: _number(chance),
        lambda: _named(chance, names),
        lambda: chance.choice(_WORDS),
    )
    first = chance.choice(sorts[:3])
    length = chance.choice((1, 1, 2, 2, 3, 4, 6))
    entries = [
        (first if chance.random() < 0.8 else chance.choice(sorts))()
        for _ in range(length)
    ]
    return ",".join(_in_blanks(chance, entry) for entry in entries)


def _number(chance: random.Random) -> str:
    sign = chance.choice(("", "", "", "+", "-", "+ ", "--"))
    text = chance.choice((str(chance.randrange(20)), *chance.sample(_NUMBERS, 2)))
    return sign + text + chance.choice(("", "", "", "x", " 1", "-", ".", ";2"))


def _named(chance: random.Random, names: Sequence[str]) -> str:
    name = chance.choice(names)
    match chance.randrange(8):
        case 0 | 1:
            return name
        case 2 | 3:
            return name[: chance.randrange(len(name) + 1)]
        case 4:
            return chance.choice(_PREFIXES) + chance.choice(("", name[4:], name[4:9]))
        case 5:
            return chance.choice((name.upper(), name.lower(), name.swapcase()))
        case 6:
            place = chance.randrange(len(name))
            return name[:place] + chance.choice(_JUNK) + name[place + 1 :]
        case _:
            return name + chance.choice(("0", "/1/0", "-", " ", "\u00e9"))


def _in_blanks(chance: random.Random, entry: str) -> str:
    if chance.random() < 0.85:
        return entry
    sides = chance.choice(((1, 0), (0, 1), (1, 1)))
    before, after = (chance.choice(_BLANKS) if side else "" for side in sides)
    return before + entry + after


def _junk(chance: random.Random) -> str:
    return "".join(chance.choices(_JUNK, k=chance.randrange(25)))
