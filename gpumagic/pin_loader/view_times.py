"""Draws how long things take: both loops, the bound, each part, other workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Bar,
    BarPair,
    Column,
    Details,
    Lane,
    Meter,
    Note,
    Paragraph,
    Span,
    Stack,
    Stacks,
    Table,
    Timeline,
)
from gpumagic.drawing.palette import BLUE, VERMILLION
from gpumagic.pin_loader.report import Pinned, Remedy, Stopped, Way
from gpumagic.pin_loader.view_words import (
    NOT_MEASURED,
    device_text,
    median_of,
    rate_of,
    rate_text,
    three_digits,
    time_text,
    times_text,
)
from gpumagic.report import robust
from gpumagic.report.robust import Verdict
from gpumagic.report.units import UNKNOWN, bytes_text, count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.report import (
        Bound,
        CopyMode,
        EndToEnd,
        FourSteps,
        Gain,
        Link,
        LoaderReport,
        Loading,
        Rates,
        Samples,
        Setting,
        Step,
        StepSpan,
        WorkerSearch,
        WorkerTrial,
    )
    from gpumagic.pin_loader.report import Part as StepPart
    from gpumagic.report.robust import Comparison

WAITING, COPYING, COMPUTE = "waiting for data", "copying, not hidden", "compute"
REST, WHOLE = "waiting or copying", "all of it"
_SIZES: tuple[tuple[str, Callable[[Split], float | None]], ...] = (
    (WAITING, lambda split: split.waiting_s),
    (COPYING, lambda split: split.copying_s),
    (COMPUTE, lambda split: split.compute_s),
    (REST, lambda split: split.rest_s),
    (WHOLE, lambda split: split.whole_s if split.compute_s is None else None),
)
_MODELLED = (
    "Waits for data are worked out from how fast the loader is on this machine; copies "
    "to the device and compute are those of the model, as such a device has a clock of "
    "its own."
)
_MOSTLY = 0.5
_HARDLY_ANY = 0.05
_SHORT_S = 100e-6  # about what the host takes to launch the beginning of a step
_MOST_TIMES = 100
_INSTANT = (
    "That of workers is for so many that loading takes no time, which `--workers auto` "
    "finds out."
)
_SYNTHETIC = (
    "Compute is synthetic: it is as long as the slowest other part, for which feeding "
    "gains the most; your own step gains this or less (`--step FN` measures it)."
)
_LANES = ("load", "copy", "compute")
_BOTH_TIMES = (
    "Host held: until the call returned. Done after: from before the copy to its end, "
    "by events on the device; from pageable memory, the host's part is in it."
)
_BOTH_RATES = (
    " The ceiling is the rate of one large pinned copy, theory that of the link's "
    "standard."
)


def end_to_end_parts(report: LoaderReport) -> Iterator[Part]:
    """The bars, the verdict in figures, and where the copying went."""
    found = report.end_to_end
    if found is None:
        return
    splits = splits_of(report, found)
    if splits is not None:
        yield _loops_bars(splits, found)
    if found.result.verdict in (Verdict.SAME, Verdict.CANNOT_TELL):
        yield Note("note", _no_difference(found.result))
    yield Paragraph("\n".join(_loops_sentences(found)))
    rows = tuple(_copying_rows(found))
    if rows:
        heads = (
            Column(""),
            Column("Before", number=True),
            Column("After", number=True),
        )
        yield Table("Copying to the device", heads, rows)
    if said := why_nothing_is_hidden(report, found):
        yield Paragraph(said)


def _loops_bars(splits: tuple[Split, Split], found: EndToEnd) -> Stacks:
    stacks = tuple(
        Stack(label, tuple(_pieces(split)), time_text(split.whole_s))
        for label, split in zip(("before", "after"), splits, strict=True)
    )
    apart = all(split.compute_s is not None for split in splits)
    how = "worked out" if found.modelled else "measured"
    if apart:
        how = f"{how}; how it divides is estimated"
    legend = tuple((kind, _sizes_text(splits, of)) for kind, of in _SIZES)
    return Stacks(f"A step, median ({how})", stacks, legend)


def _pieces(split: Split) -> Iterator[tuple[str, float]]:
    for kind, of in _SIZES:
        size = of(split)
        if size:
            yield kind, size


def _sizes_text(
    splits: tuple[Split, Split], of: Callable[[Split], float | None]
) -> str:
    """The piece before and after."""
    sizes = zip(("before", "after"), map(of, splits), strict=True)
    return ", ".join(
        f"{time_text(size)} {when}" for when, size in sizes if size is not None
    )


def _no_difference(result: Comparison) -> str:
    if result.verdict is Verdict.SAME:
        return "no measurable difference: old and new take the same time, within 1 %"
    if result.interval is None:
        pairs = count_text(len(result.pairs), "pair")
        return f"too few runs that differ too much to tell: {pairs}"
    more = result.more_pairs
    said = "no measurable difference: the samples cannot tell which one is faster"
    if more is None:
        return said
    return f"{said}; about {count_text(more, 'more pair')} might"


def _loops_sentences(found: EndToEnd) -> Iterator[str]:
    result = found.result
    pairs = count_text(len(result.pairs), "pair")
    steps = count_text(found.batches, "step")
    said = f"After, a step takes {_ratio(result.ratio)} of what it took before"
    if found.modelled:
        yield f"{said}, in the model: loading always takes its median there."
    else:
        yield f"{said}{_interval(result)}: {pairs} of {steps} each, in turn."
    yield f"Before: {found.base}"
    yield f"After: {found.newer}"
    if found.modelled:
        yield _MODELLED


def _interval(result: Comparison) -> str:
    if result.interval is None:
        return " (too few pairs to say how sure that is)"
    low, high = map(_ratio, result.interval[:2])
    return f" ({low} to {high} with 95 % confidence)"


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 10 else three_digits(ratio)


def _copying_rows(found: EndToEnd) -> Iterator[tuple[Cell, ...]]:
    if found.overlap != (None, None):
        yield "hidden behind kernels, measured in a trace", *map(_share, found.overlap)
    if None in found.overlap and found.estimated_overlap != (None, None):
        shares = map(_share, found.estimated_overlap)
        yield "hidden, estimated from the times", *shares
    if found.pageable_share != (None, None):
        yield "from pageable memory", *map(_share, found.pageable_share)


def _share(share: float | None) -> str:
    return NOT_MEASURED if share is None else share_text(share)


class Split(NamedTuple):
    """A step and its pieces; a piece that cannot be told apart is None.

    `rest_s` is what is not compute, where waiting and copying cannot be told apart.
    """

    whole_s: float
    compute_s: float | None = None
    copying_s: float | None = None
    waiting_s: float | None = None

    @property
    def rest_s(self) -> float | None:
        """What remains beside the pieces that are known."""
        if self.compute_s is None or self.copying_s is not None:
            return None
        return self.whole_s - self.compute_s


def splits_of(report: LoaderReport, found: EndToEnd) -> tuple[Split, Split] | None:
    """The step before and after; None where no pair was measured."""
    if not found.result.pairs:
        return None
    before, after = (
        robust.median(seconds) for seconds in zip(*found.result.pairs, strict=True)
    )
    step = report.rates.step
    compute_s = None if step is None else median_of(step.samples)
    return (
        _split(before, compute_s, _exposed(report, found, 0)),
        _split(after, compute_s, _exposed(report, found, 1)),
    )


def _split(whole_s: float, compute_s: float | None, exposed_s: float | None) -> Split:
    """Compute first, then copying, as far as there is room; waiting is the rest."""
    if compute_s is None:
        return Split(whole_s)
    compute_s = min(compute_s, whole_s)
    if exposed_s is None:
        return Split(whole_s, compute_s)
    copying_s = min(exposed_s, whole_s - compute_s)
    waiting_s = max(whole_s - compute_s - copying_s, 0.0)
    return Split(whole_s, compute_s, copying_s, waiting_s)


def _exposed(report: LoaderReport, found: EndToEnd, which: int) -> float | None:
    """How much of the copying to the device nothing hides, old (0) or new (1)."""
    overlap = found.overlap[which]
    if overlap is None:
        overlap = found.estimated_overlap[which]
    pinned = _is_pinned(report, found, which)
    if overlap is None or pinned is None:
        return None
    mode = report.rates.copy(pinned=pinned, blocking=which == 0)
    if mode is None:
        return None
    taken_s = median_of(mode.device) or median_of(mode.host)
    return None if taken_s is None else taken_s * (1 - min(max(overlap, 0.0), 1.0))


def _is_pinned(report: LoaderReport, found: EndToEnd, which: int) -> bool | None:
    """Whether most bytes come from pinned memory: as traced, else as set."""
    share = found.pageable_share[which]
    if share is not None:
        return share < _MOSTLY
    built, anatomy = report.rebuilding, report.anatomy
    if which == 1 and built is not None and built.way in (Way.REBUILT, Way.FLAG_SET):
        return True
    if anatomy is None:
        return None
    return anatomy.bytes_that_are(Pinned.PAGEABLE) < _MOSTLY * anatomy.tensor_bytes


def why_nothing_is_hidden(report: LoaderReport, found: EndToEnd) -> str:
    """The reason in a sentence or two; "" where copies were hidden, or not traced."""
    hidden = found.overlap[1]
    if hidden is None or hidden >= _HARDLY_ANY:
        return ""
    built = report.rebuilding
    if built is not None and not built.depth:
        return "Nothing is copied ahead, so that no kernel runs beside a copy."
    which = "Hardly a kernel" if hidden else "No kernel"
    said = (
        f"{which} was running while batches were copied ahead: the step before was "
        "done, and the next one was not launched yet."
    )
    return f"{said} {_what_delays(report, found)}".rstrip()


def _what_delays(report: LoaderReport, found: EndToEnd) -> str:
    pageable = found.pageable_share[1]
    if pageable is not None and pageable >= _MOSTLY:
        return (
            "A copy from pageable memory holds the host, which launches nothing "
            "meanwhile."
        )
    mode = report.rates.copy(pinned=True, blocking=False)
    took_s = None if mode is None else median_of(mode.device)
    if took_s is None or took_s > _SHORT_S:
        return ""
    return (
        f"A copy takes {time_text(took_s)} here, and is over before the host has "
        "launched the first kernel of a step."
    )


def bound_parts(bound: Bound) -> Iterator[Part]:
    """A step beside its parts, then the remedies."""
    yield _bound_bars(bound)
    if bound.gains:
        yield _gains(bound)
    yield Paragraph(" ".join(_bound_sentences(bound)))


def _bound_bars(bound: Bound) -> BarPair:
    how = "measured" if bound.now_measured else "estimated"
    now = Bar(
        "a step as it is", bound.now_s, f"{time_text(bound.now_s)}, {how}", VERMILLION
    )
    parts = (
        Bar(part.value, seconds, time_text(seconds) + _mark(bound, part), BLUE)
        for part, seconds in bound.parts
    )
    return BarPair("A step, and each part of it on its own", (now, *parts))


def _mark(bound: Bound, part: StepPart) -> str:
    return ", slowest" if part is bound.binding else ""


def _gains(bound: Bound) -> Table:
    return Table(
        "What each remedy can give at most",
        (
            Column("Remedy"),
            Column("A step, at least", number=True),
            Column("At most", number=True),
        ),
        tuple(_gain_row(bound, each) for each in bound.gains),
    )


def _gain_row(bound: Bound, gain: Gain) -> tuple[Cell, ...]:
    times = bound.now_s / gain.step_s if gain.step_s > 0 else None
    if times is not None and times > _MOST_TIMES:
        return gain.remedy.value, time_text(gain.step_s), f"over {_MOST_TIMES}x"
    return gain.remedy.value, time_text(gain.step_s), times_text(times)


def _bound_sentences(bound: Bound) -> Iterator[str]:
    instant = any(_is_instant(bound, each) for each in bound.gains)
    loading = "as loading is now, " if instant else ""
    yield (
        f"No step can be shorter than its slowest part: {bound.binding.value}, "
        f"{time_text(bound.best_s)}, so that {loading}the most is "
        f"{times_text(bound.most)}."
    )
    if instant:
        yield _INSTANT
    if not bound.now_measured:
        yield "The step as it is was not measured, but added up from the parts."
    if bound.synthetic_step:
        yield _SYNTHETIC


def _is_instant(bound: Bound, gain: Gain) -> bool:
    """Whether it is better than loading, as fast as it was measured, allows for."""
    return gain.remedy is Remedy.WORKERS and gain.step_s < bound.best_s


def steps_parts(four: FourSteps) -> Iterator[Part]:
    """Two timelines; the longer one gives both their scale."""
    every = (*four.before, *four.after)
    if not every:
        return
    window = Span(
        min(span.start_s for span in every), max(span.end_s for span in every)
    )
    steps = count_text(len({span.step for span in every}), "step")
    before = f"Before: {steps}, worked out from the rates; launching is left out"
    yield _timeline(before, four.before, window)
    yield _timeline("After, with a prefetcher, on the same scale", four.after, window)


def _timeline(caption: str, spans: Sequence[StepSpan], window: Span) -> Timeline:
    lanes = dict.fromkeys((*_LANES, *(span.lane for span in spans)))
    numbers = {
        step: number
        for number, step in enumerate(sorted({span.step for span in spans}), start=1)
    }
    return Timeline(
        caption,
        tuple(Lane(lane, tuple(_its(lane, spans, numbers))) for lane in lanes),
        kinds=_LANES,
        window=window,
    )


def _its(
    lane: str, spans: Sequence[StepSpan], numbers: dict[int, int]
) -> Iterator[Span]:
    for span in spans:
        if span.lane == lane:
            yield Span(span.start_s, span.end_s, f"#{numbers[span.step]}", lane)


def copies_parts(rates: Rates, setting: Setting) -> Iterator[Part]:
    """The table of four ways to copy a batch to the device."""
    if rates.copies:
        yield _copies(rates, setting)
        if any(each.device is not None for each in rates.copies):
            yield Paragraph(_BOTH_TIMES + ("" if rates.link is None else _BOTH_RATES))


def each_part_parts(rates: Rates, setting: Setting) -> Iterator[Part]:
    """Each rate beside the copies to the device, in a line."""
    said = [f"{name}: {what}" for name, what in _each_part(rates, _how(setting))]
    if said:
        yield Details("How fast each part is on its own", (Paragraph("\n".join(said)),))


def ranges_parts(rates: Rates) -> Iterator[Part]:
    """Every time with its range; for those who want to know how sure it is."""
    said = [_range(what, each) for what, each in _samples(rates) if each.seconds]
    if said:
        yield Details("All times with their range", (Paragraph("\n".join(said)),))


def _copies(rates: Rates, setting: Setting) -> Table:
    size = "" if rates.nbytes is None else f" of {bytes_text(rates.nbytes)}"
    return Table(
        f"Copying a batch{size} to {device_text(setting)} ({_how(setting)})",
        (
            Column("From"),
            Column("Call"),
            Column("Host held", number=True),
            Column("Done after", number=True),
            Column("Rate", number=True),
            Column("Of the ceiling", number=True),
            Column("Of theory", number=True),
        ),
        tuple(_copy_row(each, rates) for each in rates.copies),
    )


def _how(setting: Setting) -> str:
    """How well copies to the device, and compute on it, are known."""
    return "as the model has it" if setting.label else "measured"


def _copy_row(mode: CopyMode, rates: Rates) -> tuple[Cell, ...]:
    device_s = median_of(mode.device)
    rate, link = rate_of(rates.nbytes, device_s), rates.link
    return (
        "pinned" if mode.pinned else "pageable",
        "blocking" if mode.blocking else "non_blocking",
        time_text(median_of(mode.host)),
        time_text(device_s),
        NOT_MEASURED if rate is None else rate_text(rate),
        _share_of_rate(rate, None if link is None else link.ceiling_bytes_per_s),
        _share_of_rate(rate, None if link is None else link.theory_bytes_per_s),
    )


def _share_of_rate(rate: float | None, whole: float | None) -> str:
    return share_text(rate / whole) if rate is not None and whole else UNKNOWN


def _each_part(rates: Rates, how: str) -> Iterator[tuple[str, str]]:
    if rates.load is not None:
        yield "loading", _loading(rates.load)
    if rates.pin_copy is not None:
        yield "copy into pinned memory", _host_copy(rates, rates.pin_copy, "reused")
    if rates.fresh_pin is not None:
        said = _host_copy(rates, rates.fresh_pin, "newly pinned")
        yield "the same, the first time", said
    if rates.link is not None:
        yield "link", _link(rates.link)
        yield "its ceiling", _ceiling(rates.link, how)
    if rates.step is not None:
        yield "compute", _step(rates.step, how)


def _loading(load: Loading) -> str:
    batch_s = median_of(load.between)
    rate = rate_of(load.nbytes, batch_s)
    said = [
        f"{time_text(batch_s)} a batch with {count_text(load.workers, 'worker')}",
        *(() if rate is None else (rate_text(rate),)),
        "measured on this machine",
    ]
    if load.start_s is not None:
        said.append(f"the first batch after {time_text(load.start_s)}")
    if load.ended_early:
        said.append("its epochs are short")
    return "; ".join(said)


def _host_copy(rates: Rates, samples: Samples, memory: str) -> str:
    median_s = median_of(samples)
    rate = rate_of(rates.nbytes, median_s)
    said = (
        time_text(median_s)
        if rate is None
        else f"{time_text(median_s)}; {rate_text(rate)}"
    )
    return f"{said}; one thread, {memory} memory, measured"


def _link(link: Link) -> str:
    """What the link is, and what it could be."""
    said = [link.name or "of unknown kind"]
    now, most = (link.generation, link.width), (link.most_generation, link.most_width)
    if None not in most and now != most and None not in now:
        said.append(f"the device could have Gen{most[0]} x{most[1]}")
    if link.theory_bytes_per_s is not None:
        said.append(f"{rate_text(link.theory_bytes_per_s)} one way in theory")
    if link.numa_node is not None:
        said.append(f"at memory node {link.numa_node}")
    return "; ".join(said)


def _ceiling(link: Link, how: str) -> str:
    if link.ceiling_bytes_per_s is None:
        return NOT_MEASURED
    said = f"{rate_text(link.ceiling_bytes_per_s)} in one large pinned copy, {how}"
    if link.theory_bytes_per_s:
        share = share_text(link.ceiling_bytes_per_s / link.theory_bytes_per_s)
        return f"{said}; {share} of theory"
    return said


def _step(step: Step, how: str) -> str:
    """How long compute takes, and whether it is the user's."""
    said = f"{time_text(median_of(step.samples))} a batch in {step.name}"
    return f"{said}, synthetic" if step.synthetic else f"{said}, {how}"


def _samples(rates: Rates) -> Iterator[tuple[str, Samples]]:
    if rates.load is not None:
        yield "loading", rates.load.between
    if rates.pin_copy is not None:
        yield "copy into pinned memory", rates.pin_copy
    if rates.fresh_pin is not None:
        yield "copy into newly pinned memory", rates.fresh_pin
    for mode in rates.copies:
        way = (
            f"{'pinned' if mode.pinned else 'pageable'}, "
            f"{'blocking' if mode.blocking else 'non_blocking'}"
        )
        yield f"{way}, host held", mode.host
        if mode.device is not None:
            yield f"{way}, done after", mode.device
    if rates.step is not None:
        yield "compute", rates.step.samples


def _range(what: str, samples: Samples) -> str:
    shortest, longest = map(time_text, samples.range_s)
    spread = "" if shortest == longest else f", from {shortest} to {longest}"
    count = count_text(len(samples.seconds), "sample")
    return f"{what}: {time_text(samples.median_s)}{spread} ({count})"


def worker_parts(search: WorkerSearch) -> Iterator[Part]:
    """The curve as a table of bars; then the choice, and what failed."""
    if search.stopped is Stopped.NOT_ASKED and not search.trials:
        return
    if search.trials:
        yield _worker_table(search)
    if search.problem is not None:
        yield Note("warning", search.problem, search.hint or "")
    for trial in search.trials:
        if trial.problem is not None:
            workers = count_text(trial.workers, "worker")
            yield Note("warning", f"with {workers}: {trial.problem}")
    yield Paragraph(" ".join(_worker_sentences(search)))


def _worker_table(search: WorkerSearch) -> Table:
    speeds = [_speed(trial) for trial in search.trials]
    fastest = max((speed for speed in speeds if speed is not None), default=None)
    rows = (
        _worker_row(trial, speed, fastest, chosen=trial.workers == search.chosen)
        for trial, speed in zip(search.trials, speeds, strict=True)
    )
    return Table(
        "Loading by number of workers (measured)",
        (
            Column("Workers"),
            Column("Batches a second"),
            Column("A batch", number=True),
            Column("First batch after", number=True),
            Column("Memory of their own", number=True),
        ),
        tuple(rows),
    )


def _worker_row(
    trial: WorkerTrial, speed: float | None, fastest: float | None, *, chosen: bool
) -> tuple[Cell, ...]:
    name = f"{trial.workers} (chosen)" if chosen else f"{trial.workers}"
    memory = None if trial.private_bytes is None else bytes_text(trial.private_bytes)
    if trial.workers == 0 and memory is None:
        memory = "-"
    if trial.loading is None:
        return name, "failed", "-", "-", memory
    share = speed / fastest if speed is not None and fastest else None
    return (
        name,
        Meter(share, "" if speed is None else three_digits(speed)),
        time_text(median_of(trial.loading.between)),
        time_text(trial.loading.start_s),
        memory,
    )


def _speed(trial: WorkerTrial) -> float | None:
    batch_s = None if trial.loading is None else median_of(trial.loading.between)
    return 1 / batch_s if batch_s else None


def _worker_sentences(search: WorkerSearch) -> Iterator[str]:
    if search.chosen is None:
        yield "No number of workers was chosen."
    else:
        workers = count_text(search.chosen, "worker")
        yield f"Chosen: {workers}, the fewest within 5 % of the fastest."
    yield f"No more were tried: {search.stopped.value}."
    if search.most is not None:
        yield f"This process may use {count_text(search.most, 'processor')}."
