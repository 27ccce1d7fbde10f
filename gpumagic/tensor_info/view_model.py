"""Draws what a model holds: totals, what is odd, a tree, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    AllLevels,
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
from gpumagic.tensor_info.sentences import shape_text

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import ModelReport, Node, Oddity

# Modules in a Sequential or a ModuleList are typed as items of it.
_NUMBERED = re.compile(r"\.(\d+)(?=\.|$)")
_MOST_LINES = 11
_MOST_ALL_LINES = 2_000
_NAMED_AT_MOST = 2
_USUAL_KINDS = ("parameter", "tensor", "state", "attribute")
_MOST_ODD = 50
_HOW = "No operation was run on any tensor, and nothing is kept of them but figures."
_HOW_VALUES = "The elements of every tensor were read once, where they lie."
_ONCE = "What several names reach is counted once, in each line and in the whole."
_SCALES = ((10**12, " T"), (10**9, " G"), (10**6, " M"))
_OF_WHOLE = {
    "NaN or inf": "{0} with NaN or inf",
    "several devices": "{0} on another device",
    "several dtypes": "{0} of another dtype",
    "not registered": "{0} not registered",
    "shared in part": "{0} sharing memory",
    "not contiguous": "{0} not contiguous",
    "frozen": "{0} frozen",
    "tied": "{0} tied",
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


def model_headline(report: ModelReport) -> str:
    """The totals, and how much of it is odd."""
    if not report.root.tensors:
        return f"{report.expression}: {report.kind} without a tensor"
    odd = [_OF_WHOLE[each.kind].format(_how_many(report, each)) for each in report.odd]
    shown = f"; {', '.join(odd[:3])}" if odd else ""
    return f"{report.expression}: {', '.join(_totals(report))}{shown}"


def _totals(report: ModelReport) -> Iterator[str]:
    root = report.root
    noun, count = "parameter", root.parameters
    if not root.parameters:
        noun, count = "element", root.elements
    yield f"{short_count(count)} {noun}{'s' if count != 1 else ''}"
    if state := [each for each in report.roles if each.name == "state"]:
        yield f"{bytes_text(state[0].stored_bytes)} of state"
    yield bytes_text(root.stored_bytes) + (" in all" if state else "")
    if len(root.devices) == 1:
        yield f"{listed(_float_dtypes(report), most=2)} on {root.devices[0]}"


def _float_dtypes(report: ModelReport) -> list[str]:
    """The dtypes that one asks about: counters of steps and the like are integers."""
    dtypes = report.root.dtypes
    return [each for each in dtypes if "float" in each] or list(dtypes)


def _how_many(report: ModelReport, odd: Oddity) -> str:
    return "all" if _is_all(report, odd) else f"{len(odd.names):,}"


def _is_all(report: ModelReport, odd: Oddity) -> bool:
    return odd.kind == "frozen" and not report.root.trainable


def model_parts(report: ModelReport) -> Iterator[Part]:
    """The tree, what it takes, what to do; then all levels and all that is odd."""
    root = _branch(report, report.root, report.root)
    if report.root.children:
        shown = _opened(root, report.depth)
        tree = Tree(_caption(report), _headings(report), shown)
        yield tree
    is_mixed = len(_float_dtypes(report)) > 1 or len(report.root.devices) > 1
    if is_mixed:
        yield _amounts(report)
    if not report.complete:
        yield Note("warning", "the walk was cut short: there is more than is counted")
    for each in report.odd:
        yield from _note(report, each)
    yield from (Note("note", remark) for remark in report.remarks)
    if report.root.children:
        everything = replace(tree, root=_cut(root, _MOST_ALL_LINES), whole=True)
        yield AllLevels("The whole tree", (everything,), "tree")
    if len(report.types) > 1 and not is_mixed:
        yield Details("What it takes", (_amounts(report),), "types")
    if report.odd:
        yield Details("All that is odd", tuple(_odd(report)), "odd")
    said = _HOW_VALUES if report.values else _HOW
    yield how(Paragraph(f"{said}\n{_ONCE}"))


def _caption(report: ModelReport) -> str:
    noun = _headings(report)[0].capitalize()
    return f"{noun} and bytes of each part, and its share of the bytes"


def _headings(report: ModelReport) -> tuple[str, ...]:
    return ("parameters" if _counts_parameters(report) else "elements", "")


def _counts_parameters(report: ModelReport) -> bool:
    return report.kind.startswith("module") and report.root.parameters > 0


def _branch(report: ModelReport, node: Node, whole: Node) -> Branch:
    """One node as a line; several alike in a row are one."""
    below = []
    for _, same in groupby(node.children, key=_alike):
        run = list(same)
        if len(run) > 1 and _is_empty(run[0]):
            below.append(_without_tensors(report, run, whole))
        elif len(run) > 1 and run[0].children and all(map(_is_numbered, run)):
            below.append(_run(report, run, whole))
        else:
            below += [_branch(report, each, whole) for each in run]
    return Branch(
        _name(node),
        _figures(report, node),
        node.stored_bytes / whole.stored_bytes if whole.stored_bytes else 0.0,
        _said(report, node),
        tuple(below),
    )


def _is_empty(node: Node) -> bool:
    return not (node.tensors or node.children or node.same_as)


def _without_tensors(report: ModelReport, run: Sequence[Node], whole: Node) -> Branch:
    """Parts in a row that hold nothing, as one line."""
    below = tuple(_branch(report, each, whole) for each in run)
    names = listed([each.name for each in run], most=_NAMED_AT_MOST)
    return replace(below[0], name=names, below=below)


def _is_numbered(node: Node) -> bool:
    return node.name[-1:].isdigit()


def _run(report: ModelReport, run: Sequence[Node], whole: Node) -> Branch:
    """Parts in a row that are built alike: one line, and the first of them below."""
    first = _branch(report, run[0], whole)
    last = run[-1].name
    number = last[len(last.rstrip("0123456789")) :]
    together = sum(each.stored_bytes for each in run)
    count = sum(_count(report, each) for each in run)
    return replace(
        first,
        name=f"{run[0].name} to {number}: {len(run)} x {run[0].kind or 'alike'}",
        figures=(f"{count:,}", bytes_text(together)),
        share=together / whole.stored_bytes if whole.stored_bytes else 0.0,
    )


def _count(report: ModelReport, node: Node) -> int:
    return node.parameters if _counts_parameters(report) else node.elements


def _alike(node: Node) -> Hashable:
    """The same for nodes that differ in their names alone, or hold nothing."""
    if _is_empty(node):
        return ()
    own = (node.kind, node.size, node.odd, node.dtypes, node.devices, node.same_as)
    figures = (node.parameters, node.trainable, node.elements, node.stored_bytes)
    values = (node.nan_count, node.inf_count)
    within = tuple((each.name, _alike(each)) for each in node.children)
    return own, figures, values, within


def _name(node: Node) -> str:
    if node.size is not None:
        return f"{node.name} {shape_text(node.size)}"
    return f"{node.name} {node.kind}".rstrip()


def _figures(report: ModelReport, node: Node) -> tuple[str, ...]:
    return f"{_count(report, node):,}", bytes_text(node.stored_bytes)


def _said(report: ModelReport, node: Node) -> str:
    """What is not as in the rest."""
    said = []
    if node.same_as:
        said.append(f"the same as {report.expression}{_as_code(node.same_as)}")
    # The largest part is the usual one; what is not like it says so.
    dtype, _, device = next((each.name for each in report.types), "").partition(" on ")
    if node.dtypes and dtype not in node.dtypes:
        said.append(listed(node.dtypes))
    if node.devices not in ((), (device,)):
        said.append(listed(node.devices))
    if node.size is not None and node.kind not in _USUAL_KINDS:
        said.append(node.kind)
    said += node.odd
    if node.parameters and not node.trainable and node.size is None:
        said.append("frozen")
    for count, word in ((node.nan_count, "NaN"), (node.inf_count, "inf")):
        said += [f"{count:,} {word}"] if count else []
    return "; ".join(filter(None, said))


def _opened(root: Branch, depth: int | None) -> Branch:
    """The tree with so many levels open, or as many lines as a screen takes."""
    if depth is not None:
        return _to_depth(root, depth)
    opened = {id(root)}
    count = 1 + len(root.below)
    if count > _MOST_LINES:
        return replace(root, below=_fewer(root.below), is_open=True)
    waiting = list(root.below)
    while waiting:
        # The largest part tells most; tensors themselves are asked for.
        waiting.sort(key=lambda branch: branch.share)
        largest = waiting.pop()
        has_parts = any(each.below for each in largest.below)
        if has_parts and count + len(largest.below) <= _MOST_LINES:
            opened.add(id(largest))
            count += len(largest.below)
            waiting += largest.below
    return _with_open(root, opened)


def _with_open(branch: Branch, opened: set[int]) -> Branch:
    if id(branch) not in opened:
        return branch
    below = tuple(_with_open(each, opened) for each in branch.below)
    return replace(branch, below=below, is_open=True)


def _to_depth(branch: Branch, depth: int) -> Branch:
    if depth <= 0:
        return branch
    below = tuple(_to_depth(each, depth - 1) for each in branch.below)
    return replace(branch, below=below, is_open=True)


def _fewer(below: tuple[Branch, ...]) -> tuple[Branch, ...]:
    """The first parts, and the others as one line."""
    shown, others = below[: _MOST_LINES - 2], below[_MOST_LINES - 2 :]
    share = sum(each.share for each in others)
    return (*shown, Branch(f"{len(others):,} more", ("", ""), share, "", others))


def _cut(branch: Branch, most: int) -> Branch:
    """The tree with so many lines at most, and a word where it was cut."""
    left = most

    def cut(each: Branch) -> Branch:
        nonlocal left
        left -= 1
        below = []
        for number, inner in enumerate(each.below):
            if left <= 0:
                rest = len(each.below) - number
                below.append(Branch(f"{rest:,} more", ("", ""), 0.0))
                break
            below.append(cut(inner))
        return replace(each, below=tuple(below))

    return cut(branch)


def _amounts(report: ModelReport) -> Table:
    properties = (
        Property(Column("What"), lambda each: each.name),
        Property(Column("Tensors", number=True), lambda each: f"{each.tensors:,}"),
        Property(Column("Elements", number=True), lambda each: f"{each.elements:,}"),
        Property(
            Column("Bytes", number=True), lambda each: bytes_text(each.stored_bytes)
        ),
    )
    roles = report.roles if len(report.roles) > 1 else ()
    return Table.of("What it takes", properties, (*report.types, *roles), name="types")


def _note(report: ModelReport, odd: Oddity) -> Iterator[Note]:
    """What an oddity means, and what to type; silent where there is nothing to do."""
    names = listed([f"{each}" for each in _paths(report, odd)], most=_NAMED_AT_MOST)
    first = _paths(report, odd)[0]
    expression = report.expression
    match odd.kind:
        case "NaN or inf":
            # What an optimizer remembers has no path that could be typed.
            is_code = "[...]" not in first
            hint = f"%tensor_info --values {first}" if is_code else ""
            yield Note("problem", f"{odd.said[0]} in {first}", hint)
        case "several devices":
            where = listed(report.root.devices)
            yield Note(
                "warning",
                f"tensors lie on {where}: {names} {odd.said[0]}",
                f"{expression}.to({report.types[0].name.rpartition(' ')[2]!r})"
                if report.kind.startswith("module")
                else "",
            )
        case "several dtypes":
            yield Note("note", f"of another dtype: {names} {odd.said[0]}")
        case "not registered":
            name = first.rpartition(".")[2]
            yield Note(
                "warning",
                f".to() leaves {names} where it is, as it is no parameter or buffer",
                f"self.register_buffer({name!r}, ...)",
            )
        case "shared in part":
            yield Note("note", f"memory in common, not all of it: {names}")
        case "not contiguous":
            yield Note("note", f"not contiguous: {names}", f"%tensor_info {first}")
        case "tied":
            yield Note("note", f"{first} {_tie(report, odd)}: counted once")
        case "frozen" if not _is_all(report, odd):
            share = f"{odd.elements:,} of {report.root.parameters:,}"
            count = count_text(len(odd.names), "tensor")
            text = f"{share} parameters require no gradients, in {count}"
            yield Note("note", text)


def _tie(report: ModelReport, odd: Oddity) -> str:
    first = _as_code(odd.said[0].removeprefix("is "))
    return f"is {report.expression}{first}"


def _paths(report: ModelReport, odd: Oddity) -> list[str]:
    return [f"{report.expression}{_as_code(name)}" for name in odd.names]


def _as_code(path: str) -> str:
    """A path as it is typed.

    >>> _as_code(".layer1.0.weight"), _as_code("['a.0']")
    ('.layer1[0].weight', "['a.0']")
    """
    return _NUMBERED.sub(r"[\1]", path)


def _odd(report: ModelReport) -> Iterator[Table]:
    columns = (Column("Tensor"), Column("What is odd"))
    for odd in report.odd:
        said = odd.said or (odd.kind,) * len(odd.names)
        pairs = list(zip(_paths(report, odd), said, strict=True))
        shown = tuple(pairs[:_MOST_ODD])
        yield Table(odd.kind, columns, shown, len(pairs))
