"""What a node of torch's autograd graph keeps for a backward pass.

Looking must not unpack: unpacking runs the user's hooks, and under checkpointing a
whole forward pass. Newer torch tells what lies there as it is (`SavedTensor.data`).
Of an older one a saved tensor is unpacked with Python code forbidden meanwhile: where
a hook would have to run, it does not, and nothing is told of that tensor.
"""

# ruff: noqa: SLF001 -- one of the modules that are meant to look inside torch

from __future__ import annotations

import sys
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_RAW = "_raw_saved_"
_UNPACKED, _UNPACKED_BY_USERS = "_saved_", "saved_"  # by a function of the user's own


class NodeWords(NamedTuple):
    """How nodes of one class are asked: by what torch itself has put there."""

    edges: Callable[[Any], Any]  # the nodes that come next in a backward pass
    # the leaf that a node at the end adds a gradient to
    variable: Callable[[Any], Any] | None
    # what is kept for the backward pass, not unpacked, or None
    saved: tuple[Callable[[Any], Any], ...]
    unpacked: tuple[Callable[[Any], Any], ...]  # the same things, unpacked


class Kept(NamedTuple):
    """What one node keeps."""

    things: list[Any]  # nodes, tensors, and what the user's hooks have packed
    hidden: int  # how many saved tensors could not be looked at


def words_of(node_class: type) -> NodeWords | None:
    """How nodes of this class are asked; None if it is no class of nodes.

    No attribute of the user's is taken for torch's: those of torch are written in C.
    """
    found: dict[str, Any] = {}
    for base in reversed(type.__getattribute__(node_class, "__mro__")):
        found |= {
            name: each
            for name, each in type.__getattribute__(base, "__dict__").items()
            if type(each) is GetSetDescriptorType
        }
    if "next_functions" not in found or "metadata" not in found:
        return None
    get = {name: each.__get__ for name, each in found.items()}
    saved = sorted(name.removeprefix(_RAW) for name in get if name.startswith(_RAW))
    unpacked = [
        get.get(_UNPACKED + name) or get.get(_UNPACKED_BY_USERS + name)
        for name in saved
    ]
    return NodeWords(
        edges=get["next_functions"],
        variable=get.get("variable"),
        saved=tuple(get[_RAW + name] for name in saved),
        unpacked=tuple(each for each in unpacked if each is not None),
    )


def kept_by(torch: Any, node: Any, words: NodeWords) -> Kept:
    """What a node keeps; nothing is run, and what a backward pass has freed is gone."""
    things = [each for each, _ in words.edges(node) if each is not None]
    if words.variable is not None:
        things.append(words.variable(node))
    saved, hidden = (
        _as_it_lies(node, words) if tells_saved(torch) else _unpacked(node, words)
    )
    return Kept([*things, *saved], hidden)


def tells_saved(torch: Any) -> bool:
    """Whether this torch tells what was saved without unpacking it."""
    saved = getattr(getattr(torch._C, "_autograd", None), "SavedTensor", None)
    return hasattr(saved, "data")


def _as_it_lies(node: Any, words: NodeWords) -> Kept:
    things = []
    for get in words.saved:
        for saved in _several(_answer(get, node)):
            # The hooks may hold memory as well, as those of checkpointing do.
            things += [_attribute(saved, "data"), _attribute(saved, "unpack_hook")]
    return Kept([each for each in things if each is not None], 0)


def _unpacked(node: Any, words: NodeWords) -> Kept:
    things, stopped = [], _NoPythonCode()
    for get in words.unpacked:
        before = sys.getprofile()
        sys.setprofile(stopped)  # no call of ours from here on: it would end as well
        try:
            found = get(node)
        except RuntimeError:  # as below, or a hook that was not run
            found = None
        finally:
            sys.setprofile(before)
        things += _several(found)
    return Kept([each for each in things if each is not None], stopped.count)


def _answer(get: Callable[[Any], Any], node: Any) -> Any:
    try:
        return get(node)
    except RuntimeError:  # freed by a backward pass, or changed since it was saved
        return None


def _attribute(saved: Any, name: str) -> Any:
    try:
        return getattr(saved, name, None)
    except RuntimeError:
        return None


def _several(found: Any) -> list[Any]:
    return list(found) if type(found) in (tuple, list) else [found]


class _PythonCode(RuntimeError):
    """Stands in for Python code that was about to run."""


class _NoPythonCode:
    """A profiler under which a function written in Python ends before it begins."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            self.count += 1
            raise _PythonCode
