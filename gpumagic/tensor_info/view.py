"""Draws how tensors lie in memory: the verdict, one picture, one table, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note, one_screen
from gpumagic.tensor_info.report import (
    AliasReport,
    CompareReport,
    ModelReport,
    ViewReport,
)
from gpumagic.tensor_info.sentences import headline
from gpumagic.tensor_info.view_aliases import sharing_headline, sharing_parts
from gpumagic.tensor_info.view_compare import comparison_headline, comparison_parts
from gpumagic.tensor_info.view_model import model_headline, model_parts
from gpumagic.tensor_info.view_shape import shape_headline, shape_parts
from gpumagic.tensor_info.view_tensor import tensor_parts
from gpumagic.tensor_info.view_values import values_headline
from gpumagic.tensor_info.view_warp import is_drawn, warp_headline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport

    AnyReport = TensorReport | ViewReport | CompareReport | AliasReport | ModelReport

_SIMULATED = "simulated GPU"


def draw(report: AnyReport) -> Drawing:
    """One tensor, several, one shape for a tensor, or the names that share memory."""
    match report:
        case ViewReport() | CompareReport(tensors=(_,), views=(ViewReport(),)):
            asked = report.views[0] if isinstance(report, CompareReport) else report
            # Of one tensor, the shape is all that was asked for.
            said, parts = shape_headline(asked), shape_parts(asked, _remarks(report))
        case CompareReport(tensors=(only,)):
            return _tensor(only, warp=report.warp, failures=report.remarks)
        case CompareReport():
            said, parts = comparison_headline(report), comparison_parts(report)
        case AliasReport():
            said, parts = sharing_headline(report), sharing_parts(report)
        case ModelReport():
            said, parts = model_headline(report), model_parts(report)
        case _:
            return _tensor(report)
    return _drawing(said, parts, simulated=_is_simulated(report))


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
    return Drawing(said, one_screen(parts), _SIMULATED if simulated else "")


def _remarks(report: ViewReport | CompareReport) -> tuple[str, ...]:
    return report.remarks if isinstance(report, CompareReport) else ()


def _is_simulated(
    report: ViewReport | CompareReport | AliasReport | ModelReport,
) -> bool:
    match report:
        case AliasReport() | ModelReport():
            return report.simulated
        case ViewReport():
            return report.tensor.simulated
        case _:
            return any(each.simulated for each in report.tensors)
