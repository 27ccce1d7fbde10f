"""What kind of object something is, told by its class alone.

No attribute of the object is read, and no `isinstance` asked: both run code of the
user's where an object is a proxy, or says that it is of another class.
"""

from __future__ import annotations

import enum
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GenericAlias,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

from gpumagic.devices.autograd_graph import words_of

if TYPE_CHECKING:
    from gpumagic.devices.autograd_graph import NodeWords

_ENDS = (type, ModuleType, CodeType, GenericAlias, property)
# The notebook itself holds every name of the user's, and is nobody's name.
_NOTEBOOK = frozenset(("IPython", "ipykernel", "traitlets", "gpumagic"))


class ObjectKind(enum.Enum):
    """How an object is looked into."""

    ANY = enum.auto()
    NOTHING = enum.auto()  # it is not
    TENSOR = enum.auto()
    STORAGE = enum.auto()
    NODE = enum.auto()  # of autograd's graph
    FUNCTION = enum.auto()
    FRAME = enum.auto()
    MODULE = enum.auto()  # torch.nn.Module
    OPTIMIZER = enum.auto()


class Kinds:
    """The kinds of all classes that were met.

    Args:
        torch: The torch module; None where nobody has imported it.
    """

    def __init__(self, torch: Any | None) -> None:
        self._torch_classes = () if torch is None else _classes_of(torch)
        # By id, because a metaclass may forbid to be hashed; the class is kept, so
        # that no other gets the same id.
        self._known: dict[int, tuple[ObjectKind, type, NodeWords | None]] = {}

    def of(self, cls: type) -> ObjectKind:
        """The kind of the objects of a class."""
        known = self._known.get(id(cls))
        return (known or self._learn(cls))[0]

    def words_of(self, cls: type) -> NodeWords | None:
        """How nodes of a graph are asked that are of this class."""
        known = self._known.get(id(cls))
        return (known or self._learn(cls))[2]

    def _learn(self, cls: type) -> tuple[ObjectKind, type, NodeWords | None]:
        words = words_of(cls) if self._torch_classes else None
        kind = ObjectKind.NODE if words is not None else self._kind(cls)
        self._known[id(cls)] = found = kind, cls, words
        return found

    def _kind(self, cls: type) -> ObjectKind:
        if cls is FunctionType:
            return ObjectKind.FUNCTION
        if cls is FrameType:
            return ObjectKind.FRAME
        for base, kind in self._torch_classes:
            if issubclass(cls, base):
                return kind
        if issubclass(cls, _ENDS) or _package_of(cls) in _NOTEBOOK:
            return ObjectKind.NOTHING
        return ObjectKind.ANY


def _classes_of(torch: Any) -> tuple[tuple[type, ObjectKind], ...]:
    return (
        (torch.Tensor, ObjectKind.TENSOR),
        (torch.UntypedStorage, ObjectKind.STORAGE),
        (torch.nn.Module, ObjectKind.MODULE),
        (torch.optim.Optimizer, ObjectKind.OPTIMIZER),
    )


def _package_of(cls: type) -> str:
    """The package that a class is from; a metaclass is not asked."""
    module = type.__getattribute__(cls, "__dict__").get("__module__")
    return module.partition(".")[0] if type(module) is str else ""
