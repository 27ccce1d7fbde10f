"""One run: how long, who waited for whom, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import floor_text, measured, nearly_same
from gpumagic.cuda_sync_time.report import Bound, FlagKind
from gpumagic.cuda_sync_time.view_busy import picture, seconds_of, spans_of
from gpumagic.cuda_sync_time.view_flags import (
    COSTS_ONCE,
    is_weighty,
    notes,
    short_words,
)
from gpumagic.cuda_sync_time.view_how import OF_LOOKING, facts, remarks
from gpumagic.cuda_sync_time.view_lines import dearest_line, line_details, line_table
from gpumagic.cuda_sync_time.view_profile import (
    dearest,
    kernel_table,
    operators_table,
    profile_details,
    profile_notes,
)
from gpumagic.cuda_sync_time.view_roofline import (
    roof_details,
    roof_notes,
    roof_picture,
    roof_reached,
    roof_table,
)
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.report.events import SpanKind
from gpumagic.report.units import (
    count_text,
    listed,
    seconds_text,
    share_of,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.report import (
        Profile,
        SyncPoint,
        TimingReport,
        Zoom,
    )
    from gpumagic.drawing import Part

_LONGEST_ERROR = 90

# Below so many floors a run cannot be told from an empty cell.
_FLOORS = 2
_NO_EMPTY_CELL = 0.25  # of the time is known to be the GPU's work
_MOSTLY = 0.5  # of the time
_NEARLY_ALL = 0.8
_WORTH_SAYING = 0.05
_ALONE, _WITH_A_TABLE = 10, 6  # lanes
# A cell that took this machine so many times as long has perhaps done other things; but
# working out a value takes long, too: for each operation, and by what it would compute.
_OWN_TIMES, _OWN_S, _OWN_EACH_S, _OWN_OF_BUSY = 10, 0.05, 2e-3, 5000

_LONGEST_NAME = 60
_FEW = 2  # devices, each of which has a line of its own


def _line(sync: SyncPoint) -> str:
    """Where it waits, and which line of the cell led there."""
    if sync.line is None:
        return "not in the user's code"
    return sync.line.where + (f", from {sync.caller.where}" if sync.caller else "")


# Waits were timed one by one, so no floor of a cell is in them.
_WAITS = (
    Property(Column("Line"), _line),
    Property(
        Column("Code"), lambda sync: "" if sync.line is None else sync.line.source
    ),
    Property(Column("What waits"), lambda sync: sync.what),
    Property(Column("Count", number=True), lambda sync: f"{sync.times:,}"),
    Property(
        Column("Waited", number=True),
        lambda sync: None if sync.waited_s is None else seconds_text(sync.waited_s),
    ),
)


# --------------------------------------------------------------------- the answer


def headline(report: TimingReport) -> str:
    """The true time, what it was spent on, and what an untrue one would have been."""
    if report.failed is not None:
        said = shortened(report.failed, _LONGEST_ERROR)
        return f"{_name(report)}failed {_when(report)} ({said})"
    said = f"{_name(report)}{_spent(report)}"
    return said if too_short(report) else f"{said}{_naive(report)}"


def brief(report: TimingReport) -> str:
    """The time in a line with its flags, for when every cell is timed."""
    flags = short_words(flag.kind for flag in report.flags)
    behind = f" [{flags}]" if flags else ""
    if report.failed is not None:
        return f"{_name(report)}failed {_when(report)}{behind}"
    short = too_short(report) and not _is_host_of_simulated(report)
    return f"{_name(report)}{_time(report) if short else _spent(report)}{behind}"


def too_short(report: TimingReport) -> bool:
    """Whether one run cannot be told from an empty cell."""
    floor_s, elapsed_s = report.setting.floor_s, report.run.elapsed_s
    if floor_s is None or elapsed_s >= _FLOORS * floor_s:
        return False
    return (report.busy_s or 0.0) <= _NO_EMPTY_CELL * elapsed_s


def _name(report: TimingReport) -> str:
    return f"{report.code.name}: " if report.code.name else ""


def _time(report: TimingReport) -> str:
    time = measured(report.run.elapsed_s, report.setting.floor_s)
    return f"{time} on the simulated clock" if _leaves_out_python(report) else time


def _when(report: TimingReport) -> str:
    time = measured(report.run.elapsed_s, report.setting.floor_s)
    return "at once" if time.startswith("below") else f"after {time}"


def _leaves_out_python(report: TimingReport) -> bool:
    """Whether Python's own time, which no model has, may be most of what passed."""
    run, own_s = report.run, report.run.simulated_in_s
    busy_s = report.busy_s or 0.0
    values_s = _OWN_EACH_S * len(spans_of(report)) + _OWN_OF_BUSY * busy_s
    if own_s is None or own_s < max(_OWN_TIMES * run.elapsed_s, _OWN_S + values_s):
        return False
    return busy_s < _MOSTLY * run.elapsed_s


def _is_host_of_simulated(report: TimingReport) -> bool:
    """Whether only Python ran, beside a simulated machine whose clock stood still."""
    return not report.run.uses_device and report.run.simulated_in_s is not None


def _spent(report: TimingReport) -> str:
    time = _time(report)
    if report.bound is Bound.HOST_ONLY:
        if _is_host_of_simulated(report):
            return f"{seconds_text(report.seconds)} on this machine; no GPU was used"
        of_gpus = "a GPU was not waited for" if _is_blind(report) else "no GPU was used"
        return f"{time} on the host; {of_gpus}"
    return f"{time}: {_did(report)}"


def _did(report: TimingReport) -> str:
    """What the time went to, as told by what was asked for."""
    if too_short(report):
        return "hardly more than an empty cell"
    if reached := roof_reached(report.roofline):
        return reached
    if report.syncs:
        return _lines_wait(report)
    if report.busy_s is not None:
        return f"{_works(report, report.busy_s)}{_started(report)}"
    return f"{_works_perhaps(report)}{_started(report)}"


def _works(report: TimingReport, busy_s: float) -> str:
    """What the GPU and the host did, where all of it was seen."""
    if busy_s <= 0:
        return f"{_gpus(report, 'does')} nothing in it"
    said = f"{_gpus(report, 'works')} {seconds_text(busy_s)} of it"
    if report.bound is Bound.DEVICE:
        return f"{said}, the host waits"
    rest = _beside_work(report, busy_s)
    return f"{said}, {rest}" if rest else said


def _beside_work(report: TimingReport, busy_s: float) -> str:
    """What the host did for most of the time, or kept the GPU from working by."""
    whole_s, loading_s = report.run.elapsed_s, _loading_s(report)
    launching_s = seconds_of(report, SpanKind.LAUNCH)
    waiting_s = seconds_of(report, SpanKind.WAIT)
    if waiting_s > _MOSTLY * whole_s:
        return f"its lines wait {seconds_text(waiting_s)} for that"
    if loading_s > _MOSTLY * whole_s:
        return f"its DataLoader takes {seconds_text(loading_s)}"
    if names := _lets_run_dry(report):
        return f"its lines wait at {names}"
    if launching_s > _MOSTLY * whole_s:
        return f"launching takes {seconds_text(launching_s)}"
    code_s = report.run.naive_s - launching_s - waiting_s
    is_idle = busy_s < _NEARLY_ALL * whole_s
    if is_idle and code_s > _MOSTLY * whole_s and not _started(report):
        return f"other host code takes {seconds_text(code_s)}"
    return ""


def _gpus(report: TimingReport, does: str) -> str:
    """Who did it: a single one, or some of several."""
    if len(report.setting.devices) <= 1:
        return f"the GPU {does}"
    return f"the GPUs {'do' if does == 'does' else does.removesuffix('s')}"


def _started(report: TimingReport) -> str:
    """What a second run does not meet, where the host took its time."""
    flags = [flag for flag in report.flags if flag.kind in COSTS_ONCE]
    if not flags or report.run.naive_s < _MOSTLY * report.run.elapsed_s:
        return ""
    if any(flag.kind is FlagKind.COMPILED for flag in flags):
        return ", compiling takes part of it"
    libraries = dict.fromkeys(name for flag in flags for name in flag.names)
    what = listed(tuple(libraries), " and ", _FEW) or "the GPU"
    return f", starting {what} takes part of it"


def _works_perhaps(report: TimingReport) -> str:
    """The same where only two stamps and a pair of events are known."""
    waited = measured(report.run.waited_s, report.setting.floor_s)
    if report.bound is Bound.HOST:
        if report.syncs is not None:
            return f"nothing in it waits for the GPU, which {_when_done(report)}"
        code = measured(report.run.naive_s, report.setting.floor_s)
        return f"the code ran {code} of it, the GPU {_when_done(report)}"
    said = f"{_gpus(report, 'works')} at least {waited} of it"
    return f"{said}, the host waits" if report.bound is Bound.DEVICE else said


def _when_done(report: TimingReport) -> str:
    run, floor_s = report.run, report.setting.floor_s
    if not report.tells(run.waited_s):
        return "was done with it"
    return f"was done {measured(run.waited_s, floor_s)} later"


def _lines_wait(report: TimingReport) -> str:
    """The waits within the code; those of several threads at once make no sum."""
    points = report.syncs or ()
    run, floor_s = report.run, report.setting.floor_s
    known = [point.waited_s for point in points if point.waited_s is not None]
    whole_s, least = sum(known), "" if len(known) == len(points) else "at least "
    times = count_text(sum(point.times for point in points), "time")
    said = f"its lines wait for the GPU {times}"
    if known and whole_s <= run.naive_s:
        said = f"its lines wait {least}{seconds_text(whole_s)} for the GPU"
    if report.bound in (Bound.DEVICE, Bound.OVERLAPPED):
        return f"{said}, its end {measured(run.waited_s, floor_s)}"
    return said


def _naive(report: TimingReport) -> str:
    """What a clock round the call would have said, where that is wrong."""
    run, floor_s = report.run, report.setting.floor_s
    ratio = run.too_little
    if not run.uses_device or ratio is None or nearly_same(ratio):
        return ""
    if not report.tells(run.waited_s):
        return ""
    if not report.tells(run.naive_s):
        return f"; %%time would say less than {floor_text(floor_s)}"
    return f"; %%time would say {measured(run.naive_s, floor_s)}"


def _is_blind(report: TimingReport) -> bool:
    """Whether there is a GPU at work that could not be waited for."""
    return any(flag.kind is FlagKind.UNSEEN for flag in report.flags)


# ---------------------------------------------------------------------- the parts


def run_parts(report: TimingReport) -> tuple[Part, ...]:
    """Everything below the headline, the most telling first."""
    return one_screen((*_in_sight(report), *_folded(report)))


def _in_sight(report: TimingReport) -> Iterator[Part]:
    roof, tables = roof_picture(report.roofline), tuple(_tables(report))
    if roof is not None:
        yield roof
    elif _has_picture(report) and not report.lines:
        yield picture(report, most=_WITH_A_TABLE if tables else _ALONE)
    yield from tables[:1]
    yield from _notes(report)


def _has_picture(report: TimingReport) -> bool:
    if too_short(report):
        return False
    profile = report.profile
    if report.run.uses_device or profile is None:
        return report.run.uses_device
    return bool(profile.spans) and not profile.operators


def _tables(report: TimingReport) -> Iterator[Table]:
    """The one that was asked for most pointedly comes first."""
    if report.lines:
        yield line_table(report.lines, report.run.elapsed_s)
    if report.roofline is not None and (table := roof_table(report.roofline)):
        yield table
    if report.syncs:
        yield Table.of(
            "Lines that make the host wait", _WAITS, report.syncs, name="waits"
        )
    profile = report.profile
    if profile is not None and profile.kernels:
        yield kernel_table(profile)
    elif profile is not None and profile.operators:
        yield operators_table(profile.operators)


def _folded(report: TimingReport) -> Iterator[Details]:
    for table in tuple(_tables(report))[1:]:
        yield Details(table.caption, (replace(table, caption=""),), table.name)
    if report.lines:
        yield line_details(report.lines, report.run.elapsed_s)
    instead = report.lines or roof_picture(report.roofline) is not None
    if instead and _has_picture(report):
        whole = picture(report, most=_ALONE)
        yield Details(whole.caption, (replace(whole, caption=""),), "timeline")
    if report.roofline is not None:
        yield from roof_details(report.roofline)
    if report.profile is not None:
        yield from profile_details(report.profile, report.setting)
    yield how_measured(
        Grid("", tuple(facts(report))),
        Paragraph("\n".join(remarks(report, drawn=_has_picture(report)))),
    )


def _notes(report: TimingReport) -> Iterator[Note]:
    """What makes the time untrue, then what makes it long, then all else."""
    if report.failed is not None:
        text = "the time ends at the error: code that works takes another one"
        yield Note("problem", text)
    weighty = [flag for flag in report.flags if is_weighty(flag.kind)]
    others = [
        flag
        for flag in report.flags
        if not is_weighty(flag.kind) and flag.kind not in OF_LOOKING
    ]
    yield from notes(weighty, report.setting)
    yield from _dearest_line(report)
    roof = () if report.roofline is None else tuple(roof_notes(report.roofline))
    yield from roof
    once = any(each.kind in COSTS_ONCE for each in weighty)
    if report.failed is None and not once and not roof:
        yield from _advice(report)
    if report.profile is not None:
        yield from profile_notes(report.profile)
    yield from notes(others, report.setting)


def _dearest_line(report: TimingReport) -> Iterator[Note]:
    if report.lines and report.profile is not None:
        whole_s = sum(each.total_s for each in report.profile.kernels)
        note = dearest_line(report.lines, whole_s)
        if note is not None:
            yield note


def _advice(report: TimingReport) -> Iterator[Note]:
    """What makes it slow, and what to try."""
    if _is_host_of_simulated(report):
        return
    if _leaves_out_python(report):
        own = seconds_text(report.run.simulated_in_s)
        yield Note(
            "note",
            f"Python's own time is not on the simulated clock; here it ran {own}",
            "box.off(), then time it again: this machine's clock counts Python",
        )
    elif too_short(report):
        yield Note(
            "note",
            "one run this short cannot be judged",
            "--repeat takes many in a row",
        )
    if too_short(report):
        return
    loading = tuple(_slow_loader(report))
    yield from loading
    if report.bound is Bound.HOST_ONLY:
        return
    if report.syncs:
        yield Note("note", _WAITS_COST, _READ_ONCE)
    elif report.busy_s is None:
        yield from () if loading else _advice_unseen(report)
    else:
        yield from _advice_seen(report, report.busy_s)


def _slow_loader(report: TimingReport) -> Iterator[Note]:
    """The loop that waits for data, where the GPU does not work meanwhile."""
    loading, whole_s = report.loading, report.run.elapsed_s
    works = (report.busy_s or 0.0) >= _NEARLY_ALL * whole_s
    works |= report.bound is Bound.DEVICE
    if loading is None or works or _loading_s(report) < _WORTH_SAYING * whole_s:
        return
    where = "the code" if loading.line is None else loading.line.where
    share = share_of(_loading_s(report) / whole_s)
    yield Note(
        "note",
        f"{where} waits {seconds_text(loading.waited_s)} for its DataLoader: "
        f"{share} the time",
        "%pin_loader NAME, with the loader's name, makes it faster",
    )


def _loading_s(report: TimingReport) -> float:
    return (report.loading.waited_s or 0.0) if report.loading else 0.0


def _advice_unseen(report: TimingReport) -> Iterator[Note]:
    run = report.run
    if run.waited_s >= (1 - _WORTH_SAYING) * run.elapsed_s:
        yield Note("note", _GPU_LIMIT, _NAMES_KERNELS)
    elif report.bound is not Bound.HOST:
        text = "what the GPU did before the code returned is not known"
        yield Note("note", text, "--profile shows when it was busy")
    elif report.syncs is None:
        text = "launching is the limit, or lines of the code wait for the GPU"
        yield Note("note", text, "--syncs tells which")
    else:
        yield _LAUNCH_LIMIT


def _advice_seen(report: TimingReport, busy_s: float) -> Iterator[Note]:
    whole_s = report.run.elapsed_s
    profile = report.profile
    if names := _lets_run_dry(report):
        text = f"the host waits at {names}, and then the GPU has nothing to do"
        yield Note("note", text, "--syncs names the lines")
    elif busy_s >= _NEARLY_ALL * whole_s:
        named = profile is not None and bool(profile.kernels)
        hint = _most_of(profile) if named and profile else _NAMES_KERNELS
        yield Note("note", _GPU_LIMIT, hint)
    elif any(flag.kind in _DRIVER_WAITS for flag in report.flags):
        return  # their own notes say why the host waits
    elif busy_s > 0 and seconds_of(report, SpanKind.LAUNCH) > _MOSTLY * whole_s:
        yield _LAUNCH_LIMIT


def _lets_run_dry(report: TimingReport) -> str:
    """The waits after which more was launched, where they and the idle GPU matter."""
    least_s = _WORTH_SAYING * report.run.elapsed_s
    if report.run.elapsed_s - (report.busy_s or 0.0) < least_s:
        return ""
    host = [each for each in spans_of(report) if not each.thread]
    starts_s = (each.start_s for each in host if each.kind is SpanKind.LAUNCH)
    last_s = max(starts_s, default=0.0)
    waits = [
        each
        for each in host
        if each.kind is SpanKind.WAIT
        and each.end_s <= last_s
        and each.name not in _NO_LINES
    ]
    if sum(each.end_s - each.start_s for each in waits) < least_s:
        return ""
    names = {each.name for each in waits}
    is_one = len(names) == 1 and not max(names)[0].isdigit()  # else "2 names", pooled
    return names.pop() if is_one else "several calls"


_NO_LINES = ("queue full", "cudaFree")  # no line asks for these waits
_DRIVER_WAITS = (FlagKind.GIVEN_BACK, FlagKind.DRIVER_CALLS, FlagKind.RETRIES)
_WAITS_COST = (
    "while a line waits, the host launches nothing ahead: its cost is not the time "
    "waited"
)
_READ_ONCE = (
    "keep values on the GPU, and read them at the end; --vs tells what it saves"
)
_GPU_LIMIT = "faster kernels, or less for them to do, make it faster"
_NAMES_KERNELS = "--profile names the kernels that take most"
_LAUNCH_LIMIT = Note(
    "note",
    "launching is the limit: each operation costs the host time, however small it is",
    "fewer and larger operations (optimizers: foreach=True or fused=True), "
    "torch.compile, or a CUDA graph",
)


def _most_of(profile: Profile) -> str:
    """The dearest kernel, as where to begin."""
    name, share = dearest(profile)
    return f"begin with {shortened(name, _LONGEST_NAME)}: {share_of(share)} busy time"


# ---------------------------------------------------------------- a part of the time


def zoom_headline(zoom: Zoom) -> str:
    """How much of this part the GPU was busy."""
    report = zoom.timing
    drawn = picture(report, most=_ALONE, part=(zoom.start_s, zoom.end_s))
    shares = [
        f"{lane.name} {drawn.scale.share(lane)}"
        for lane in drawn.shown
        if not lane.name.startswith("host")
    ]
    length = seconds_text(zoom.end_s - zoom.start_s)
    busy = f": {listed(shares[:_FEW], ', ')} busy" if shares else ""
    return f"{_name(report)}{length} of {_time(report)}{busy}"


def zoom_parts(zoom: Zoom) -> tuple[Part, ...]:
    """The picture of this part."""
    return (picture(zoom.timing, most=_ALONE, part=(zoom.start_s, zoom.end_s)),)
