"""How much was in use from step to step of a cell: a curve with its peak marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Curve, Details, Meter, Property, Table
from gpumagic.gpu_mem.view_terms import device_name, of_host, short_name
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import AtPeak, Course, Setting

_FROM_ZERO = 0.5  # of the peak: what never falls below is not drawn from zero on
_MOST_NAMED = 3


def curve(course: Course, setting: Setting) -> Curve:
    """The course of one device, to a scale that shows its ups and downs."""
    lowest, peak = min(course.lowest_bytes), course.peak_bytes
    floor = lowest if _FROM_ZERO * peak < lowest < peak else 0
    name = device_name(setting, course.device)
    whose = "Host memory in use" if of_host(setting) else f"In use on {name}"
    caption = f"{whose}, step by step"
    steps = "1 step" if course.steps == 1 else f"{course.steps:,} steps"
    remarks = [f"the scale begins at {bytes_text(floor)}"] if floor else []
    if course.partial:
        remarks.append("the oldest steps are lost")
    return Curve(
        caption=": ".join(filter(None, (caption, "; ".join(remarks)))),
        highest=course.highest_bytes,
        across=("start", steps),
        peak=_peak_told(course),
        lowest=course.lowest_bytes,
        floor=floor,
        text_of=bytes_text,
    )


def _peak_told(course: Course) -> str:
    """How much and where, and whose the most of it was."""
    where = ""
    if course.peak_step == 0:
        where = " before the cell took anything"
    elif course.peak_number is not None:
        where = f" in line {course.peak_number}"
    elif course.peak_line is not None:
        where = f" in {course.peak_line.where}"
    most = [
        f"{bytes_text(each.nbytes)} {_whose(each)}"
        for each in course.at_peak[:_MOST_NAMED]
    ]
    whose = f": {', '.join(most)}" if most else ""
    return f"peak {bytes_text(course.peak_bytes)}{where}{whose}"


def _whose(each: AtPeak) -> str:
    if each.name:
        return f"in {short_name(each.name)}"
    if each.from_before:
        return "there before"
    return "without a name" if each.line is None else f"from {_owner(each)}"


def _owner(each: AtPeak) -> str:
    if each.name:
        return short_name(each.name)
    if each.number is not None:
        return f"line {each.number}"
    if each.line is not None:
        return each.line.where
    return "there before, no name" if each.from_before else "no name found"


def highest_course(courses: Sequence[Course]) -> Course:
    """That of the device on which most was taken."""
    return max(courses, key=lambda each: each.peak_bytes - each.lowest_bytes[0])


def course_details(
    courses: Sequence[Course], setting: Setting, rows_in_sight: int
) -> Iterator[Details]:
    """What was in use at the peak, and the curves for which there was no room."""
    shown = highest_course(courses)
    if len(courses) > 1 or len(shown.at_peak) > rows_in_sight:
        tables = tuple(_tables(courses, setting))
        yield Details("All that was in use at the peak", tables, "peak")
    others: list[Part] = [curve(each, setting) for each in courses if each is not shown]
    if others:
        yield Details("The other devices, step by step", tuple(others), "devices")


def _tables(courses: Sequence[Course], setting: Setting) -> Iterator[Table]:
    for course in courses:
        if not course.at_peak:
            continue
        name = device_name(setting, course.device)
        caption = f"At the peak, {name}" if len(courses) > 1 else ""
        yield at_peak_table(course, caption)


def at_peak_table(course: Course, caption: str) -> Table:
    """Whose it was, largest first."""
    most = course.at_peak[0].nbytes

    def size(each: AtPeak) -> Meter:
        return Meter(each.nbytes / most if most else None, bytes_text(each.nbytes))

    properties = [
        Property(Column("Held by"), _owner),
        Property(Column("In use at the peak", number=True), size),
        Property(Column("Since then"), _since),
    ]
    if any(each.line is not None for each in course.at_peak):
        properties.append(Property(Column("Taken by"), _code))
    return Table.of(caption, properties, course.at_peak)


def _since(each: AtPeak) -> str:
    return "still in use" if each.was_left else "given back"


def _code(each: AtPeak) -> str:
    if each.line is None:
        return ""
    return each.line.source or each.line.where
