"""Draws how tensors lie in memory: the verdict, the diagram, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Drawing, Note
from gpumagic.tensor_info.beside_section import beside_headline, beside_parts
from gpumagic.tensor_info.report import AliasReport, CompareReport, ViewReport
from gpumagic.tensor_info.shape_section import shape_headline, shape_parts
from gpumagic.tensor_info.sharing_section import sharing_headline, sharing_parts
from gpumagic.tensor_info.tensor_section import diagram, tensor_parts
from gpumagic.tensor_info.warp_section import warp_sections
from gpumagic.tensor_info.words import headline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport

    AnyReport = TensorReport | ViewReport | CompareReport | AliasReport

_SIMULATED = "simulated GPU"


def draw(report: AnyReport) -> Drawing:
    """One tensor, several, one shape for a tensor, or the names that share memory."""
    match report:
        case ViewReport():
            return _view(report)
        case CompareReport(tensors=(_,), views=(only,), remarks=()):
            return _view(only)  # what was asked; the tensor itself is asked for alone
        case CompareReport():
            return _compared(report)
        case AliasReport():
            parts = tuple(sharing_parts(report))
            return Drawing(sharing_headline(report), parts, _label((report,)))
        case _:
            parts = tuple(tensor_parts(report))
            return Drawing(headline(report), parts, _label((report,)))


def _view(report: ViewReport) -> Drawing:
    parts = (*shape_parts(report), *_of_view(report))
    return Drawing(shape_headline(report), parts, _label((report.tensor,)))


def _of_view(report: ViewReport) -> Iterator[Part]:
    """The tensor, with the places where its walk breaks."""
    marks = {
        report.next_expected: "expected",
        report.last_element: "last",
        report.next_element: "next",
    }
    known = {place: word for place, word in marks.items() if place is not None}
    yield from diagram(report.tensor, known)


def _compared(report: CompareReport) -> Drawing:
    label = _label(report.tensors)
    if len(report.tensors) == 1 and not report.remarks:
        (only,) = report.tensors
        parts = tuple(tensor_parts(only, warp=report.warp))
        return Drawing(headline(only), parts, label)
    return Drawing(beside_headline(report), tuple(_beside(report)), label)


def _beside(report: CompareReport) -> Iterator[Part]:
    if report.pairs or len(report.tensors) > 1:
        yield from beside_parts(report)
    else:
        for each in report.tensors:
            yield from tensor_parts(each, warp=report.warp)
    yield from _views(report)
    if report.pairs:
        shown = [each for each in report.tensors if report.warp or each.on_accelerator]
        yield from warp_sections(shown, named=True)
    yield from (Note("problem", remark) for remark in report.remarks)


def _views(report: CompareReport) -> Iterator[Part]:
    for each in report.views:
        yield Note("note" if each.view else "problem", shape_headline(each))
        yield from shape_parts(each)


def _label(reports: Iterable[TensorReport | AliasReport]) -> str:
    return _SIMULATED if any(each.simulated for each in reports) else ""
