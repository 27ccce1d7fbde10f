"""What to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Note
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.sections.phrases import device_text, new_text
from gpumagic.pin_loader.sections.verdict_words import WORTH_IT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.batch import Anatomy
    from gpumagic.pin_loader.report import LoaderReport

_PAIR = {"batch[0]", "batch[1]"}


def next_parts(report: LoaderReport) -> Iterator[Part]:
    """The loop with the new loader, or the magic that makes one."""
    if report.out is not None:
        yield Note(
            "note", _ready(report), f"for {_names(report.anatomy)} in {report.out}:"
        )
    elif report.state is State.DIAGNOSED and report.loader.name and _worth(report):
        yield Note(
            "note",
            "nothing was changed; this makes a loader that feeds faster, and proves it",
            f"%pin_loader {report.loader.name}",
        )


def _ready(report: LoaderReport) -> str:
    built, new = report.rebuilding, new_text(report)
    if report.state is State.NO_ACCELERATOR or (built is not None and not built.depth):
        return f"{new} takes the place of the old loader"
    where = device_text(report.setting)
    return f"batches of {new} are on {where} already: leave out `.to()` in the loop"


def _worth(report: LoaderReport) -> bool:
    most = None if report.bound is None else report.bound.most
    return most is None or most >= WORTH_IT


def _names(anatomy: Anatomy | None) -> str:
    """Two names for a pair of tensors, which is what most loops write."""
    if anatomy is None or anatomy.class_name not in ("tuple", "list") or anatomy.others:
        return "batch"
    paths = {leaf.path for leaf in anatomy.leaves}
    return "x, y" if paths == _PAIR and not anatomy.left_out else "batch"
