"""What does a model hold: totals, what is odd, a tree, and what to do."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Branch,
    Column,
    Details,
    Note,
    Paragraph,
    Property,
    Table,
    Tree,
)
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import bytes_text, count_text, listed
from gpumagic.tensor_info.answer_tensor import drawn, shape_text
from gpumagic.tensor_info.overlap import INTERLOCKED

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gpumagic.drawing import Drawing, NoteKind, Part
    from gpumagic.tensor_info.report import ModelReport, Node, Oddity

_MOST_LINES = 11
_NAMED_AT_MOST = 2
_USUAL_KINDS = ("parameter", "tensor", "state", "attribute")
_MOST_ODD_IN_TITLE = 3
_HOW = {  # by whether values were asked for
    False: "No operation was run on any tensor, and only figures are kept of them.",
    True: "The elements of every tensor were read once, where they lie.",
}
_ONCE = (
    "What several names reach is counted once, in each line and in the whole.\n"
    f"{INTERLOCKED}"
)
_SCALES = ((10**12, " T"), (10**9, " G"), (10**6, " M"))


class _Odd(NamedTuple):
    """How tensors are told that have one thing about them one may not expect."""

    counted: str  # in the headline
    kind: NoteKind
    text: str
    hint: str = ""


_ODD: dict[str, _Odd] = {
    "NaN or inf": _Odd(
        "with NaN or inf",
        "problem",
        "{said} in {first}",
        "%tensor_info --values {first}",
    ),
    "several devices": _Odd(
        "on another device",
        "warning",
        "tensors lie on {devices}: {names} {said}",
        "{expression}.to({usual!r})",
    ),
    "not registered": _Odd(
        "not registered",
        "warning",
        ".to() leaves {names} where it is, as it is no parameter or buffer",
        "self.register_buffer({attribute!r}, ...)",
    ),
    "frozen": _Odd(
        "frozen",
        "note",
        "{elements:,} of {parameters:,} parameters require no gradients, in {tensors}",
    ),
    "tied": _Odd("tied", "note", "{first} is {said}: counted once"),
}


def short_count(count: int) -> str:
    """A count in three digits.

    >>> short_count(11_689_512), short_count(9_408)
    ('11.7 M', '9,408')
    """
    for scale, letter in _SCALES:
        if count >= scale:
            return f"{count / scale:.3g}{letter}"
    return f"{count:,}"


def draw(report: ModelReport) -> Drawing:
    """The totals, the tree, what is odd."""
    return drawn(model_headline(report), _parts(report), simulated=report.simulated)


def model_headline(report: ModelReport) -> str:
    """The totals, and how much of it is odd."""
    root = report.root
    if not root.tensors:
        return f"{report.expression}: {report.kind} without a tensor"
    count, stored = root.parameters or root.elements, bytes_text(root.stored_bytes)
    noun = "parameter" if root.parameters else "element"
    said = [f"{short_count(count)} {noun}{'s' if count != 1 else ''}"]
    said += [
        f"{bytes_text(each.stored_bytes)} of state, {stored} in all"
        for each in report.roles
        if each.name == "state"
    ] or [stored]
    if len(root.devices) == 1:
        said.append(f"{listed(_float_dtypes(root), most=2)} on {root.devices[0]}")
    kinds = [each.kind for each in report.odd]
    if report.values and "NaN or inf" not in kinds:
        said.append(f"no NaN or inf in {count_text(report.values, 'tensor')}")
    title = f"{report.expression}: {', '.join(said)}"
    if not report.odd:
        return title
    first, *others = report.odd[:_MOST_ODD_IN_TITLE]
    # By their noun, as it is parameters that were counted before.
    odd = [f"{count_text(len(first.names), 'tensor')} {_ODD[first.kind].counted}"]
    odd += [f"{len(each.names):,} {_ODD[each.kind].counted}" for each in others]
    return f"{title}; {', '.join(odd)}"


def _float_dtypes(root: Node) -> list[str]:
    """The dtypes that one asks about: counters of steps and the like are integers."""
    return [each for each in root.dtypes if "float" in each] or list(root.dtypes)


def _parts(report: ModelReport) -> Iterator[Part]:
    """The tree, what it takes, what to do; then all levels and all that is odd."""
    whole = report.root
    noun = _counted(report)
    caption = f"{noun.capitalize()} and bytes of each part, and its share of the bytes"
    root = _branch(report, [whole])
    tree = Tree(caption, (noun, ""), _opened(root, _MOST_LINES - 1)[0])
    if whole.children:
        yield tree
    if len(_float_dtypes(whole)) > 1 or len(whole.devices) > 1:
        yield _amounts(report)
    if not report.complete:
        yield Note("warning", "the walk was cut short: there is more than is counted")
    yield from (_note(report, odd) for odd in report.odd)
    yield from (Note("note", remark) for remark in report.remarks)
    if whole.children:
        everything = replace(tree, root=root, whole=True)
        yield Details("The whole tree", (everything,), "tree", in_text_only=True)
    yield how(Paragraph(f"{_HOW[report.values > 0]}\n{_ONCE}"))


def _counted(report: ModelReport) -> str:
    """What is counted of each part."""
    is_module = report.kind.startswith("module") and report.root.parameters
    return "parameters" if is_module else "elements"


def _branch(report: ModelReport, run: Sequence[Node]) -> Branch:
    """A part as a line; several that are built alike are one, with what is in each."""
    first, last, whole = run[0], run[-1].name, report.root.stored_bytes
    what = shape_text(first.size) if first.is_tensor else first.kind
    name = f"{first.name} {what}".rstrip()
    if len(run) > 1:
        number = last[len(last.rstrip("0123456789")) :]
        name = f"{first.name} to {number}: {len(run)} x {first.kind or 'alike'}"
    count = sum(getattr(each, _counted(report)) for each in run)
    stored = sum(each.stored_bytes for each in run)
    return Branch(
        name,
        (f"{count:,}", bytes_text(stored)),
        stored / (whole or 1),
        _said(report, first),
        tuple(_below(report, first)),
    )


def _below(report: ModelReport, node: Node) -> Iterator[Branch]:
    for _, same in groupby(node.children, key=_alike):
        run = list(same)
        is_one = run[0].children and run[0].name[-1:].isdigit()
        for each in [run] if is_one else ([each] for each in run):
            yield _branch(report, each)


def _alike(node: Node) -> Hashable:
    """The same for nodes that differ in their names alone."""
    within = tuple((each.name, _alike(each)) for each in node.children)
    return replace(node, name="", children=()), within


def _said(report: ModelReport, node: Node) -> str:
    """What is not as in the rest."""
    said = []
    if node.same_as:
        said.append(f"the same as {report.expression}{node.same_as}")
    # The largest part is the usual one; what is not like it says so.
    dtype, _, device = next((each.name for each in report.types), "").partition(" on ")
    if node.dtypes and dtype not in node.dtypes:
        said.append(listed(node.dtypes))
    if node.devices not in ((), (device,)):
        said.append(listed(node.devices))
    if node.is_tensor and node.kind not in _USUAL_KINDS:
        said.append(node.kind)
    said.append(node.odd)
    if node.parameters and not node.trainable and not node.is_tensor:
        said.append("frozen")
    odd = (node.nan_count, "NaN"), (node.inf_count, "inf")
    said += [f"{count:,} {word}" for count, word in odd if count]
    return "; ".join(filter(None, said))


def _opened(branch: Branch, room: int) -> tuple[Branch, int]:
    """A line opened as far as there is room, the largest part first; what is left."""
    below = list(branch.below)
    if len(below) > room:
        shown, others = below[: room - 1], below[room - 1 :]
        share = sum(each.share for each in others)
        more = Branch(f"{len(others):,} more", ("", ""), share, "", tuple(others))
        return replace(branch, below=(*shown, more), is_open=True), 0
    room -= len(below)
    for at in sorted(range(len(below)), key=lambda at: -below[at].share):
        within = below[at].below
        # Tensors themselves are asked for.
        if len(within) <= room and any(each.below for each in within):
            below[at], room = _opened(below[at], room)
    return replace(branch, below=tuple(below), is_open=True), room


def _amounts(report: ModelReport) -> Table:
    properties = (
        Property(Column("What"), lambda each: each.name),
        Property(Column("Tensors", number=True), lambda each: f"{each.tensors:,}"),
        Property(Column("Elements", number=True), lambda each: f"{each.elements:,}"),
        Property(
            Column("Bytes", number=True), lambda each: bytes_text(each.stored_bytes)
        ),
    )
    amounts = (*report.types, *report.roles)
    return Table.of("What it takes", properties, amounts, name="types")


def _note(report: ModelReport, odd: Oddity) -> Note:
    """What an oddity means, and what to type."""
    paths = [f"{report.expression}{path}" for path in odd.names]
    how_told, said = _ODD[odd.kind], odd.said
    if odd.kind == "tied":
        said = f"{report.expression}{said}"
    words = {
        "expression": report.expression,
        "first": paths[0],
        "names": listed(paths, most=_NAMED_AT_MOST),
        "said": said,
        "devices": listed(report.root.devices),
        "usual": next((each.name.rpartition(" ")[2] for each in report.types), ""),
        "attribute": paths[0].rpartition(".")[2],
        "elements": odd.elements,
        "parameters": report.root.parameters,
        "tensors": count_text(len(odd.names), "tensor"),
    }
    # What an optimizer remembers has no path that could be typed, and a list no .to().
    no_to = odd.kind == "several devices" and not report.kind.startswith("module")
    hint = "" if no_to or "[...]" in paths[0] else how_told.hint.format(**words)
    return Note(how_told.kind, how_told.text.format(**words), hint)
