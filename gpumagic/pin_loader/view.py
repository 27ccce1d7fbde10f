"""Draws how a loader feeds its device: the answer, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Drawing, Note, Paragraph
from gpumagic.pin_loader.report import State, WatchReport
from gpumagic.pin_loader.sections.bound_section import bound_parts
from gpumagic.pin_loader.sections.end_to_end_section import end_to_end_parts
from gpumagic.pin_loader.sections.guard_section import guard_parts, is_loud
from gpumagic.pin_loader.sections.headline import headline
from gpumagic.pin_loader.sections.leaf_section import leaf_parts
from gpumagic.pin_loader.sections.next_section import next_parts
from gpumagic.pin_loader.sections.proof_section import damage_parts, proof_parts
from gpumagic.pin_loader.sections.rates_section import (
    copies_parts,
    each_part_parts,
    ranges_parts,
)
from gpumagic.pin_loader.sections.remark_notes import (
    all_remarks,
    notes_of,
    other,
    serious,
)
from gpumagic.pin_loader.sections.setting_section import setting_parts
from gpumagic.pin_loader.sections.steps_section import steps_parts
from gpumagic.pin_loader.sections.watch_section import watch_parts
from gpumagic.pin_loader.sections.watch_words import watch_headline
from gpumagic.pin_loader.sections.worker_section import worker_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.pin_loader.report import LoaderReport

# In the other states there is little to see in a picture of before and after.
_CHANGING = (State.DIAGNOSED, State.FIXED, State.WRAPPED_ONLY)
_REFUSALS = frozenset(state for state in State if state.value.startswith("refused"))


def draw(report: LoaderReport | WatchReport) -> Drawing:
    """A loader from diagnosis to proof, or a cell that was watched."""
    if isinstance(report, WatchReport):
        title, parts = watch_headline(report), watch_parts(report)
    else:
        title, parts = headline(report), _loader_parts(report)
    return Drawing(title, tuple(parts), report.setting.label)


def _loader_parts(report: LoaderReport) -> Iterator[Part]:
    """What decides first: why not, what is wrong, what is won, what is possible."""
    remarks = all_remarks(report)
    yield from _reason(report)
    yield from damage_parts(report.reuse)
    yield from notes_of(serious(remarks))
    yield from next_parts(report)
    if report.guard is not None and is_loud(report.guard):
        told = "" if report.reason is None else report.reason.hint
        yield from guard_parts(report.guard, report.setting, told)
    yield from end_to_end_parts(report)
    if report.steps is not None and report.state in _CHANGING:
        yield from steps_parts(report.steps)
    yield from _findings(report)
    yield from proof_parts(report)
    yield from notes_of(other(remarks))
    yield from _rest(report)


def _findings(report: LoaderReport) -> Iterator[Part]:
    """What was found of the loader as it is."""
    if report.bound is not None:
        yield from bound_parts(report.bound)
    yield from leaf_parts(report)
    yield from copies_parts(report.rates, report.setting)
    if report.bound is None:
        yield from each_part_parts(report.rates, report.setting)
    if report.setting.label and _mixes_clocks(report):
        yield Paragraph(
            "Times of loading and of copies within the host are this machine's; copies "
            f"to the device and compute are those of the {report.setting.label}."
        )
    if report.workers is not None:
        yield from worker_parts(report.workers)


def _mixes_clocks(report: LoaderReport) -> bool:
    """Whether figures of both clocks are shown, and nothing has said so yet."""
    said = report.end_to_end is not None and report.end_to_end.modelled
    return not said and (report.bound is not None or report.rates.load is not None)


def _rest(report: LoaderReport) -> Iterator[Part]:
    """What only some readers want to see."""
    if report.guard is not None and not is_loud(report.guard):
        yield from guard_parts(report.guard, report.setting)
    if report.bound is not None:
        yield from each_part_parts(report.rates, report.setting)
    yield from ranges_parts(report.rates)
    if report.steps is not None and report.state not in _CHANGING:
        steps = tuple(steps_parts(report.steps))
        yield Details("What a prefetcher would do", steps)
    yield from setting_parts(report.loader, report.setting)


def _reason(report: LoaderReport) -> Iterator[Part]:
    """Why it ended so; only what to do about it where the title says the reason."""
    reason = report.reason
    if reason is None:
        return
    kind: NoteKind = "note"
    if report.state in _REFUSALS or reason.serious:
        kind = "problem"
    if reason.text.lower() != headline(report).lower():
        yield Note(kind, reason.text, reason.hint)
    elif reason.hint:
        yield Note(kind, reason.hint)
