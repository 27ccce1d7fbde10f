"""How a measured step divides: compute, copying beside nothing, and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.pin_loader.records.batch import Pinned
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.sections.phrases import median_of
from gpumagic.report import robust

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.proof import EndToEnd
    from gpumagic.pin_loader.report import LoaderReport

_MOSTLY = 0.5


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
