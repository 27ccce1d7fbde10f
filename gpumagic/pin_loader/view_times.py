"""Draws how long things take: a step before and after, remedies, each part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Lane,
    Paragraph,
    Span,
    Stack,
    Stacks,
    Table,
    Timeline,
)
from gpumagic.pin_loader.report import Part as StepPart
from gpumagic.pin_loader.report import Pinned, Remedy, Way
from gpumagic.pin_loader.view_loader import (
    device_text,
    loader_text,
    median_of,
    new_text,
)
from gpumagic.report import robust
from gpumagic.report.robust import Verdict, inverse
from gpumagic.report.units import (
    NOT_MEASURED,
    UNKNOWN,
    bytes_text,
    count_text,
    rate_text,
    share_text,
    three_digits,
    time_text,
    times_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    )
    from gpumagic.report.robust import Comparison

WAITS, COPY, KERNEL, WHOLE = "host waits", "copy", "kernel", "a step"
_KINDS = {StepPart.LOAD: WAITS, StepPart.LINK: COPY, StepPart.STEP: KERNEL}
_WAITS_FOR, _REST_FOR = "for batches", "for batches or copies"
_LONGEST_LABEL = 20
_MOSTLY = 0.5
_HARDLY_ANY = 0.05
_SHORT_S = 100e-6  # about what the host takes to launch the beginning of a step
_MOST_TIMES = 100
_NO_HELP = 1.01
_NOTHING = 1e-6
_LANES = {"load": "host code", "copy": "copy", "compute": "kernel"}
_WHAT_TIMES_ARE = """\
Host held: until the call returned.
Done after: from before the copy to its end, by events on the device.
From pageable memory the host's own part is in it."""
_WHAT_RATES_ARE = """
The ceiling is the rate of one large pinned copy.
Theory is what the link's standard allows."""


# ----------------------------------------------------------------- the picture


def step_parts(report: LoaderReport) -> Iterator[Part]:
    """A step before and after, in one picture: as measured, else as worked out."""
    found, bound = report.end_to_end, report.bound
    splits = None if found is None else splits_of(report, found)
    if found is not None and splits is not None:
        yield _measured_step(report, splits, found)
    elif bound is not None and any(seconds for _, seconds in bound.exposed):
        yield _estimated_step(bound)


def _measured_step(
    report: LoaderReport, splits: tuple[Split, Split], found: EndToEnd
) -> Stacks:
    stacks = tuple(
        Stack(label, tuple(split.pieces()), time_text(split.whole_s))
        for label, split in zip(_loaders(report), splits, strict=True)
    )
    how = "worked out" if found.modelled else "measured"
    if all(split.compute_s is not None for split in splits):
        how = f"{how}; how it divides is estimated"
    known = all(split.rest_s is None for split in splits)
    synthetic = report.rates.step is not None and report.rates.step.synthetic
    said = {
        WAITS: _WAITS_FOR if known else _REST_FOR,
        COPY: "not hidden",
        KERNEL: "a stand-in for your step" if synthetic else "",
        WHOLE: "",
    }
    return _stacks(f"A step, median ({how})", stacks, said)


def _loaders(report: LoaderReport) -> tuple[str, str]:
    """What both are called; numbered by place where they have the same name."""
    names = loader_text(report.loader), new_text(report)
    if names[0] == names[1] or max(map(len, names)) > _LONGEST_LABEL:
        return "now", "then"
    return names


def _estimated_step(bound: Bound) -> Stacks:
    now = _estimated("now", bound.exposed)
    best = bound.best
    stacks = [now]
    if best is not None and best.exposed:
        stacks.append(_estimated(_remedy_text(best, bound), best.exposed))
    own = " without your compute" if bound.synthetic_step else ""
    said = {WAITS: _WAITS_FOR, COPY: "not hidden", KERNEL: ""}
    return _stacks(f"A step{own}, estimated from its parts", tuple(stacks), said)


def _estimated(label: str, exposed: tuple[tuple[StepPart, float], ...]) -> Stack:
    pieces = tuple((_KINDS.get(part, WAITS), seconds) for part, seconds in exposed)
    return Stack(label, pieces, time_text(sum(seconds for _, seconds in exposed)))


def _stacks(caption: str, stacks: tuple[Stack, ...], said: dict[str, str]) -> Stacks:
    """With what each piece comes to in the legend."""
    legend = []
    for kind, what in said.items():
        sizes = ", ".join(_sizes(kind, stacks))
        legend.append((kind, f"{what}: {sizes}" if what and sizes else what or sizes))
    return Stacks(caption, stacks, tuple(legend))


def _sizes(kind: str, stacks: tuple[Stack, ...]) -> Iterator[str]:
    if not any(size for stack in stacks for its, size in stack.pieces if its == kind):
        return
    for stack, when in zip(stacks, ("now", "then"), strict=False):
        sizes = [size for its, size in stack.pieces if its == kind]
        if sizes:
            yield f"{time_text(sum(sizes))} {when}"


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

    def pieces(self) -> Iterator[tuple[str, float]]:
        """Each kind with its size, as far as they are known."""
        if self.compute_s is None:
            yield WHOLE, self.whole_s
            return
        waits_s = self.rest_s if self.waiting_s is None else self.waiting_s
        for kind, size in ((WAITS, waits_s), (COPY, self.copying_s)):
            # What is left by subtraction may be a rounding error.
            yield kind, size if size and size > _NOTHING * self.whole_s else 0.0
        yield KERNEL, self.compute_s


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


# ---------------------------------------------------------------- the remedies


def remedy_parts(report: LoaderReport) -> Iterator[Part]:
    """What each remedy can give at most, the best first; what was made, measured."""
    bound = report.bound
    if bound is None or not bound.gains:
        return
    done = _done(report)
    heads = [Column("Remedy")]
    if not bound.synthetic_step:
        heads.append(Column("A step, at least", number=True))
    heads.append(Column("At most", number=True))
    if done is not None:
        heads.append(Column("Measured", number=True))
    told = [each for each in bound.gains if not _is_no_help(each, bound, done)]
    ordered = sorted(told, key=lambda each: -(bound.times(each) or 0.0))
    rows = tuple(tuple(_remedy_row(bound, each, done)) for each in ordered)
    yield Table("What each remedy could give", tuple(heads), rows, name="remedies")


def _remedy_text(gain: Gain, bound: Bound) -> str:
    """A remedy as one would set it."""
    workers = "more workers"
    if gain.workers is not None:
        workers = f"num_workers={gain.workers}"
    pinned = all(each.remedy is not Remedy.PIN for each in bound.gains)
    ahead = "copied ahead" if pinned else "pinned, copied ahead"
    match gain.remedy:
        case Remedy.PIN:
            return "pin_memory=True"
        case Remedy.PREFETCH:
            return ahead
        case Remedy.WORKERS:
            return workers
        case Remedy.EVERYTHING:
            return f"{workers}, {ahead}"


def _is_no_help(gain: Gain, bound: Bound, done: tuple[Remedy, str] | None) -> bool:
    """Whether it is more workers that give nothing beside what the rest gives."""
    if done is not None and gain.remedy is done[0]:
        return False
    if gain.remedy is Remedy.WORKERS:
        return (bound.times(gain) or 0.0) < _NO_HELP
    if gain.remedy is not Remedy.EVERYTHING:
        return False
    without = (
        bound.times(each) or 0.0
        for each in bound.gains
        if each.remedy in {Remedy.PIN, Remedy.PREFETCH}
    )
    return (bound.times(gain) or 0.0) < _NO_HELP * max(without, default=0.0)


def workers_sentence(report: LoaderReport) -> str:
    """That more workers are no help, where that is so."""
    bound, now, search = report.bound, report.loader.workers, report.workers
    if bound is None:
        return ""
    if search is not None and search.trials and search.chosen == (now or 0):
        most = max(trial.workers for trial in search.trials)
        return f"More workers do not help: {_tried(most)}."
    by_remedy = {each.remedy: each for each in bound.gains}
    workers = by_remedy.get(Remedy.WORKERS)
    if workers is not None:
        if any(
            not _is_no_help(by_remedy[each], bound, None)
            for each in (Remedy.WORKERS, Remedy.EVERYTHING)
            if each in by_remedy
        ):
            return ""
        return "More workers would not help."
    if bound.most_workers is not None and (now or 0) >= bound.most_workers:
        processors = count_text(bound.most_workers, "processor")
        return f"More workers would not help: all {processors} have one."
    return ""


def _tried(most: int) -> str:
    return f"up to {most} were tried" if most > 1 else "one was tried"


def _remedy_row(
    bound: Bound, gain: Gain, done: tuple[Remedy, str] | None
) -> Iterator[Cell]:
    yield _remedy_text(gain, bound)
    if not bound.synthetic_step:
        yield time_text(gain.step_s)
    times = bound.times(gain)
    most = times is not None and times > _MOST_TIMES
    yield f"over {_MOST_TIMES}x" if most else times_text(times)
    if done is not None:
        yield done[1] if gain.remedy is done[0] else "-"


def _done(report: LoaderReport) -> tuple[Remedy, str] | None:
    """What was made, and how many times as fast it was measured to be."""
    found, built = report.end_to_end, report.rebuilding
    if found is None or built is None or found.result.verdict is Verdict.CANNOT_TELL:
        return None
    made = Remedy.PREFETCH
    if any(change.argument == "num_workers" for change in built.changes):
        made = Remedy.EVERYTHING
    return made, times_text(inverse(found.result.ratio))


# ------------------------------------------------------------------- both loops


def loop_parts(found: EndToEnd | None, report: LoaderReport) -> Iterator[Part]:
    """What ran in turn, how sure the verdict is, and where the copying went."""
    if found is None:
        return
    yield Paragraph("\n".join(_loops_lines(found)))
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


def _loops_lines(found: EndToEnd) -> Iterator[str]:
    result = found.result
    yield f"Before: {found.base}"
    yield f"After: {found.newer}"
    ratio = _ratio(result.ratio)
    if found.modelled:
        yield f"After, a step takes {ratio} of what it took before, in the model."
        return
    yield f"After, a step takes {ratio} of what it took before{_interval(result)}."
    steps = count_text(found.batches, "step")
    yield f"{count_text(len(result.pairs), 'pair')} of {steps} each, in turn."
    if result.verdict is Verdict.CANNOT_TELL:
        yield _cannot_tell(result)


def _interval(result: Comparison) -> str:
    if result.interval is None:
        return " (too few pairs to say how sure that is)"
    low, high = map(_ratio, result.interval[:2])
    return f" ({low} to {high} with 95 % confidence)" if low != high else ""


def _cannot_tell(result: Comparison) -> str:
    said = "The samples cannot tell which one is faster"
    if result.more_pairs is None:
        return f"{said}."
    return f"{said}; about {count_text(result.more_pairs, 'more pair')} might."


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 10 else three_digits(ratio, group=",")


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


# ------------------------------------------------------------------ four steps


def timeline_parts(four: FourSteps | None, bound: Bound | None) -> Iterator[Part]:
    """Both loops on one scale, one lane below the other."""
    every = () if four is None else (*four.before, *four.after)
    if four is None or not every:
        return
    gains = {} if bound is None else {gain.remedy: gain for gain in bound.gains}
    gain = gains.get(four.remedy)
    said = four.remedy.value
    if bound is not None and gain is not None:
        said = _remedy_text(gain, bound)
    lanes = (*_lanes("now", four.before), *_lanes("then", four.after))
    caption = f"Four steps under way: now, and then with {said}"
    left_out = "Worked out from the rates; launching is left out."
    if not any(span.lane == "compute" for span in four.before):
        left_out = "Worked out from the rates; launching and compute are left out."
    yield Timeline(caption, lanes, kinds=tuple(_LANES.values()))
    yield Paragraph(left_out)


def _lanes(when: str, spans: Sequence[StepSpan]) -> Iterator[Lane]:
    for lane in dict.fromkeys((*_LANES, *(span.lane for span in spans))):
        its = tuple(
            Span(span.start_s, span.end_s, f"#{span.step + 1}", _LANES.get(lane, lane))
            for span in spans
            if span.lane == lane
        )
        if its:
            yield Lane(f"{when}: {lane}", its)


# ---------------------------------------------------------------- copies, rates


def copy_parts(rates: Rates, setting: Setting) -> Iterator[Part]:
    """The table of four ways to copy a batch to the device."""
    if not rates.copies:
        return
    inside: list[Part] = [_copies(rates, setting)]
    if any(each.device is not None for each in rates.copies):
        more = "" if rates.link is None else _WHAT_RATES_ARE
        inside.append(Paragraph(_WHAT_TIMES_ARE + more))
    yield Details("Four ways to copy a batch to the device", tuple(inside), "copies")


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
    rate, link = _rate_of(rates.nbytes, device_s), rates.link
    return (
        "pinned" if mode.pinned else "pageable",
        "blocking" if mode.blocking else "non_blocking",
        time_text(median_of(mode.host)),
        time_text(device_s),
        NOT_MEASURED if rate is None else _rate_text(rate),
        _share_of_rate(rate, None if link is None else link.ceiling_bytes_per_s),
        _share_of_rate(rate, None if link is None else link.theory_bytes_per_s),
    )


def _share_of_rate(rate: float | None, whole: float | None) -> str:
    return share_text(rate / whole) if rate is not None and whole else UNKNOWN


def _rate_of(nbytes: int | None, seconds: float | None) -> float | None:
    """Bytes in a second; None where one of both is unknown or nothing."""
    if not nbytes or not seconds:
        return None
    return nbytes / seconds


def _rate_text(bytes_per_s: float) -> str:
    """As links are sold: GB/s at most."""
    return rate_text(bytes_per_s, "B/s", "G")


def rate_parts(report: LoaderReport) -> Iterator[Part]:
    """Each part on its own in a line, then every time with its range."""
    rates, bound = report.rates, report.bound
    said = [f"{name}: {what}" for name, what in _each_part(rates, _how(report.setting))]
    if bound is not None:
        said += _bound_lines(bound)
    if said:
        yield Paragraph("\n".join(said))
    ranges = [_range(what, each) for what, each in _samples(rates) if each.seconds]
    if ranges:
        inside = (Paragraph("\n".join(ranges)),)
        yield Details("All times with their range", inside)


def _bound_lines(bound: Bound) -> Iterator[str]:
    how = "measured" if bound.now_measured else "added up from the parts"
    yield f"a step as it is: {time_text(bound.now_s)}, {how}"
    binding, least = bound.binding.value, time_text(bound.best_s)
    yield f"no step is shorter than {binding}, {least}, as loading is now"
    for part, seconds in bound.parts:
        if not (bound.synthetic_step and part is StepPart.STEP):
            yield f"{part.value} in a step: {time_text(seconds)}"


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
    rate = _rate_of(load.nbytes, batch_s)
    said = [
        f"{time_text(batch_s)} a batch with {count_text(load.workers, 'worker')}",
        *(() if rate is None else (_rate_text(rate),)),
        "measured on this machine",
    ]
    if load.start_s is not None:
        said.append(f"the first batch after {time_text(load.start_s)}")
    if load.ended_early:
        said.append("its epochs are short")
    return "; ".join(said)


def _host_copy(rates: Rates, samples: Samples, memory: str) -> str:
    median_s = median_of(samples)
    rate = _rate_of(rates.nbytes, median_s)
    said = (
        time_text(median_s)
        if rate is None
        else f"{time_text(median_s)}; {_rate_text(rate)}"
    )
    return f"{said}; one thread, {memory} memory, measured"


def _link(link: Link) -> str:
    """What the link is, and what it could be."""
    said = [link.name or "of unknown kind"]
    now, most = (link.generation, link.width), (link.most_generation, link.most_width)
    if None not in most and now != most and None not in now:
        said.append(f"the device could have Gen{most[0]} x{most[1]}")
    if link.theory_bytes_per_s is not None:
        said.append(f"{_rate_text(link.theory_bytes_per_s)} one way in theory")
    if link.numa_node is not None:
        said.append(f"at memory node {link.numa_node}")
    return "; ".join(said)


def _ceiling(link: Link, how: str) -> str:
    if link.ceiling_bytes_per_s is None:
        return NOT_MEASURED
    said = f"{_rate_text(link.ceiling_bytes_per_s)} in one large pinned copy, {how}"
    if link.theory_bytes_per_s:
        share = share_text(link.ceiling_bytes_per_s / link.theory_bytes_per_s)
        return f"{said}; {share} of theory"
    return said


def _step(step: Step, how: str) -> str:
    """How long compute takes, and whether it is the user's."""
    said = f"{time_text(median_of(step.samples))} a batch in {step.name}"
    return f"{said}, a stand-in for yours" if step.synthetic else f"{said}, {how}"


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
    """The median; of a model, whose samples are all alike, that is all."""
    shortest, longest = map(time_text, samples.range_s)
    said = f"{what}: {time_text(samples.median_s)}"
    if shortest == longest:
        return said
    count = count_text(len(samples.seconds), "sample")
    return f"{said}, from {shortest} to {longest} ({count})"
