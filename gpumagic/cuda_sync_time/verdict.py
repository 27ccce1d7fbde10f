"""Judges one run: what the time went to, and what makes it shorter. Text alone."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.findings import COSTS_ONCE, floor_text
from gpumagic.cuda_sync_time.records import Bound, FlagKind, titled
from gpumagic.report.events import DEVICE_KINDS, SpanKind, length, merged
from gpumagic.report.units import (
    count_text,
    listed,
    seconds_text,
    share_of,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.cuda_sync_time.answer_run import TimingReport
    from gpumagic.report.events import TraceSpan

WORTH_SAYING = 0.05  # of the time
_MOSTLY = 0.5
_NEARLY_ALL = 0.8
_NEARLY_SAME = 1.05  # times as long
_FLOORS = 2  # below so many a run cannot be told from an empty cell
_NO_EMPTY_CELL = 0.25  # of the time is known to be the GPU's work
_LONGEST_ERROR = 90
_LONGEST_NAME = 60
# A cell that took this machine so many times as long has perhaps done other things; but
# working out a value takes long, too: for each operation, and by what it would compute.
_OWN_TIMES, _OWN_S, _OWN_EACH_S, _OWN_OF_BUSY = 10, 0.05, 2e-3, 5000


def headline(report: TimingReport) -> str:
    """The true time, what it went to, and what an untrue one would have been."""
    said = f"{spent(report)}{_naive(report)}"
    if report.failed:
        time = report.text(report.run.elapsed_s)
        when = "at once" if time.startswith("below") else f"after {time}"
        said = f"failed {when} ({shortened(report.failed, _LONGEST_ERROR)})"
    return titled(report.code.name, said)


def too_short(report: TimingReport) -> bool:
    """Whether one run cannot be told from an empty cell."""
    elapsed_s = report.run.elapsed_s
    is_known = (report.seen.busy_s or 0.0) > _NO_EMPTY_CELL * elapsed_s
    return elapsed_s < _FLOORS * report.setting.floor_s and not is_known


def time_text(report: TimingReport) -> str:
    """The time, with what it leaves out or is made of."""
    time = report.text(report.run.elapsed_s)
    if _leaves_out_python(report):
        return f"{time} on the simulated clock"
    guessed_s = sum(
        each.end_s - each.start_s
        for each in report.seen.spans
        if each.kind in DEVICE_KINDS and each.name in report.guessed
    )
    is_guess = guessed_s > WORTH_SAYING * report.run.elapsed_s
    return f"{time} (guess)" if is_guess else time


def _leaves_out_python(report: TimingReport) -> bool:
    """Whether Python's own time, which no model has, may be most of what passed."""
    run, own_s = report.run, report.run.simulated_in_s
    busy_s = report.seen.busy_s or 0.0
    values_s = _OWN_EACH_S * len(report.seen.spans) + _OWN_OF_BUSY * busy_s
    if own_s < max(_OWN_TIMES * run.elapsed_s, _OWN_S + values_s):
        return False
    return busy_s < _MOSTLY * run.elapsed_s


def is_host_of_simulated(report: TimingReport) -> bool:
    """Whether only Python ran, beside a simulated machine whose clock stood still."""
    return not report.run.uses_device and report.run.simulated_in_s > 0


def spent(report: TimingReport) -> str:
    """The time, and what it went to as told by what was asked for."""
    time = time_text(report)
    if report.bound is Bound.HOST_ONLY:
        if is_host_of_simulated(report):
            own = seconds_text(report.run.simulated_in_s)
            return f"{own} on this machine; no GPU was used"
        blind = any(flag.kind is FlagKind.UNSEEN for flag in report.flags)
        of_gpus = "a GPU was not waited for" if blind else "no GPU was used"
        return f"{time} on the host; {of_gpus}"
    if too_short(report):
        return f"{time}: hardly more than an empty cell"
    if report.syncs:
        return f"{time}: {_lines_wait(report)}"
    if report.seen.busy_s is None:
        return f"{time}: {_works_perhaps(report)}{_started(report)}"
    return f"{time}: {_works(report, report.seen.busy_s)}{_started(report)}"


def _gpu_works(report: TimingReport) -> str:
    return "the GPUs work" if len(report.setting.devices) > 1 else "the GPU works"


def _works(report: TimingReport, busy_s: float) -> str:
    """What the GPU and the host did, where all of it was seen."""
    if busy_s <= 0:
        return "the GPU does nothing in it"
    said = f"{_gpu_works(report)} {seconds_text(busy_s)} of it"
    if report.bound is Bound.DEVICE:
        return f"{said}, the host waits"
    return ", ".join(filter(None, (said, _beside_work(report, busy_s))))


def _beside_work(report: TimingReport, busy_s: float) -> str:
    """What the host did for most of the time, or kept the GPU from working by."""
    whole_s, loading_s = report.run.elapsed_s, _loading_s(report)
    launching_s = report.seconds_of(SpanKind.LAUNCH)
    waiting_s = report.seconds_of(SpanKind.WAIT)
    if waiting_s > _MOSTLY * whole_s:
        at = "for that"
        if (
            waiting_s > _NEARLY_SAME * busy_s
        ):  # as where memory that is copied is staged
            at = f"at {_dearest_names(_waits(report))}"
        return f"its lines wait {seconds_text(waiting_s)} {at}"
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


def _started(report: TimingReport) -> str:
    """What a second run does not meet, where the host took its time."""
    flags = [flag for flag in report.flags if flag.kind in COSTS_ONCE]
    if not flags or report.run.naive_s < _MOSTLY * report.run.elapsed_s:
        return ""
    if any(flag.kind is FlagKind.COMPILED for flag in flags):
        return ", compiling takes part of it"
    libraries = tuple(dict.fromkeys(name for flag in flags for name in flag.names))
    return f", starting {listed(libraries, ' and ', 2) or 'the GPU'} takes part of it"


def _works_perhaps(report: TimingReport) -> str:
    """The same where only two stamps and a pair of events are known."""
    run = report.run
    waited = report.text(run.waited_s)
    said = f"{_gpu_works(report)} at least {waited} of it"
    if report.bound is Bound.DEVICE:
        return f"{said}, the host waits"
    if reading_s := _reading_s(report):
        waits = f"its lines wait {seconds_text(reading_s)} for the GPU"
        if report.bound is Bound.HOST and reading_s < _MOSTLY * run.elapsed_s:
            return f"host code takes {report.text(run.naive_s - reading_s)}, {waits}"
        return waits if report.bound is Bound.HOST else f"{waits}, its end {waited}"
    if report.bound is not Bound.HOST:
        return said
    later = "was done with it"
    if report.tells(run.waited_s):
        later = f"was done {waited} later"
    if report.syncs is None:
        return f"the code ran {report.text(run.naive_s)} of it, the GPU {later}"
    return f"nothing in it waits for the GPU, which {later}"


def _reading_s(report: TimingReport) -> float:
    """How long lines wait that hand values to Python, where that is worth saying."""
    total_s = sum(each.waited_s or 0.0 for each in report.reads)
    return total_s if total_s >= WORTH_SAYING * report.run.elapsed_s else 0.0


def _lines_wait(report: TimingReport) -> str:
    """The waits within the code; those of several threads at once make no sum."""
    points, run = report.syncs or (), report.run
    known = [point.waited_s for point in points if point.waited_s is not None]
    least = "" if len(known) == len(points) else "at least "
    at = " for the GPU"
    if _mostly_stages(report):
        at = ", mostly at copies from pageable memory"
    times = count_text(sum(point.times for point in points), "time")
    said = f"its lines wait {times}{at}"
    if known and sum(known) <= run.naive_s:
        said = f"its lines wait {least}{seconds_text(sum(known))}{at}"
    is_host = report.bound is Bound.HOST
    return said if is_host else f"{said}, its end {report.text(run.waited_s)}"


def _naive(report: TimingReport) -> str:
    """What a clock round the call would have said, where that is wrong."""
    run = report.run
    is_same = run.elapsed_s < _NEARLY_SAME * run.naive_s or run.naive_s <= 0
    is_same |= too_short(report) or not report.tells(run.waited_s)
    if not run.uses_device or is_same:
        return ""
    if not report.tells(run.naive_s):
        return f"; %%time would say less than {floor_text(report.setting.floor_s)}"
    return f"; %%time would say {report.text(run.naive_s)}"


# ----------------------------------------------------------------------- what to try

_NO_LINES = ("queue full", "cudaFree")  # no line asks for these waits
_GPU_LIMIT = "faster kernels, or less for them to do, make it faster"
_NAMES_KERNELS = "--profile names the kernels that take most"
_LAUNCH_LIMIT = (
    "launching is the limit: each operation costs the host time, however small it is",
    (
        "fewer and larger operations (optimizers: foreach=True or fused=True), "
        "torch.compile, or a CUDA graph"
    ),
)
_WAITS_COST = (
    (
        "while a line waits, the host launches nothing ahead: its cost is not the "
        "time waited"
    ),
    "keep values on the GPU, and read them at the end; --vs tells what it saves",
)


_COPIES_LIMIT = (
    "copies take most of the GPU's time",
    "copy less; from and to pinned memory, copies can run beside kernels",
)
_PAGEABLE = "copy from pageable memory"
_STAGED = (
    "a copy from pageable memory is staged by the host, which waits meanwhile",
    "x = x.pin_memory() once, then x.to(device, non_blocking=True)",
)


def advice(report: TimingReport, *, once: bool) -> Iterator[tuple[str, ...]]:
    """What makes it slow, and what to try; of a first run only what is sure."""
    if _reading_s(report):
        yield _slowest_read(report)
    if once or is_host_of_simulated(report):
        return
    if _leaves_out_python(report):
        own = seconds_text(report.run.simulated_in_s)
        yield (
            f"Python's own time is not on the simulated clock; here it ran {own}",
            "box.off(), then time it again: this machine's clock counts Python",
        )
    elif too_short(report):
        yield "one run this short cannot be judged", "--repeat takes many in a row"
    if not too_short(report):
        yield from _limits(report)


def _limits(report: TimingReport) -> Iterator[tuple[str, ...]]:
    """What keeps it from being shorter."""
    loading = tuple(_slow_loader(report))
    yield from loading
    if report.bound is Bound.HOST_ONLY:
        return
    if _mostly_stages(report):
        yield _STAGED
    elif report.syncs:
        yield _WAITS_COST
    elif report.seen.busy_s is not None:
        yield from _advice_seen(report, report.seen.busy_s)
    elif not loading and _reading_s(report) < _MOSTLY * report.run.elapsed_s:
        yield _advice_unseen(report)


def _slowest_read(report: TimingReport) -> tuple[str, ...]:
    """The line that waited longest for values, with who called it."""
    read = report.reads[0]
    waits = f"{read.what} at {read.where} waits {seconds_text(read.waited_s)}"
    times = count_text(read.times, "time")
    return (
        f"{waits} for the GPU, {times}; meanwhile the host launches nothing",
        "keep values on the GPU, and read them at the end; --syncs names all lines",
    )


def _loading_s(report: TimingReport) -> float:
    return (report.loading and report.loading.waited_s) or 0.0


def _slow_loader(report: TimingReport) -> Iterator[tuple[str, ...]]:
    """The loop that waits for data, where the GPU does not work meanwhile."""
    loading, whole_s = report.loading, report.run.elapsed_s
    works = (report.seen.busy_s or 0.0) >= _NEARLY_ALL * whole_s
    works |= report.bound is Bound.DEVICE
    if not loading or works or _loading_s(report) < WORTH_SAYING * whole_s:
        return
    share = share_of(_loading_s(report) / whole_s)
    waits = f"{loading.where} waits {seconds_text(loading.waited_s)} for its DataLoader"
    yield (
        f"{waits}: {share} the time",
        "%pin_loader NAME, with the loader's name, makes it faster",
    )


def _advice_unseen(report: TimingReport) -> tuple[str, ...]:
    run = report.run
    if run.waited_s >= (1 - WORTH_SAYING) * run.elapsed_s:
        return _GPU_LIMIT, _NAMES_KERNELS
    if report.bound is not Bound.HOST:
        text = "what the GPU did before the code returned is not known"
        return text, "--profile shows when it was busy"
    if report.syncs is None and not _reading_s(report):
        text = "launching is the limit, or lines of the code wait for the GPU"
        return text, "--syncs tells which"
    return _LAUNCH_LIMIT


def _advice_seen(report: TimingReport, busy_s: float) -> Iterator[tuple[str, ...]]:
    from gpumagic.cuda_sync_time.view_busy import dearest

    whole_s, profile = report.run.elapsed_s, report.profile
    kernels = (each for each in report.seen.spans if each.kind is SpanKind.KERNEL)
    kernels_s = length(merged((each.start_s, each.end_s) for each in kernels))
    if names := _lets_run_dry(report):
        text = f"the host waits at {names}, and then the GPU has nothing to do"
        yield text, "--syncs names the lines"
    elif busy_s >= _NEARLY_ALL * whole_s and kernels_s < (1 - _MOSTLY) * busy_s:
        yield _COPIES_LIMIT
    elif busy_s >= _NEARLY_ALL * whole_s:
        if not (profile and profile.kernels):
            yield _GPU_LIMIT, _NAMES_KERNELS
            return
        name, share = dearest(profile)
        kernel = shortened(name, _LONGEST_NAME)
        yield _GPU_LIMIT, f"begin with {kernel}: {share_of(share)} busy time"
    elif any(flag.kind is FlagKind.DRIVER_CALLS for flag in report.flags):
        return  # its own note says why the host waits
    elif busy_s > 0 and report.seconds_of(SpanKind.LAUNCH) > _MOSTLY * whole_s:
        yield _LAUNCH_LIMIT


def _mostly_stages(report: TimingReport) -> bool:
    """Whether lines wait mostly while pageable memory is staged, and for long."""
    waits = [(each.name, each.end_s - each.start_s) for each in _waits(report)]
    staging_s = sum(seconds for name, seconds in waits if name == _PAGEABLE)
    others_s = sum(seconds for _, seconds in waits) - staging_s
    return staging_s > max(others_s, WORTH_SAYING * report.run.elapsed_s)


def _waits(report: TimingReport) -> list[TraceSpan]:
    """The waits of the thread that ran the code, while it did."""
    return [
        each
        for each in report.seen.spans
        if each.kind is SpanKind.WAIT
        and not each.thread
        and each.start_s < report.run.naive_s
    ]


def _dearest_names(waits: Iterable[TraceSpan]) -> str:
    """What took most of the time of these waits; "2 names" are some that are pooled."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for each in waits:
        seconds[each.name] += each.end_s - each.start_s
    names = [each for each in seconds if not each[:1].isdigit()]
    names.sort(key=lambda name: -seconds[name])
    return listed(names, " and ", 2) or "several calls"


def _lets_run_dry(report: TimingReport) -> str:
    """The waits after which more was launched, where they and the idle GPU matter."""
    least_s = WORTH_SAYING * report.run.elapsed_s
    if report.run.elapsed_s - (report.seen.busy_s or 0.0) < least_s:
        return ""
    starts_s = (
        each.start_s
        for each in report.seen.spans
        if each.kind is SpanKind.LAUNCH and not each.thread
    )
    last_s = max(starts_s, default=0.0)
    waits = [
        each
        for each in _waits(report)
        if each.end_s <= last_s and each.name not in _NO_LINES
    ]
    if sum(each.end_s - each.start_s for each in waits) < least_s:
        return ""
    return _dearest_names(waits)
