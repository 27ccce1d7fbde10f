"""What the new loader is, and what proves that it gives the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Grid, Note, Table
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.sections.phrases import listed, loader_text, new_text
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.proof import Damaged, ReuseCheck, Sameness
    from gpumagic.pin_loader.records.rebuilding import Rebuilding
    from gpumagic.pin_loader.report import LoaderReport

_MOST_NAMES = 6
_MOST_DAMAGED = 3
_RANDOM = (
    "its values are random: two runs of the old loader differ as well, so only what "
    "does not depend on chance was compared"
)


def proof_parts(report: LoaderReport) -> Iterator[Part]:
    """What was changed, what was compared, and what was put back."""
    built = report.rebuilding
    if built is not None and built.changes:
        yield _changes(built)
    facts = tuple(_facts(report))
    if facts:
        yield Grid(_caption(report), facts)


def damage_parts(reuse: ReuseCheck | None) -> Iterator[Part]:
    """Batches that were overwritten: nothing is more serious."""
    if reuse is None or not reuse.damaged:
        return
    told = listed([_damage(each) for each in reuse.damaged], _MOST_DAMAGED)
    yield Note(
        "problem",
        f"memory is filled again while it is still being copied: {told}",
        "let the collate_fn make new tensors for every batch",
    )


def _caption(report: LoaderReport) -> str:
    new, old = new_text(report), loader_text(report.loader)
    return f"Whether {new} gives the same as {old}"


def _changes(built: Rebuilding) -> Table:
    return Table(
        "Changed arguments",
        (Column("Argument"), Column("Before"), Column("After")),
        tuple((each.argument, each.before, each.after) for each in built.changes),
    )


def _facts(report: LoaderReport) -> Iterator[tuple[str, Cell]]:
    built = report.rebuilding
    if built is not None:
        yield from _made(built)
    if report.sameness is not None:
        yield from _sameness(report.sameness)
    elif built is not None and built.way is not Way.UNCHANGED:
        yield "same batches", "not compared"
    if report.reuse is not None:
        yield "memory of batches", _reuse(report.reuse)


def _made(built: Rebuilding) -> Iterator[tuple[str, Cell]]:
    reason = f": {built.reason}" if built.reason else ""
    yield "how it was made", f"{built.way.value} ({built.class_name}){reason}"
    if built.adapter:
        yield "adapter", "pins what torch's pinner passes through"
    ahead = count_text(built.depth, "batch", "batches")
    yield "copied ahead", ahead if built.depth else "nothing"


def _sameness(found: Sameness) -> Iterator[tuple[str, Cell]]:
    which = "all " if found.whole else "the first "
    compared = f"{which}{count_text(found.batches, 'batch', 'batches')}"
    if found.same is None:
        why = found.problem or (_RANDOM if found.random_values else "")
        yield "same batches", "could not be told" + (f": {why}" if why else "")
    elif found.same:
        what = "order and class" if found.random_values else "value, order and class"
        yield "same batches", f"yes, in {what}; compared: {compared}"
        if found.random_values:
            yield "but", _RANDOM
    else:
        what = found.difference or "in a way that was not noted"
        yield "same batches", f"no: {what}; compared: {compared}"
    if found.same is not None and found.problem:
        yield "remark", found.problem
    if found.restored:
        yield "put back as it was", listed(found.restored, _MOST_NAMES)


def _reuse(reuse: ReuseCheck) -> str:
    watched = count_text(reuse.batches, "batch", "batches")
    if reuse.damaged:
        return f"overwritten while it was being copied; watched: {watched}"
    again = ""
    if reuse.reused:
        paths = listed(reuse.reused)
        again = f"; the same addresses come again in the next batch: {paths}"
    if reuse.damaged is None:
        why = f": {reuse.problem}" if reuse.problem else ""
        return f"whether it is filled again too early was not measured{why}{again}"
    return f"arrived unchanged under a delayed copy; watched: {watched}{again}"


def _damage(each: Damaged) -> str:
    return f"{each.path} of batch {each.batch:,}"
