"""Whether a request fits now: where, or what stands in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Badge, Column, Note, Paragraph, Table
from gpumagic.gpu_mem.cause_words import fit_sentence
from gpumagic.gpu_mem.device_words import device_name
from gpumagic.gpu_mem.why_section import steps_parts
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import Cell, Part, Tone
    from gpumagic.gpu_mem.records.requests import Answer
    from gpumagic.gpu_mem.report import FitReport

_FITS = ("hole", "driver", "after releasing")
_BADGES: dict[str | None, tuple[str, Tone]] = {
    "hole": ("yes", "ok"),
    "driver": ("yes", "ok"),
    "after releasing": ("after releasing", "warning"),
    "nowhere": ("no", "problem"),
    None: ("unknown", "unknown"),
}
_FIGURES: tuple[tuple[str, Callable[[Answer], int | None]], ...] = (
    ("Would take", lambda answer: answer.rounded_bytes),
    ("Largest hole", lambda answer: answer.hole_bytes),
    ("Else from the driver", lambda answer: answer.segment_bytes),
    ("Free on device", lambda answer: answer.device_free_bytes),
    ("Could be released", lambda answer: answer.releasable_bytes),
    ("Left of the limit", lambda answer: answer.cap_left_bytes),
)
_MEANING = (
    "A request is met from a hole of torch's own if one is large enough, else from the "
    "driver, else after unused segments were given back, which is slow."
)

_ELSEWHERE = (
    "this is for the default stream: {} is free in segments of other streams, and only "
    "tensors made there can have it"
)


def fit_headline(report: FitReport) -> str:
    """Yes, no, or after what; on which devices."""
    asked, answers = bytes_text(report.requested_bytes), report.answers
    if report.why_not is not None or not answers:
        return f"whether {asked} fits cannot be told"
    if len(answers) == 1:
        name = device_name(report.setting, answers[0].device)
        return f"{asked} {_verdict(answers[0], name)}"
    fitting = [each for each in answers if each.place in _FITS]
    devices = count_text(len(answers), "device")
    if not fitting:
        unsure = any(each.place is None for each in answers)
        told = "cannot be told to fit on any of" if unsure else "fits on none of"
        return f"{asked} {told} {devices}"
    some = f"{len(fitting)} of"
    if len(fitting) == len(answers):
        some, devices = ("both", "devices") if len(answers) == 2 else ("all", devices)
    slow = sum(each.place == "after releasing" for each in fitting)
    after = f", on {slow} of them only after releasing cached memory" if slow else ""
    return f"{asked} fits on {some} {devices} now{after}"


def fit_parts(report: FitReport) -> Iterator[Part]:
    """The figures of each device, why not, and what to do."""
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
        return
    if report.answers:
        yield _table(report)
    elsewhere = sum(answer.elsewhere_bytes for answer in report.answers)
    if elsewhere:
        yield Note("note", _ELSEWHERE.format(bytes_text(elsewhere)))
    if report.causes:
        sentences = (fit_sentence(cause, report) for cause in report.causes)
        yield Paragraph("\n".join(map(_capital, sentences)))
    yield from steps_parts(report.next_steps)
    if report.answers:
        yield Paragraph(_MEANING)


def _table(report: FitReport) -> Table:
    """What is known of no device has no column."""
    known = [
        (heading, figure)
        for heading, figure in _FIGURES
        if any(figure(answer) is not None for answer in report.answers)
    ]
    columns = (
        Column("Device"),
        Column("Fits"),
        *(Column(heading, number=True) for heading, _ in known),
    )
    rows = tuple(
        (
            device_name(report.setting, answer.device),
            _badge(answer),
            *(_known(figure(answer)) for _, figure in known),
        )
        for answer in report.answers
    )
    return Table("Where it could go", columns, rows)


def _badge(answer: Answer) -> Cell:
    word, tone = _BADGES.get(answer.place, _BADGES[None])
    return Badge(word, tone)


def _verdict(answer: Answer, name: str) -> str:
    match answer.place:
        case "hole":
            hole = bytes_text(answer.hole_bytes)
            return f"fits on {name} now: in a hole of {hole} that torch has already"
        case "driver":
            free = bytes_text(answer.device_free_bytes)
            return f"fits on {name} now: the driver has {free} free"
        case "after releasing":
            held = bytes_text(answer.releasable_bytes)
            return f"fits on {name} once torch has released unused segments ({held})"
        case "nowhere":
            return f"does not fit on {name} now"
    return f"may fit on {name} or not: too little is known of it"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _known(count: int | None) -> str | None:
    return None if count is None else bytes_text(count)
