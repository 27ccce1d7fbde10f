"""Draws how tensors lie in memory: each report by the answer that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note, one_screen
from gpumagic.tensor_info.answer_model import model_headline, model_parts
from gpumagic.tensor_info.answer_several import (
    alias_headline,
    alias_parts,
    comparison_headline,
    comparison_parts,
)
from gpumagic.tensor_info.answer_tensor import tensor_parts
from gpumagic.tensor_info.answer_values import values_headline
from gpumagic.tensor_info.answer_view import view_headline, view_parts
from gpumagic.tensor_info.answer_warp import is_drawn, warp_headline
from gpumagic.tensor_info.report import (
    AliasReport,
    CompareReport,
    ModelReport,
    TensorReport,
    ViewReport,
)
from gpumagic.tensor_info.sentences import headline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.drawing import Part

    AnyReport = TensorReport | ViewReport | CompareReport | AliasReport | ModelReport


def draw(report: AnyReport) -> Drawing:
    """One tensor, several, one shape for a tensor, or the names that share memory."""
    parts: Iterable[Part]
    match report:
        case CompareReport(tensors=(only,), views=(asked,)):
            # Of one tensor, the shape is all that was asked for.
            said, parts = view_headline(asked), view_parts(asked, report.remarks)
            simulated = only.simulated
        case ViewReport():
            said, parts = view_headline(report), view_parts(report)
            simulated = report.tensor.simulated
        case CompareReport(tensors=(only,)):
            return _tensor(only, warp=report.warp, failures=report.remarks)
        case CompareReport():
            said, parts = comparison_headline(report), comparison_parts(report)
            simulated = any(each.simulated for each in report.tensors)
        case AliasReport():
            said, parts = alias_headline(report), alias_parts(report)
            simulated = report.simulated
        case ModelReport():
            said, parts = model_headline(report), model_parts(report)
            simulated = report.simulated
        case _:
            return _tensor(report)
    return _drawing(said, parts, simulated=simulated)


def _tensor(
    report: TensorReport, *, warp: bool = False, failures: tuple[str, ...] = ()
) -> Drawing:
    if report.values is not None:
        said = values_headline(report, report.values)
    elif warp and is_drawn(report):
        said = warp_headline(report)
    else:
        said = headline(report)
    failed = (Note("problem", failure) for failure in failures)
    parts = (*failed, *tensor_parts(report, warp=warp))
    return _drawing(said, parts, simulated=report.simulated)


def _drawing(said: str, parts: Iterable[Part], *, simulated: bool) -> Drawing:
    return Drawing(said, one_screen(parts), "simulated GPU" if simulated else "")
