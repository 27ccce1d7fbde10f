"""What can go wrong with a tensor that lies as it does, and what to type against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Note, Paragraph
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.words import (
    copied,
    dims_text,
    numbers_text,
    odd_strides,
    repeats,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import Merge, TensorReport


def view_summary(report: TensorReport) -> Iterator[Part]:
    """What `.view` may do with it, and what a contiguous copy takes."""
    said = [*_merges(report), *_copy(report)]
    if said:
        yield Paragraph("\n".join(said))


def _merges(report: TensorReport) -> Iterator[str]:
    if report.view_flat:
        yield f"Views: {report.expression}.view(-1) works without a copy."
        return
    merged = [merge for merge in report.free_merges or () if len(merge.dims) > 1]
    if report.view_flat is False:
        free = ", ".join(map(_merge_text, merged)) or "no two dims"
        yield f"Views: .view(-1) fails; {free} can be merged without a copy."


def _merge_text(merge: Merge) -> str:
    return f"{dims_text(merge.dims)} (to {merge.numel:,}, step {merge.step:,})"


def _copy(report: TensorReport) -> Iterator[str]:
    size = report.contiguous_allocates_bytes
    if size == 0:
        yield "Copies: .contiguous() returns this same tensor, and allocates nothing."
    elif size:
        yield (
            f"Copies: .contiguous() and a .reshape that does not fit allocate "
            f"{bytes_text(size)}; what is written there is not written here."
        )


def safety_section(report: TensorReport) -> Iterator[Note]:
    """Whether writing in place is safe, and what consumers may stumble over."""
    yield from _overlap(report)
    yield from _odd(report)
    yield from _format(report)
    yield from _lazy(report)


def _overlap(report: TensorReport) -> Iterator[Note]:
    why = f": {report.overlap_why}" if report.overlap_why else ""
    because = f" ({report.overlap_why})" if report.overlap_why else ""
    if report.overlap == "yes":
        name = report.expression
        yield Note(
            "warning",
            f"in-place is unsafe: indices share elements{why}",
            f"{copied(name)} before writing to it",
        )
        if repeats(report):
            yield Note(
                "note",
                f"a kernel of your own must be given the strides "
                f"{numbers_text(report.stride or ())}: stride 0 repeats an element",
            )
    elif report.overlap == "no":
        yield Note("note", f"in-place is safe: each index has its own element{because}")
    elif report.overlap is not None:
        yield Note("note", f"whether elements overlap was not decided{why}")


def _odd(report: TensorReport) -> Iterator[Note]:
    odd = odd_strides(report)
    if not odd or report.strides_canonical is not False or not report.is_contiguous:
        return
    yield Note(
        "note",
        f"the stride of {dims_text(odd)} is never used, but it is not the usual one: "
        "code that compares strides may refuse this tensor, and .contiguous() leaves "
        "it as it is",
        f"{report.expression}.clone(memory_format=torch.contiguous_format)",
    )


def _format(report: TensorReport) -> Iterator[Note]:
    if not report.format_ambiguous:
        return
    images = "channels_last" if len(report.size or ()) == 4 else "channels_last_3d"
    treated = report.operators_treat_as or "either"
    yield Note(
        "note",
        f"the memory format is ambiguous ({report.format_ambiguous}); operators treat "
        f"it as {treated}, and .contiguous(memory_format=torch.{images}) leaves it as "
        "it is",
        ""
        if treated == images
        else f"{report.expression}.to(memory_format=torch.{images}) sets the strides "
        "that operators look at",
    )


def _lazy(report: TensorReport) -> Iterator[Note]:
    for on, word, method in (
        (report.conj_bit, "conjugated", "resolve_conj"),
        (report.neg_bit, "negated", "resolve_neg"),
    ):
        if on:
            yield Note(
                "note",
                f"the values are {word} when they are read; in memory they are not",
                f"{report.expression}.{method}() writes them out",
            )
