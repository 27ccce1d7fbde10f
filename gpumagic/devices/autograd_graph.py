"""What a node of torch's autograd graph keeps for a backward pass.

Looking must not unpack: unpacking runs the user's hooks, and under checkpointing a
whole forward pass. Newer torch tells what lies there as it is (`SavedTensor.data`); of
an older one nothing is told of saved tensors.
"""

# ruff: noqa: SLF001 -- one of the modules that are meant to look inside torch

from __future__ import annotations

from operator import attrgetter
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_RAW = "_raw_saved_"
_DATA, _HOOK = attrgetter("data"), attrgetter("unpack_hook")


class NodeWords(NamedTuple):
    """How nodes of one class are asked: by what torch itself has put there."""

    edges: Callable[[Any], Any]  # the nodes that come next in a backward pass
    # the leaf that a node at the end adds a gradient to
    variable: Callable[[Any], Any] | None
    # what is kept for the backward pass, not unpacked
    saved: tuple[Callable[[Any], Any], ...]


class Kept(NamedTuple):
    """What one node keeps."""

    things: list[Any]  # nodes, tensors, and what the user's hooks have packed
    hidden: int  # how many saved tensors could not be looked at


def words_of(node_class: type) -> NodeWords | None:
    """How nodes of this class are asked; None if it is no class of nodes."""
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
    return NodeWords(
        edges=get["next_functions"],
        variable=get.get("variable"),
        saved=tuple(get[_RAW + name] for name in saved),
    )


def kept_by(torch: Any, node: Any, words: NodeWords) -> Kept:
    """What a node keeps; nothing is run, and what a backward pass has freed is gone."""
    things = [each for each, _ in words.edges(node) if each is not None]
    if words.variable is not None:
        things.append(words.variable(node))
    if not tells_saved(torch):
        return Kept(things, len(words.saved))
    for get in words.saved:
        found = _answer(get, node)
        for each in found if type(found) in (tuple, list) else [found]:
            # The hooks may hold memory as well, as those of checkpointing do.
            things += [_answer(_DATA, each), _answer(_HOOK, each)]
    return Kept([each for each in things if each is not None], 0)


def tells_saved(torch: Any) -> bool:
    """Whether this torch tells what was saved without unpacking it."""
    saved = getattr(getattr(torch._C, "_autograd", None), "SavedTensor", None)
    return hasattr(saved, "data")


def _answer(get: Callable[[Any], Any], node: Any) -> Any:
    try:
        return get(node)
    except (
        RuntimeError,
        AttributeError,
    ):  # freed by a backward pass, or changed since it was saved
        return None
