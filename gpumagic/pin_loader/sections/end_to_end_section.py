"""Old loop and new loop: a step of each as a bar, and how sure the verdict is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Stack, Stacks, Table
from gpumagic.pin_loader.sections.hiding_words import why_nothing_is_hidden
from gpumagic.pin_loader.sections.phrases import NOT_MEASURED, three_digits, time_text
from gpumagic.pin_loader.sections.step_split import splits_of
from gpumagic.report.robust import Verdict
from gpumagic.report.units import count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.proof import EndToEnd
    from gpumagic.pin_loader.report import LoaderReport
    from gpumagic.pin_loader.sections.step_split import Split
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


def end_to_end_parts(report: LoaderReport) -> Iterator[Part]:
    """The bars, the verdict in figures, and where the copying went."""
    found = report.end_to_end
    if found is None:
        return
    splits = splits_of(report, found)
    if splits is not None:
        yield _bars(splits, found)
    if found.result.verdict in (Verdict.SAME, Verdict.CANNOT_TELL):
        yield Note("note", _no_difference(found.result))
    yield Paragraph("\n".join(_sentences(found)))
    rows = tuple(_rows(found))
    if rows:
        heads = (
            Column(""),
            Column("Before", number=True),
            Column("After", number=True),
        )
        yield Table("Copying to the device", heads, rows)
    if said := why_nothing_is_hidden(report, found):
        yield Paragraph(said)


def _bars(splits: tuple[Split, Split], found: EndToEnd) -> Stacks:
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


def _sentences(found: EndToEnd) -> Iterator[str]:
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


def _rows(found: EndToEnd) -> Iterator[tuple[Cell, ...]]:
    if found.overlap != (None, None):
        yield "hidden behind kernels, measured in a trace", *map(_share, found.overlap)
    if None in found.overlap and found.estimated_overlap != (None, None):
        shares = map(_share, found.estimated_overlap)
        yield "hidden, estimated from the times", *shares
    if found.pageable_share != (None, None):
        yield "from pageable memory", *map(_share, found.pageable_share)


def _share(share: float | None) -> str:
    return NOT_MEASURED if share is None else share_text(share)
