"""How much of a batch is pinned, in half a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.batch import Pinned
from gpumagic.report.units import bytes_text, count_text, share_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.batch import Anatomy

_LONGEST_PATH = 120


def pageable_sentence(anatomy: Anatomy) -> str:
    """How many tensors and bytes are pageable, in one sentence without a full stop."""
    count, least = len(anatomy.leaves), least_text(anatomy)
    pageable = [leaf for leaf in anatomy.leaves if leaf.pinned is Pinned.PAGEABLE]
    unknown = sum(leaf.pinned is Pinned.UNKNOWN for leaf in anatomy.leaves)
    told = f", and of {unknown} it is not known" if unknown else ""
    if unknown and unknown == count:
        return _unknown(count)
    if not pageable:
        return f"{_none_pageable(anatomy)}{told}"
    if len(pageable) == count and not anatomy.left_out:
        return _all_are(anatomy, "pageable")
    whole = anatomy.tensor_bytes
    share = share_text(anatomy.bytes_that_are(Pinned.PAGEABLE) / whole if whole else 0)
    verb = "is" if len(pageable) == 1 else "are"
    counted = f"{least}{len(pageable)} of {count_text(count, 'tensor')}"
    return f"{counted}, {share} of the bytes, {verb} pageable{told}"


def _none_pageable(anatomy: Anatomy) -> str:
    kinds = {leaf.pinned for leaf in anatomy.leaves}
    if not kinds:
        return "a batch holds no tensors"
    if kinds != {Pinned.PINNED} or anatomy.left_out:
        return "no tensor that was looked at is pageable"
    return _all_are(anatomy, "pinned")


def _unknown(count: int) -> str:
    which = "the one tensor of a batch is"
    if count > 1:
        which = "the tensors of a batch are"
    return f"whether {which} pinned is not known"


def _all_are(anatomy: Anatomy, what: str) -> str:
    size, count = bytes_text(anatomy.tensor_bytes), len(anatomy.leaves)
    if count == 1:
        return f"the one tensor of a batch ({size}) is {what}"
    number = "both" if count == 2 else f"all {count}"
    return f"{number} tensors of a batch ({size}) are {what}"


def least_text(anatomy: Anatomy) -> str:
    """What stands before a figure where more leaves were not looked at."""
    return "at least " if anatomy.left_out else ""


def short_path(path: str) -> str:
    """The end of a path that is too long: that is what tells it from its neighbours."""
    return path if len(path) <= _LONGEST_PATH else f"...{path[3 - _LONGEST_PATH :]}"
