"""Why tensors of a batch are pageable, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Note, Paragraph
from gpumagic.pin_loader.records.batch import Pinned, WhyPageable
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.sections.leaf_words import pageable_sentence, short_path
from gpumagic.pin_loader.sections.phrases import listed
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.batch import Anatomy, Leaf
    from gpumagic.pin_loader.report import LoaderReport

_MOST_REASONS = 4
_ANEW = (Way.REBUILT, Way.FLAG_SET)
_ADVISED = (
    State.DIAGNOSED,
    State.FIXED,
    State.WRAPPED_ONLY,
    State.REFUSED_DIFFERENT,
)

FIXES = {
    WhyPageable.FLAG_OFF: "DataLoader(..., pin_memory=True)",
    WhyPageable.NO_ACCELERATOR: "",
    WhyPageable.PASSED_THROUGH: (
        "the adapter of %pin_loader pins it, or give {holder} a pin_memory() method"
    ),
    WhyPageable.OWN_METHOD: "let pin_memory() of {holder} pin it too",
    WhyPageable.NOT_A_TENSOR: "torch.from_numpy(...) in the collate_fn",
    WhyPageable.NOT_DENSE: "send its indices and values as tensors of their own",
    WhyPageable.FLAG_TOO_LATE: "a new loader: workers read the flag when they start",
    WhyPageable.UNKNOWN: "",
}


class _Reason(NamedTuple):
    why: WhyPageable
    holder: str | None
    leaves: list[Leaf]

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves if leaf.same_as is None)

    def words(self) -> str:
        if self.why is WhyPageable.UNKNOWN:
            return "for a reason that is unknown"
        if self.holder is None:
            return f"because {self.why.value}"
        said = self.why.value.replace("objects of this class", f"{self.holder} objects")
        return f"because {said.replace('the class', self.holder)}"

    def fix(self) -> str:
        return FIXES[self.why].format(holder=self.holder or "the class")


def _reasons(anatomy: Anatomy) -> list[_Reason]:
    """Pageable tensors by why they are, the most bytes first."""
    by_why: dict[tuple[WhyPageable, str | None], list[Leaf]] = {}
    for leaf in anatomy.leaves:
        if leaf.pinned is Pinned.PAGEABLE:
            why = leaf.why or WhyPageable.UNKNOWN
            by_why.setdefault((why, leaf.holder), []).append(leaf)
    found = [_Reason(why, holder, its) for (why, holder), its in by_why.items()]
    return sorted(found, key=lambda each: each.nbytes, reverse=True)


def why_parts(report: LoaderReport, anatomy: Anatomy) -> Iterator[Part]:
    """One note for each reason, with what mends it."""
    reasons, said = _reasons(anatomy), pageable_sentence(anatomy)
    if not reasons:
        yield Paragraph(f"{said[0].upper()}{said[1:]}.")
        return
    if len(reasons) == 1:
        yield _note(report, f"{said} {reasons[0].words()}", reasons[0])
        return
    yield Paragraph(f"{said[0].upper()}{said[1:]}, for {len(reasons)} reasons:")
    for each in reasons[:_MOST_REASONS]:
        paths = listed([short_path(leaf.path) for leaf in each.leaves])
        size = bytes_text(each.nbytes)
        yield _note(report, f"{size} {each.words()}: {paths}", each)
    if more := reasons[_MOST_REASONS:]:
        yield Paragraph(f"... and {count_text(len(more), 'more reason')}")


def _note(report: LoaderReport, text: str, reason: _Reason) -> Note:
    """A reason with its fix, unless it is mended, or mending it would win nothing."""
    if reason.why in _mended(report):
        return Note("note", f"{text}; those of {report.out} are pinned")
    if report.state not in _ADVISED:
        return Note("note", text)
    harmless = reason.why in (WhyPageable.NO_ACCELERATOR, WhyPageable.NOT_DENSE)
    return Note("note" if harmless else "warning", text, reason.fix())


def _mended(report: LoaderReport) -> set[WhyPageable]:
    """What a new loader has put right."""
    built = report.rebuilding
    if report.out is None or report.state is State.NO_ACCELERATOR:
        return set()
    if built is None or built.way not in _ANEW:
        return set()
    adapted = {WhyPageable.PASSED_THROUGH} if built.adapter else set()
    return {WhyPageable.FLAG_OFF, WhyPageable.FLAG_TOO_LATE, *adapted}
