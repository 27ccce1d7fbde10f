"""Why memory ran out, or whether a request fits: causes, figures, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.records import Cause, Holdings, LeakKind
from gpumagic.gpu_mem.view_leaks import leaks_table
from gpumagic.gpu_mem.view_memory import bars
from gpumagic.gpu_mem.view_names import names_table
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    known_bytes,
    names_or_none,
    on_device,
    recorded_in,
)
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part, Tone
    from gpumagic.gpu_mem.records import Answer, CaughtOoms, OomFacts, Pinning, Setting
    from gpumagic.gpu_mem.report import FitReport, WhyReport

_MOST_HOLDERS = 6
_MOST_PINNINGS = 6
_MOST_STEPS = 3
_NO_WORDS = (
    "torch counts such errors, but only the error says how much was asked for.\n"
    "Most likely the code, or a library that it uses, has caught it."
)
_AFTER = (
    "Memory was looked at after the error: its frames still held their tensors.\n"
    "torch had already given back what nobody used."
)
_TABLE_OF: dict[Cause | None, str] = {
    Cause.LEAKED: "leaks",
    Cause.FRAGMENTED: "blocks",
}
_STREAM_UNKNOWN = (
    "the error does not say for which stream it was: no stream can have the holes of "
    "another"
)
# What each comes down to, in the title.
SHORT = {
    Cause.NEVER_FITS: "that is more than the device has",
    Cause.TOO_MUCH_LIVE: "too much else is alive",
    Cause.FRAGMENTED: "enough was free, but in pieces that are too small",
    Cause.PRIVATE_POOL: "much of the memory is kept for graphs",
    Cause.OTHERS: "others on the device hold much of its memory",
    Cause.LEAKED: "what is probably not wanted would have been enough",
    Cause.CAPPED: "this process may not take more",
    Cause.UNKNOWN: "why cannot be told",
}
_OF_A_REQUEST = {
    Cause.NEVER_FITS: "{asked} is more than the device has, whatever is freed",
    Cause.TOO_MUCH_LIVE: "with what is alive now, {asked} more is too much",
    Cause.FRAGMENTED: "enough is free, but no piece of it is as large as {asked}",
    Cause.PRIVATE_POOL: "much is kept for graphs, and other tensors cannot use it",
    Cause.OTHERS: "other processes, or what lies outside torch, hold much",
    Cause.LEAKED: "letting go of what is probably not wanted would be enough",
    Cause.CAPPED: "this process may not take that much",
    Cause.UNKNOWN: "why cannot be told from what is known",
}
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
    "driver.\nIf that has none, unused segments are given back first, which is slow."
)
_ELSEWHERE = (
    "{} more is free in segments of other streams: only tensors made there can have it"
)


def why_headline(report: WhyReport) -> str:
    """What was asked for, what was free, and what that comes down to."""
    oom = report.oom
    if oom is None:
        if report.caught is not None:
            return _caught_headline(report.caught, report.setting)
        return "no out-of-memory error has been seen in this notebook"
    cell = "" if oom.cell is None else f"In [{oom.cell}]: "
    where = on_device(report.setting, oom.device)
    asked, free = oom.requested_bytes, oom.free_bytes
    said = "memory ran out" if asked is None else f"{bytes_text(asked)} did not fit"
    had = "" if free is None else f" with {bytes_text(free)} free"
    cause = report.causes[0] if report.causes else Cause.UNKNOWN
    return f"{cell}{said} {where}{had}: {SHORT[cause]}"


def why_parts(report: WhyReport) -> Iterator[Part]:
    """What to do, who has the memory, and what both rest on."""
    oom = report.oom
    if oom is None and report.caught is None:
        yield Note(
            "note",
            "before a large tensor is made, ask whether it fits",
            "%gpu_mem fit 2GiB",
            "ask whether it fits",
        )
        return
    yield from _steps_parts(report.next_steps)
    if report.memory is not None:
        yield bars((report.memory,), report.setting)
    if oom is not None and report.caught is not None:
        more = _caught_headline(report.caught, report.setting)
        yield Note("note", f"besides, {more}")
    tables = dict(_tables(report))
    first = next(iter(tables), None)
    if first is not None:
        yield tables[first].beginning(MOST_ROWS)
    if oom is None:
        yield how_measured(Paragraph(_NO_WORDS))
        return
    causes = report.causes or (Cause.UNKNOWN,)
    said = Paragraph("\n".join(cause_sentence(each, report) for each in causes))
    yield Details("Why it did not fit", (said,), "causes")
    for name, table in tables.items():
        if name != first:
            yield Details(table.caption, (table,), name)
    grid = Grid("", tuple(_facts(report, oom)))
    yield Details("The figures of that moment", (grid,), "figures")
    yield Details("What torch said", (Paragraph(oom.text),), "torch")
    streams = (Note("note", _STREAM_UNKNOWN),) if _may_be_elsewhere(report) else ()
    after = (Paragraph(_AFTER),) if oom.after else ()
    yield how_measured(*after, *streams)


def _caught_headline(caught: CaughtOoms, setting: Setting) -> str:
    """How often memory ran out without a word, and where as far as that is known."""
    where, once = on_device(setting, caught.device), caught.times == 1
    times = "" if once else f" {caught.times:,} times"
    if caught.cell is None:
        since = "" if caught.since_cell is None else f" since In [{caught.since_cell}]"
        return (
            f"memory ran out{times} {where}{since}; no error that tells of it is left"
        )
    errors = (
        "the error was caught; its words are gone"
        if once
        else "the errors were caught; their words are gone"
    )
    return f"In [{caught.cell}]: memory ran out{times} {where}, and {errors}"


def _tables(report: WhyReport) -> Iterator[tuple[str, Table]]:
    """Each by its word, the one first that the first cause is about."""
    cause = report.causes[0] if report.causes else None
    order = ["names", "leaks", "blocks"]
    order.sort(key=lambda name: name != _TABLE_OF.get(cause, "names"))
    made = {
        "names": lambda: names_table(
            Holdings(report.holders),
            report.setting,
            _MOST_HOLDERS,
            sums=False,
            room=_MOST_HOLDERS,
        ),
        "leaks": lambda: leaks_table(report.leaks, report.setting),
        "blocks": lambda: _pinning(report.pinning),
    }
    rows = {"names": report.holders, "leaks": report.leaks, "blocks": report.pinning}
    yield from ((name, made[name]()) for name in order if rows[name])


def _steps_parts(steps: Sequence[str]) -> Iterator[Part]:
    """What to type, the best first."""
    if not steps:
        return
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    first, more = numbered[:_MOST_STEPS], numbered[_MOST_STEPS:]
    yield Paragraph("\n".join(("What to do, the best first:", *first)))
    if more:
        yield Details("More that can be done", (Paragraph("\n".join(more)),), "steps")


def _facts(report: WhyReport, oom: OomFacts) -> Iterator[tuple[str, Cell]]:
    if oom.line is not None:
        source = f": {oom.line.source}" if oom.line.source else ""
        yield "line", f"{oom.line.where}{source}"
    if oom.called_from is not None:
        source = f": {oom.called_from.source}" if oom.called_from.source else ""
        yield "called from", f"{oom.called_from.where}{source}"
    yield "device", device_name(report.setting, oom.device)
    figures = (
        ("asked for", oom.requested_bytes),
        ("free on the device", oom.free_bytes),
        ("the device has", oom.total_bytes),
        ("used by this process", oom.process_bytes),
        ("allocated in tensors", oom.allocated_bytes),
        ("reserved, not allocated", oom.reserved_unallocated_bytes),
    )
    for name, figure in figures:
        yield name, known_bytes(figure)
    if oom.private_pools_bytes is not None:
        yield "kept in private pools", bytes_text(oom.private_pools_bytes)
    if report.answer is not None:
        yield "largest hole now", known_bytes(report.answer.hole_bytes)
    if report.expandable_segments is not None:
        yield "expandable segments", "on" if report.expandable_segments else "off"


def _pinning(pinnings: Sequence[Pinning]) -> Table:
    """Which blocks keep large segments from being given back."""
    properties = [
        Property(Column("Kept in use by"), lambda each: names_or_none(each.names)),
        figures("Its size", lambda each: each.block_bytes),
        figures("Segment", lambda each: each.segment_bytes),
        figures("Free, but held back", lambda each: each.free_bytes),
    ]
    if any(each.line is not None for each in pinnings):
        where = Property(Column("Allocated in"), lambda each: recorded_in(each.line))
        properties.append(where)
    caption = "Blocks that keep large segments from being given back"
    shown = pinnings[:_MOST_PINNINGS]
    return Table.of(caption, properties, shown, total=len(pinnings))


# ------------------------------------------------------------ a sentence for each cause


def cause_sentence(cause: Cause, report: WhyReport) -> str:
    """What is so, with the figures that are known."""
    return _SENTENCES[cause](report)


def _may_be_elsewhere(report: WhyReport) -> bool:
    """Whether the holes that are known may not be those of the request's stream."""
    answer, asked = report.answer, report.oom.requested_bytes if report.oom else None
    if answer is None:
        return False
    fits_now = asked is not None and (answer.hole_bytes or 0) >= asked
    return fits_now or answer.elsewhere_bytes > 0


def fit_sentence(cause: Cause, report: FitReport) -> str:
    """The same where nothing has failed yet."""
    asked = bytes_text(report.requested_bytes)
    return f"{_OF_A_REQUEST[cause].format(asked=asked)}."


def _never_fits(report: WhyReport) -> str:
    total = report.oom.total_bytes if report.oom else None
    have = "" if total is None else f" ({bytes_text(total)} in all)"
    return (
        f"{_asked(report)} is more than the device can give{have}: freeing memory "
        "does not help."
    )


def _too_much_live(report: WhyReport) -> str:
    allocated = report.oom.allocated_bytes if report.oom else None
    alive = "Too much" if allocated is None else bytes_text(allocated)
    return f"{alive} was alive in tensors: {_asked(report)} does not fit beside it."


def _fragmented(report: WhyReport) -> str:
    free = report.oom.reserved_unallocated_bytes if report.oom else None
    hole = None if report.answer is None else report.answer.hole_bytes
    enough = "Enough" if free is None else bytes_text(free)
    whose = " of the default stream" if _may_be_elsewhere(report) else ""
    largest = "" if hole is None else f"; the largest{whose} is {bytes_text(hole)}"
    return (
        f"{enough} was free in what torch keeps, but in pieces that are too "
        f"small{largest}."
    )


def _private_pool(report: WhyReport) -> str:
    kept = report.oom.private_pools_bytes if report.oom else None
    much = "Much" if kept is None else bytes_text(kept)
    return (
        f"{much} is kept for captured graphs, or for a pool of your own: other "
        "tensors cannot use it."
    )


def _others(report: WhyReport) -> str:
    memory = report.memory
    others = None if memory is None else memory.not_ours_bytes
    outside = None if memory is None else memory.outside_bytes
    hold = "much of the device" if others is None else bytes_text(others)
    lies = (
        ""
        if outside is None
        else f", and {bytes_text(outside)} of this one lies outside torch"
    )
    return f"Other processes hold {hold}{lies}: no tensor that is freed here helps."


def _leaked(report: WhyReport) -> str:
    leaks = [leak for leak in report.leaks if leak.kind is not LeakKind.GRAPH]
    held = sum(leak.nbytes for leak in leaks)
    # What two of them hold is in both of their figures.
    most = "At most " if len(leaks) > 1 else ""
    much = f"{most}{bytes_text(held)}" if leaks else "Enough"
    return f"{much} is held by what is probably not wanted: letting go of it is enough."


def _capped(report: WhyReport) -> str:
    cap = None if report.memory is None else report.memory.cap_bytes
    most = "" if cap is None else f" than {bytes_text(cap)}"
    return (
        f"This process may not take more{most}: a limit was set with "
        "set_per_process_memory_fraction."
    )


def _unknown(_: WhyReport) -> str:
    return "Neither the text of the error nor the memory now tells why."


def _asked(report: WhyReport) -> str:
    asked = report.oom.requested_bytes if report.oom else None
    return "what was asked for" if asked is None else bytes_text(asked)


_SENTENCES: dict[Cause, Callable[[WhyReport], str]] = {
    Cause.NEVER_FITS: _never_fits,
    Cause.TOO_MUCH_LIVE: _too_much_live,
    Cause.FRAGMENTED: _fragmented,
    Cause.PRIVATE_POOL: _private_pool,
    Cause.OTHERS: _others,
    Cause.LEAKED: _leaked,
    Cause.CAPPED: _capped,
    Cause.UNKNOWN: _unknown,
}


# ---------------------------------------------------------------------- whether it fits


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
    """Where it fits, why not, and what to do."""
    if report.why_not is not None:
        yield Note("note", report.why_not, report.hint or "")
        return
    if report.causes:
        sentences = (fit_sentence(cause, report) for cause in report.causes)
        yield Paragraph("\n".join(map(_capital, sentences)))
    yield from _steps_parts(report.next_steps)
    if len(report.answers) > 1:
        yield _fit_table(report, whole=False).beginning(MOST_ROWS)
    elsewhere = sum(answer.elsewhere_bytes for answer in report.answers)
    if elsewhere:
        yield Note("note", _ELSEWHERE.format(bytes_text(elsewhere)))
    if report.answers:
        table = _fit_table(report, whole=True)
        yield Details("The figures of each device", (table,), "figures")
        yield how_measured(Paragraph(_MEANING))


def _fit_table(report: FitReport, *, whole: bool) -> Table:
    """What is known of no device has no column."""
    chosen = _FIGURES if whole else _FIGURES[1:4]
    properties = (
        Property(
            Column("Device"), lambda each: device_name(report.setting, each.device)
        ),
        Property(Column("Fits"), lambda each: Badge(*_BADGES[each.place])),
        *(
            figures(heading, figure)
            for heading, figure in chosen
            if any(figure(answer) is not None for answer in report.answers)
        ),
    )
    return Table.of("Where it could go", properties, report.answers)


def _verdict(answer: Answer, name: str) -> str:
    match answer.place:
        case "hole":
            hole = bytes_text(answer.hole_bytes)
            return f"fits on {name} now: torch has a hole of {hole}"
        case "driver":
            free = bytes_text(answer.device_free_bytes)
            return f"fits on {name} now: the driver has {free} free"
        case "after releasing":
            held = bytes_text(answer.releasable_bytes)
            return f"fits on {name} once torch has released {held} of unused segments"
        case "nowhere":
            return f"does not fit on {name} now"
    return f"may fit on {name} or not: too little is known of it"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
