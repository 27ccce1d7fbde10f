"""Draws the values of a tensor: what is not finite first, then where it is high."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Table
from gpumagic.tensor_info.heat_map import HeatPicture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport, ValueSummary


def values_headline(report: TensorReport, values: ValueSummary) -> str:
    """What is not finite, with the place of the first; then the range of the rest."""
    count = "its values"
    if report.numel is not None:
        count = f"{report.numel:,} value{'s' if report.numel != 1 else ''}"
    nans, infinities = values.nan_count or 0, values.inf_count or 0
    odd = [
        f"{each:,} {word}"
        for each, word in ((nans, "NaN"), (infinities, "inf"))
        if each
    ]
    span = _span(values)
    if not odd:
        return f"{report.expression}: {count}, no NaN, no inf{_said(span)}"
    first = values.first_nan if nans else values.first_inf
    at = "" if first is None else f", the first at [{', '.join(map(str, first))}]"
    said = f"{report.expression}: {' and '.join(odd)} in {count}{at}"
    return f"{said}; the others{span}" if span else said


def _said(span: str) -> str:
    return f";{span}" if span else ""


def _span(values: ValueSummary) -> str:
    if values.minimum is None or values.maximum is None:
        return ""
    if values.minimum == values.maximum:
        return f" all {_number(values.minimum)}"
    return f" from {_number(values.minimum)} to {_number(values.maximum)}"


def values_parts(values: ValueSummary) -> Iterator[Part]:
    """The tiles, then the figures."""
    if values.heat is not None:
        yield HeatPicture(values.heat)
    yield values_table(("",), (values,))


def values_table(names: Sequence[str], summaries: Sequence[ValueSummary]) -> Table:
    """The figures of each; NaN and infinities come first."""
    columns = [Column("Tensor"), *(Column(head, number=True) for head, _ in _FIGURES)]
    rows = [
        (name, *(of(values) for _, of in _FIGURES))
        for name, values in zip(names, summaries, strict=True)
    ]
    # One tensor alone is in the title.
    start = 1 if len(rows) == 1 else 0
    shown = tuple(row[start:] for row in rows)
    return Table("Values; range and mean of the finite", tuple(columns[start:]), shown)


def first_values(values: ValueSummary) -> Iterator[Details]:
    """How the first row begins, and where the first of what is not finite lies."""
    said = (
        [f"The first row begins with {', '.join(values.first)}."]
        if values.first
        else []
    )
    for word, at in (("NaN", values.first_nan), ("inf", values.first_inf)):
        if at is not None:
            said.append(f"The first {word} lies at [{', '.join(map(str, at))}].")
    if said:
        summary = "The first values"
        yield Details(summary, (Paragraph("\n".join(said)),), "values")


def values_note(report: TensorReport) -> Iterator[Note]:
    """Where to look for what is not finite."""
    values = report.values
    if values is not None and values.nan_count and report.requires_grad:
        yield Note(
            "problem",
            "a NaN in a parameter stays: find the operation that made it",
            "torch.autograd.set_detect_anomaly(True)",
        )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _count(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"


def _infinities(values: ValueSummary) -> str | None:
    low = values.negative_inf_count
    said = _count(values.inf_count)
    return f"{said}, of them {low:,} negative" if low else said


_FIGURES: tuple[tuple[str, Callable[[ValueSummary], str | None]], ...] = (
    ("NaN", lambda values: _count(values.nan_count)),
    ("Inf", _infinities),
    ("Lowest", lambda values: _number(values.minimum)),
    ("Mean", lambda values: _number(values.mean)),
    ("Highest", lambda values: _number(values.maximum)),
    ("Zero", lambda values: _count(values.zero_count)),
)
