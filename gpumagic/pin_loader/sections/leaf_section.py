"""One batch, tensor by tensor: where its bytes lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.pin_loader.sections.leaf_words import least_text, short_path
from gpumagic.pin_loader.sections.pageable_section import why_parts
from gpumagic.pin_loader.sections.phrases import listed
from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.batch import Anatomy, Leaf
    from gpumagic.pin_loader.report import LoaderReport

MOST_LEAVES = 10
_NOT_CONTIGUOUS = (
    "A tensor that is not contiguous is copied through pageable memory, pinned or not: "
    "`.contiguous()` in the collate_fn."
)


def leaf_parts(report: LoaderReport) -> Iterator[Part]:
    """What share of the bytes is pageable and why, then the tensors."""
    anatomy = report.anatomy
    if anatomy is None:
        return
    if not anatomy.leaves:
        yield Paragraph(f"A batch ({anatomy.class_name}) holds no tensors.")
        return
    yield from why_parts(report, anatomy)
    yield _table(anatomy)
    yield Paragraph(" ".join(_below(anatomy)))
    yield from _type_changes(anatomy)


def _table(anatomy: Anatomy) -> Table:
    many = len(anatomy.leaves) > MOST_LEAVES
    leaves: Sequence[Leaf] = anatomy.leaves
    if many:
        leaves = sorted(leaves, key=lambda leaf: leaf.nbytes, reverse=True)
    size = bytes_text(anatomy.tensor_bytes)
    largest = f", the {MOST_LEAVES} largest of its tensors" if many else ""
    return Table(
        f"A batch ({anatomy.class_name}, {least_text(anatomy)}{size}){largest}",
        (
            Column("Tensor"),
            Column("Class"),
            Column("Shape"),
            Column("Type"),
            Column("Size", number=True),
            Column("Memory"),
        ),
        tuple(map(_row, leaves[:MOST_LEAVES])),
        total_rows=len(anatomy.leaves) + anatomy.left_out,
    )


def _row(leaf: Leaf) -> tuple[str, ...]:
    shape = " x ".join(map(str, leaf.shape)) or "-"
    size = bytes_text(leaf.nbytes)
    return (
        short_path(leaf.path),
        leaf.what,
        shape,
        leaf.dtype or "-",
        size,
        _memory(leaf),
    )


def _memory(leaf: Leaf) -> str:
    said = leaf.pinned.value
    if leaf.contiguous is False:
        said = f"{said}, not contiguous"
    if leaf.same_as is not None:
        said = f"{said}, the same memory as {short_path(leaf.same_as)}"
    return said


def _below(anatomy: Anatomy) -> Iterator[str]:
    """What the table does not tell."""
    if any(leaf.contiguous is False for leaf in anatomy.leaves):
        yield _NOT_CONTIGUOUS
    if anatomy.left_out:
        yield (
            f"{anatomy.left_out:,} more tensors are not listed: totals have their "
            "bytes, and what is said of pinned and pageable ones leaves them out."
        )
    if anatomy.others:
        values = count_text(anatomy.others, "other value")
        verb = "stays" if anatomy.others == 1 else "stay"
        yield f"{values} of a batch, no tensor or array, {verb} on the host."
    if anatomy.locked_bytes:
        yield (
            f"Pinning it locks {bytes_text(anatomy.locked_bytes)} (estimated): each "
            "tensor is rounded up to a power of two."
        )


def _type_changes(anatomy: Anatomy) -> Iterator[Part]:
    """Containers that come out of the pinner as something else."""
    if anatomy.type_changes:
        told = [f"{at} from {old} to {new}" for at, old, new in anatomy.type_changes]
        yield Note("warning", f"the pinner changes classes: {listed(told)}")
