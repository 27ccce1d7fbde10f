"""One process by its trace: how busy the GPU was, what held it back, what to do."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import starmap
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.view_busy import ORDER, Picture, SeenLane, kernel_name
from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Span,
    Table,
    how_measured,
)
from gpumagic.gpu_open.records import KernelSum
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    listed,
    range_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_open.records import Idle, RankTrace
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.report.events import Piece

_NEGLIGIBLE = 0.01  # of the time: what takes less holds nobody up
_WORTH_A_NOTE = 0.05
_GRAVE = 0.1  # what takes more is a warning
_LONGEST_FULL = 300
_LONGEST_FILE = 40
_LONGEST_WHERE = 28
_LONGEST_KIND = 20
_MOST_FILES = 12
_LONG_S = 2e-4  # for each launch: no launch takes so long
_ROWS = (6, 5, 3)  # of the table in sight, beside so many notes
_NODE = "autograd::engine::evaluate_function: "

_BUSY = (
    "The time counts from the first work of the GPU to the last. Busy: at least one "
    "kernel, copy or fill ran. Idle is the rest. Communication is hidden while a "
    "kernel computes; the rest had the GPU to itself."
)
_IDLE = (
    "The host was late: the next work was launched only after the GPU ran dry. "
    "Another stream: it was launched in time, and what ran last ran elsewhere. "
    "From one kernel to the next: what had been launched began within 10 us."
)
# Why it was idle: its name, in words, from which share on it is worth a note, the hint.
_REASONS = {
    "host_late_s": ("the host was late", "the host was late for {}", 1.0, ""),
    "other_stream_s": (
        "another stream",
        "{} idle between two streams",
        _WORTH_A_NOTE,
        "one waits for the other: start copies and sends earlier",
    ),
    "between_s": (
        "from one kernel to the next",
        "{} idle from one kernel to the next",
        _GRAVE,
        "fuse short kernels by `torch.compile`, or give each more to do",
    ),
    "unexplained_s": (
        "unknown",
        "{} idle for no reason in the file",
        _GRAVE,
        "was the file filtered? or `%gpu_select` tells who else uses the GPU",
    ),
}


# ------------------------------------------------------------------------ the verdict


def headline(rank: RankTrace) -> str:
    """How long, how busy, and what held it back."""
    whose = "" if rank.rank is None else f"rank {rank.rank}: "
    length_s = rank.length_s
    if not length_s:
        host = f"; the host ran for {seconds_text(rank.host_length_s)}"
        return f"{whose}no GPU work is in this trace{host * (rank.host_length_s > 0)}"
    busy = share_text(rank.busy_s / length_s)
    said = f"{whose}{seconds_text(length_s)}, the GPU was busy {busy} of it"
    exposed = rank.exposed_s / length_s
    if exposed >= _NEGLIGIBLE:
        said += f", {share_text(exposed)} only with communication"
    if held := _held_up(rank.idle, length_s):
        return f"{said}; {held}"
    return said if exposed >= _NEGLIGIBLE else f"{said}{_mostly(rank)}"


def _held_up(idle: Idle, length_s: float) -> str:
    times_s = {each: getattr(idle, each) for each in _REASONS}
    unknown_s = times_s.pop("unexplained_s")
    most, known_s = max(times_s.items(), key=lambda each: each[1])
    unknown = seconds_text(unknown_s)
    is_large = unknown_s > max(known_s, _GRAVE * length_s)
    if known_s < (_WORTH_A_NOTE if is_large else _NEGLIGIBLE) * length_s:
        return f"why it was idle for {unknown} is unknown" if is_large else ""
    said = _REASONS[most][1].format(seconds_text(known_s))
    return f"{said}, {unknown} idle for unknown reasons" if is_large else said


def _mostly(rank: RankTrace) -> str:
    if not rank.kernels:
        return ", only with copies"
    most, what = _by_kind(rank.kernels)[0], "{} kernels"
    if most.kind == "other":
        most, what = _by_short_name(rank.kernels)[0], "{}"
    all_s = sum(each.total_s for each in rank.kernels) or 1.0
    of_all = share_text(most.total_s / all_s)
    return f", mostly {what.format(kernel_text(most.name))} ({of_all})"


# ------------------------------------------------------------------------ the screen


def parts(report: TraceReport, rank: RankTrace) -> Iterator[Part]:
    """Who was busy when, what took the time, what to do; all else is folded."""
    notes = list(_notes(rank))
    if rank.lanes:
        yield _picture(rank)
    if len(notes) < len(_ROWS):
        yield from _in_sight(rank, _ROWS[len(notes)])
    yield from notes
    if rank.kernels:
        yield Details("Kernels by name and kind", tuple(_kernels(rank)), "kernels")
    if rank.length_s:
        yield Details("Why the GPU was idle", tuple(_idle(rank)), "idle")
    yield how(report, _facts(rank))


def _in_sight(rank: RankTrace, most: int) -> Iterator[Table]:
    """What has to change: the host's work where it is late, else the kernels."""
    idle = rank.idle
    if idle.host_late_s > _GRAVE * rank.length_s and idle.host_was_in[1:]:
        yield _host_table(idle).beginning(most)
    elif rank.kernels:
        rows = _by_short_name(rank.kernels)
        properties = (
            Property(Column("Kernel"), lambda each: kernel_text(each.name)),
            Property(Column("Kind"), lambda each: shortened(each.kind, _LONGEST_KIND)),
            *_sums(rows),
        )
        caption = "What took most of the GPU's time"
        yield Table.of(caption, properties, rows[:most], len(rows))


def _host_table(idle: Idle) -> Table:
    properties = (
        Property(
            Column("The host was in"), lambda each: shortened(host_name(each[0]), 48)
        ),
        times("Late", lambda each: each[1]),
        _of_all("Of it", lambda each: each[1], idle.host_late_s),
    )
    caption = "Where the host was while it was late"
    return Table.of(caption, properties, idle.host_was_in)


def _picture(rank: RankTrace) -> Picture:
    """The host and the busiest streams, from the first device work to the last."""
    zero_s, end_s = 0.0, rank.length_s
    if not end_s:
        spans = [span for _, its in rank.lanes for span in its]
        zero_s = min((span.start_s for span in spans), default=0.0)
        end_s = max((span.end_s for span in spans), default=0.0)

    def drawn(name: str, its: Iterable[Piece[str]]) -> SeenLane:
        spans = (
            Span(
                max(each.start_s, zero_s) - zero_s,
                min(each.end_s, end_s) - zero_s,
                kernel_name(each.name),
                each.kind,
            )
            for each in its
            if each.start_s < end_s and each.end_s > zero_s
        )
        return SeenLane(name, tuple(spans))

    lanes = tuple(starmap(drawn, rank.lanes))
    return Picture("", lanes, ORDER, Span(0.0, end_s - zero_s))


# ------------------------------------------------------------------------ what to do

_STACKS = "`profile(with_stack=True)` records the lines that it was in"
_ADVICE = (  # what to do where the host was in something that has such a name
    (
        "DataLoader|data_?load|fetch|batch$",
        "`%pin_loader LOADER` finds num_workers and pin_memory for it",
    ),
    (
        r"""item$|_local_scalar_dense|Synchronize|nonzero|aten::to$|_to_copy
        |aten::copy_|MemcpyAsync|aten::unique|masked_select""",
        "`%%cuda_sync_time --syncs` names the lines that wait, such as .item()",
    ),
    (
        "Optimizer|zero_grad",
        "`fused=True` lets the optimizer launch one kernel for many parameters",
    ),
    ("^Compiled", "`torch.compile(mode='reduce-overhead')` adds CUDA graphs"),
    (
        "checkpoint|save|evaluat|valid",
        "save and evaluate less often, or in a thread of their own",
    ),
)


def _notes(rank: RankTrace) -> Iterator[Note]:
    """All there is to say, the dearest first."""
    if rank.length_s:
        weighed = sorted(_weighed(rank), key=lambda each: -each[0])
        for weight, text, hint in weighed:
            yield Note("warning" if weight >= _GRAVE else "note", text, hint)
    elif rank.launches:
        # The profiler names the GPU of the machine in each file, also where it has
        # recorded the host alone: only a call of CUDA's tells that it has listened.
        said = f"launches were recorded ({rank.launches:,}), but not their work"
        hint = "was CUDA among the activities? then another profiler holds the GPU"
        yield Note("warning", said, hint)
    elif rank.launches == 0:
        said = "the GPU was given nothing to do meanwhile"
        yield Note("warning", said, "profile a stretch of code that works on the GPU")
    else:
        said = "the GPU was given nothing to do, or was not recorded"
        alone = "after one of the CPU alone, torch records no GPU until a restart"
        hint = f"activities=[CPU, CUDA] from the first profile on: {alone}"
        yield Note("warning", said, hint)
    if rank.file.unknown:
        kinds = shortened(", ".join(kind for kind, _ in rank.file.unknown), 60)
        count = sum(count for _, count in rank.file.unknown)
        text = f"{count:,} entries ({kinds}) are of kinds unknown here"
        yield Note("note", text)


def _weighed(rank: RankTrace) -> Iterator[tuple[float, str, str]]:
    """What held it up: which share of the time, how it is said, and what to do."""
    length_s, exposed_s, idle = rank.length_s, rank.exposed_s, rank.idle
    if exposed_s >= _WORTH_A_NOTE * length_s:
        both_s = seconds_text(exposed_s), seconds_text(rank.communication_s)
        text = f"{range_text(*both_s, ' of ')} of communication was not hidden"
        hint = "open the files of all ranks: they tell who waited for whom"
        yield exposed_s / length_s, text, hint
    if idle.host_late_s >= _WORTH_A_NOTE * length_s:
        yield idle.host_late_s / length_s, *_late(rank, idle)
    for field, (_, said, least, hint) in list(_REASONS.items())[1:]:
        if (seconds := getattr(idle, field)) >= least * length_s:
            yield seconds / length_s, said.format(seconds_text(seconds)), hint


def _late(rank: RankTrace, idle: Idle) -> tuple[str, str]:
    """What the host was in while it was late, and what to do about that."""
    if not idle.host_was_in:
        return f"the host was late for {seconds_text(idle.host_late_s)}", _STACKS
    was_in, seconds = idle.host_was_in[0]
    name = host_name(was_in)
    of_it = share_text(min(seconds / idle.host_late_s, 1.0))
    where = shortened(name, _LONGEST_WHERE)
    text = f"while it was late, the host was in {where} ({of_it})"
    if not was_in:
        return text, _STACKS
    for pattern, hint in _ADVICE:
        if re.search(pattern, name, re.IGNORECASE | re.VERBOSE):
            return text, hint
    if seconds / (rank.launches or 1) > _LONG_S:
        hint = "the first calls load kernels: `schedule(wait=1, warmup=1)` skips them"
        return text, hint
    return text, "try `torch.compile` or CUDA graphs: fewer launches"


# ----------------------------------------------------------------------------- folded


def _kernels(rank: RankTrace) -> Iterator[Table]:
    """By what they work out, by what for, and by their full names."""
    sums = _sums(rank.kernels)
    kinds = (Property(Column("Kind"), lambda each: each.kind), *sums)
    yield Table.of("What kernels worked out", kinds, _by_kind(rank.kernels))
    if rank.phases:
        phases = (
            Property(Column("For"), lambda each: each[0]),
            times("Time", lambda each: each[1]),
            _of_all("Of all", lambda each: each[1], sum(s for _, s in rank.phases)),
        )
        caption = "By phase; of input, how long the host waited"
        yield Table.of(caption, phases, rank.phases)
    name = Property(Column("Kernel"), lambda each: shortened(each.name, _LONGEST_FULL))
    yield Table.of("By their full names", (name, *sums[:2]), rank.kernels)


def _idle(rank: RankTrace) -> Iterator[Part]:
    reasons = (
        (name, _of_length(rank, getattr(rank.idle, field)))
        for field, (name, *_) in _REASONS.items()
    )
    yield Grid("", tuple(reasons))
    if rank.idle.host_was_in:
        yield _host_table(rank.idle)
    yield Paragraph(_IDLE)


def _facts(rank: RankTrace) -> Iterator[tuple[str, Cell]]:
    for name, seconds in (
        ("computing", rank.compute_s),
        ("communicating", rank.communication_s),
        ("of that, hidden", rank.hidden_communication_s),
        ("copies and fills", rank.copy_s),
        ("idle", rank.idle_s),
    ):
        if seconds:
            yield name, _of_length(rank, seconds)
    if rank.launches:
        yield "launches", f"{rank.launches:,}"


def _of_length(rank: RankTrace, seconds: float) -> str:
    of_all = share_text(seconds / rank.length_s)
    return f"{seconds_text(seconds)}, {of_all} of the time"


# --------------------------------------------------------------- kernels put together


def _by_short_name(kernels: Iterable[KernelSum]) -> list[KernelSum]:
    """However many types and shapes each was made for; the longest first."""
    return _together(kernels, lambda each: (kernel_name(each.name), each.kind))


def _by_kind(kernels: Iterable[KernelSum]) -> list[KernelSum]:
    """What the kernels work out; the longest first."""
    return _together(kernels, lambda each: (each.kind, each.kind))


def _together(
    kernels: Iterable[KernelSum], key: Callable[[KernelSum], tuple[str, str]]
) -> list[KernelSum]:
    alike: defaultdict[tuple[str, str], list[KernelSum]] = defaultdict(list)
    for each in kernels:
        alike[key(each)].append(each)
    sums = (
        KernelSum(*names, sum(e.count for e in its), sum(e.total_s for e in its))
        for names, its in alike.items()
    )
    return sorted(sums, key=lambda each: -each.total_s)


def _sums(kernels: Iterable[KernelSum]) -> tuple[Property, ...]:
    """The columns that tables of kernels have in common."""
    return (
        Property(Column("Count", number=True), lambda each: f"{each.count:,}"),
        times("Total", lambda each: each.total_s),
        _of_all("Of all", lambda each: each.total_s, sum(e.total_s for e in kernels)),
    )


def _of_all(heading: str, of: Callable[[Any], float], whole_s: float) -> Property:
    """A column of short bars with their shares."""

    def meter(each: Any) -> Meter:
        its = of(each) / (whole_s or 1.0)
        return Meter(its, share_text(its), is_short=True)

    return Property(Column(heading), meter)


# --------------------------------------------------- what other answers of traces share


def times(heading: str, of: Callable[[Any], float]) -> Property:
    """A column of times."""
    return Property(Column(heading, number=True), lambda each: seconds_text(of(each)))


def host_name(name: str) -> str:
    """What the host was in, in the words of its user.

    >>> host_name("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    'the DataLoader'
    >>> host_name("autograd::engine::evaluate_function: AddmmBackward0")
    'AddmmBackward0'
    >>> host_name("## forward ##"), host_name("")
    ('forward', 'Python, between operators')
    """
    if not name:
        return "Python, between operators"
    if name.startswith("enumerate(DataLoader)"):
        return "the DataLoader"
    name = name.removeprefix(_NODE).strip("# ")
    return name.removeprefix("torch::autograd::") or UNKNOWN


def kernel_text(name: str, most: int = 30) -> str:
    """A name without its middle: kernels of a library begin alike, and many end alike.

    >>> kernel_text("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1")
    'cutlass_80_tensoro...nt_align1'
    """
    if len(name) <= most:
        return name
    end = most // 3 - 1
    return f"{name[: most - end - 3]}...{name[-end:]}"


def how(
    report: TraceReport, facts: Iterable[tuple[str, Cell]], *meanings: str
) -> Details:
    """How the figures came about: of what device, from which files, in what sense."""
    devices = dict.fromkeys(each.device_name or UNKNOWN for each in report.ranks)
    files = [*report.left_out, *(each.file for each in report.ranks)]
    rows = [
        (
            shortened(each.name, _LONGEST_FILE),
            each.missing or f"{bytes_text(each.nbytes)}, {each.events:,} entries",
        )
        for each in files[:_MOST_FILES]
    ]
    if files[_MOST_FILES:]:
        rows.append(("and", f"{len(files) - _MOST_FILES:,} more files"))
    known = (
        ("device", listed(tuple(devices), ", ", 4)),
        *facts,
        ("recorded by", "torch's profiler; read from its file, nothing was run"),
        ("read in", seconds_text(report.read_s)),
    )
    said = Paragraph(" ".join((*meanings, _BUSY)))
    return how_measured(Grid("", (*known, *rows)), said)
