"""Names of variables that were meant to be another name."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_BETWEEN = re.compile(r"[^A-Z0-9]+")
_LIKE_A_WORD = 0.7  # CUDA and CDUA, DEVICES and DEVICE
_LIKE_THE_WHOLE = 0.7  # all of the words, in another order or with one missing
_RUN_TOGETHER = 0.92  # without what separates the words


def meant_to_be(name: str, there: Iterable[str]) -> list[str]:
    """Those of the names that look like slips of the pen.

    Names that other programs read are none: they begin with a maker's or a tool's
    word in the place of the first, or say all of the words and one more.

    >>> meant_to_be("CUDA_VISIBLE_DEVICES", ["CUDA_VISIBLE", "HIP_VISIBLE_DEVICES"])
    ['CUDA_VISIBLE']
    """
    return [each for each in there if each != name and _is_slip(each, name)]


def _is_slip(found: str, meant: str) -> bool:
    words, wanted = _words(found), _words(meant)
    if set(words) > set(wanted):
        return False
    if _alike("".join(words), "".join(wanted)) >= _RUN_TOGETHER:
        return True
    begun = all(_has(each, words) for each in wanted[:2])
    return begun and _alike("_".join(words), "_".join(wanted)) >= _LIKE_THE_WHOLE


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN.split(name.upper()) if word]


def _has(wanted: str, words: list[str]) -> bool:
    return any(_alike(word, wanted) >= _LIKE_A_WORD for word in words)


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
