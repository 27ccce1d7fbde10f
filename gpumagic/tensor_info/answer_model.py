"""What does a model hold: totals, what is odd, a tree, and what to do."""

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
from gpumagic.tensor_info.answer_tensor import drawn
from gpumagic.tensor_info.sentences import shape_text

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gpumagic.drawing import Drawing, NoteKind, Part
    from gpumagic.tensor_info.report import ModelReport, Node, Oddity

# Modules in a Sequential or a ModuleList are typed as items of it.
_NUMBERED = re.compile(r"\.(\d+)(?=\.|$)")
_MOST_LINES = 11
_MOST_ALL_LINES = 2_000
_NAMED_AT_MOST = 2
_USUAL_KINDS = ("parameter", "tensor", "state", "attribute")
_MOST_ODD, _MOST_ODD_IN_TITLE = 50, 3
_HOW = "No operation was run on any tensor, and nothing is kept of them but figures."
_HOW_VALUES = "The elements of every tensor were read once, where they lie."
_ONCE = "What several names reach is counted once, in each line and in the whole."
_SCALES = ((10**12, " T"), (10**9, " G"), (10**6, " M"))
_OF_WHOLE = {
    "NaN or inf": "{0} with NaN or inf",
    "several devices": "{0} on another device",
    "several dtypes": "{0} of another dtype",
    "not registered": "{0} not registered",
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


def draw(report: ModelReport) -> Drawing:
    """The totals, the tree, what is odd."""
    return drawn(model_headline(report), _parts(report), report.simulated)


def model_headline(report: ModelReport) -> str:
    """The totals, and how much of it is odd."""
    root = report.root
    if not root.tensors:
        return f"{report.expression}: {report.kind} without a tensor"
    noun, count = "parameter", root.parameters
    if not count:
        noun, count = "element", root.elements
    said = [f"{short_count(count)} {noun}{'s' if count != 1 else ''}"]
    state = [each for each in report.roles if each.name == "state"]
    said += [f"{bytes_text(each.stored_bytes)} of state" for each in state]
    said.append(bytes_text(root.stored_bytes) + (" in all" if state else ""))
    if len(root.devices) == 1:
        said.append(f"{listed(_float_dtypes(root), most=2)} on {root.devices[0]}")
    odd = []
    for each in report.odd[:_MOST_ODD_IN_TITLE]:
        count_of_it = "all" if _is_all(report, each) else f"{len(each.names):,}"
        odd.append(_OF_WHOLE[each.kind].format(count_of_it))
    shown = f"; {', '.join(odd)}" if odd else ""
    return f"{report.expression}: {', '.join(said)}{shown}"


def _float_dtypes(root: Node) -> list[str]:
    """The dtypes that one asks about: counters of steps and the like are integers."""
    return [each for each in root.dtypes if "float" in each] or list(root.dtypes)


def _is_all(report: ModelReport, odd: Oddity) -> bool:
    return odd.kind == "frozen" and not report.root.trainable


def _parts(report: ModelReport) -> Iterator[Part]:
    """The tree, what it takes, what to do; then all levels and all that is odd."""
    whole = report.root
    noun = "parameters" if _counts_parameters(report) else "elements"
    root = _branch(report, whole, whole)
    caption = f"{noun.capitalize()} and bytes of each part, and its share of the bytes"
    tree = Tree(caption, (noun, ""), _opened(root))
    if whole.children:
        yield tree
    if len(_float_dtypes(whole)) > 1 or len(whole.devices) > 1:
        yield _amounts(report)
    if not report.complete:
        yield Note("warning", "the walk was cut short: there is more than is counted")
    yield from filter(None, (_note(report, each) for each in report.odd))
    yield from (Note("note", remark) for remark in report.remarks)
    if whole.children:
        everything = replace(tree, root=_cut(root, [_MOST_ALL_LINES]), whole=True)
        yield AllLevels("The whole tree", (everything,), "tree")
    if report.odd:
        yield Details("All that is odd", tuple(_odd(report)), "odd")
    said = _HOW_VALUES if report.values else _HOW
    yield how(Paragraph(f"{said}\n{_ONCE}"))


def _counts_parameters(report: ModelReport) -> bool:
    return report.kind.startswith("module") and report.root.parameters > 0


def _branch(report: ModelReport, node: Node, whole: Node) -> Branch:
    """One node as a line; several alike in a row are one."""
    below: list[Branch] = []
    for _, same in groupby(node.children, key=_alike):
        run = list(same)
        lines = [_branch(report, each, whole) for each in run]
        if len(run) > 1 and _is_empty(run[0]):
            names = listed([each.name for each in run], most=_NAMED_AT_MOST)
            below.append(replace(lines[0], name=names, below=tuple(lines)))
        elif len(run) > 1 and run[0].children and run[0].name[-1:].isdigit():
            below.append(_together(report, run, lines[0], whole))
        else:
            below += lines
    name = node.kind if node.size is None else shape_text(node.size)
    return Branch(
        f"{node.name} {name}".rstrip(),
        (f"{_count(report, node):,}", bytes_text(node.stored_bytes)),
        node.stored_bytes / whole.stored_bytes if whole.stored_bytes else 0.0,
        _said(report, node),
        tuple(below),
    )


def _is_empty(node: Node) -> bool:
    return not (node.tensors or node.children or node.same_as)


def _together(
    report: ModelReport, run: Sequence[Node], first: Branch, whole: Node
) -> Branch:
    """Parts in a row that are built alike: one line, and the first of them below."""
    stored = sum(each.stored_bytes for each in run)
    count = sum(_count(report, each) for each in run)
    last = run[-1].name
    number = last[len(last.rstrip("0123456789")) :]
    return replace(
        first,
        name=f"{run[0].name} to {number}: {len(run)} x {run[0].kind or 'alike'}",
        figures=(f"{count:,}", bytes_text(stored)),
        share=stored / whole.stored_bytes if whole.stored_bytes else 0.0,
    )


def _count(report: ModelReport, node: Node) -> int:
    return node.parameters if _counts_parameters(report) else node.elements


def _alike(node: Node) -> Hashable:
    """The same for nodes that differ in their names alone, or hold nothing."""
    if _is_empty(node):
        return ()
    within = tuple((each.name, _alike(each)) for each in node.children)
    return replace(node, name="", children=()), within


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


def _opened(root: Branch) -> Branch:
    """The tree with as many lines open as a screen takes."""
    opened = {id(root)}
    count = 1 + len(root.below)
    if count > _MOST_LINES:
        shown, others = root.below[: _MOST_LINES - 2], root.below[_MOST_LINES - 2 :]
        share = sum(each.share for each in others)
        more = Branch(f"{len(others):,} more", ("", ""), share, "", others)
        return replace(root, below=(*shown, more), is_open=True)
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


def _cut(branch: Branch, left: list[int]) -> Branch:
    """The tree with so many lines at most, and a word where it was cut."""
    left[0] -= 1
    below = []
    for number, inner in enumerate(branch.below):
        if left[0] <= 0:
            rest = len(branch.below) - number
            below.append(Branch(f"{rest:,} more", ("", ""), 0.0))
            break
        below.append(_cut(inner, left))
    return replace(branch, below=tuple(below))


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


def _note(report: ModelReport, odd: Oddity) -> Note | None:
    """What an oddity means, and what to type; None where there is nothing to do."""
    paths = _paths(report, odd.names)
    names, first = listed(paths, most=_NAMED_AT_MOST), paths[0]
    said = odd.said[0] if odd.said else ""
    kind: NoteKind = "note"
    hint = ""
    match odd.kind:
        case "NaN or inf":
            kind, text = "problem", f"{said} in {first}"
            # What an optimizer remembers has no path that could be typed.
            hint = "" if "[...]" in first else f"%tensor_info --values {first}"
        case "several devices":
            kind = "warning"
            text = f"tensors lie on {listed(report.root.devices)}: {names} {said}"
            if report.kind.startswith("module"):
                most = report.types[0].name.rpartition(" ")[2]
                hint = f"{report.expression}.to({most!r})"
        case "several dtypes":
            text = f"of another dtype: {names} {said}"
        case "not registered":
            kind, name = "warning", first.rpartition(".")[2]
            text = f".to() leaves {names} where it is, as it is no parameter or buffer"
            hint = f"self.register_buffer({name!r}, ...)"
        case "tied":
            other = _paths(report, [said.removeprefix("is ")])[0]
            text = f"{first} is {other}: counted once"
        case _:
            share = f"{odd.elements:,} of {report.root.parameters:,}"
            count = count_text(len(odd.names), "tensor")
            text = f"{share} parameters require no gradients, in {count}"
    return None if _is_all(report, odd) else Note(kind, text, hint)


def _paths(report: ModelReport, paths: Sequence[str]) -> list[str]:
    return [f"{report.expression}{_as_code(path)}" for path in paths]


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
        pairs = list(zip(_paths(report, odd.names), said, strict=True))
        yield Table(odd.kind, columns, tuple(pairs[:_MOST_ODD]), len(pairs))
