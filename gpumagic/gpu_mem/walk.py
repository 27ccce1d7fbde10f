"""Searches what Python objects keep alive, from the names of a notebook on.

Nothing of the user's is called: what an object refers to is asked of Python's garbage
collector, and of torch where its objects keep things that Python does not see. The
search ends at modules, classes and code, and at what belongs to the notebook itself.

What an object is, is told by its class alone. No attribute is read, and no `isinstance`
asked: both run code of the user's where an object is a proxy.
"""

from __future__ import annotations

import enum
import gc
import time
from collections import deque
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any

from gpumagic.devices import autograd_graph, storages
from gpumagic.devices.autograd_graph import words_of
from gpumagic.devices.storages import TensorWords
from gpumagic.report.introspection import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from gpumagic.devices.autograd_graph import NodeWords
    from gpumagic.devices.storages import Stored

_CLOCK_EVERY = 64  # objects
_MANY = 10_000  # elements: what holds more is looked into last
# By id: a metaclass may say that its classes are equal to others, or raise.
_CONTAINERS = frozenset(map(id, (list, tuple, dict, set, frozenset)))
_ENDS = (type, ModuleType, CodeType, GenericAlias, property)
# The notebook itself holds every name of the user's, and is nobody's name.
_NOTEBOOK = frozenset(("IPython", "ipykernel", "traitlets", "gpumagic"))


@dataclass(frozen=True)
class Budget:
    """How far a search may go."""

    objects: int = 200_000  # so many are looked at
    # so long it may work; what others take of a busy machine is not its own
    seconds: float = 0.15


ON_DEMAND = Budget(objects=1_000_000, seconds=1.0)  # it may take a while


class Walk:
    """Everything that was found, each object once, by number.

    It holds the objects themselves: let go of it before memory is looked at.

    Attributes:
        children: What each object refers to.

        stored: The memory of those that have some.

        roles: What tensors are used as.

        of_graph: The nodes of autograd's graphs.

        states: What optimizers remember of their parameters.

        hooks: What modules call before or after themselves.

        partial: Whether the budget was spent before everything was seen.

        hidden: How many saved tensors could not be looked at.

    Args:
        torch: The torch module; None where nobody has imported it.

        budget: How far to go.

        leave_out: The ids of objects that are not to be entered, such as the
            namespace itself.
    """

    def __init__(
        self,
        torch: Any | None,
        budget: Budget,
        leave_out: Collection[int] = (),
    ) -> None:
        self.children: list[list[int]] = []
        self.stored: dict[int, Stored] = {}
        self.roles: dict[int, Role] = {}
        self.of_graph: set[int] = set()
        self.states: list[int] = []
        self.hooks: list[int] = []
        self.partial = False
        self.hidden = 0
        self._torch = torch
        self._budget = budget
        self._kinds = _Kinds(torch)
        self._numbers = dict.fromkeys(leave_out, -1)
        self._objects: list[Any] = []
        self._kind_of: list[_ObjectKind] = []
        self._soon: deque[int] = deque()
        self._later: deque[int] = deque()
        self._until = 0.0
        self._words: Any = None if torch is None else TensorWords(torch)

    def __len__(self) -> int:
        return len(self._objects)

    def enter(self, thing: Any) -> int | None:
        """The number of an object; None where nothing can come of it."""
        known = self._numbers.get(id(thing))
        if known is not None:
            return known if known >= 0 else None
        kind = self._kinds.of(type(thing))
        is_container = id(type(thing)) in _CONTAINERS
        if kind is _ObjectKind.NOTHING or (is_container and not thing):
            return None
        number = self._numbers[id(thing)] = len(self._objects)
        self._objects.append(thing)
        self._kind_of.append(kind)
        self.children.append([])
        is_huge = is_container and len(thing) > _MANY
        (self._later if is_huge else self._soon).append(number)
        return number

    def run(self) -> None:
        """Look into all that was entered, and into all that is found by it.

        What lies near to the names comes first, so that one of them does not use up
        what was meant for all.
        """
        if self._torch is None:
            self._run()
        else:
            with storages.without_overrides(self._torch):
                self._run()

    def number_of(self, thing: Any) -> int | None:
        """The number of an object; None where it was not entered."""
        known = self._numbers.get(id(thing), -1)
        return known if known >= 0 else None

    def is_tensor(self, number: int) -> bool:
        """Whether it is a tensor."""
        return self._kind_of[number] is _ObjectKind.TENSOR

    def is_module(self, number: int) -> bool:
        """Whether it is a module of torch's, with tensors of its own."""
        return self._kind_of[number] is _ObjectKind.MODULE

    def _run(self) -> None:
        self._until = time.thread_time() + self._budget.seconds
        looks = self._ways_to_look()
        looked_into = 0
        while self._soon or self._later:
            if looked_into % _CLOCK_EVERY == 0 and self._is_spent():
                return
            looked_into += 1
            number = (self._soon or self._later).popleft()
            looks[self._kind_of[number]](number, self._objects[number])

    def _ways_to_look(self) -> dict[_ObjectKind, Callable[[int, Any], None]]:
        """Made anew: kept by the search itself they would keep it, and all it holds."""
        return {
            _ObjectKind.ANY: self._look_into_any,
            _ObjectKind.TENSOR: self._look_into_tensor,
            _ObjectKind.STORAGE: self._look_into_storage,
            _ObjectKind.NODE: self._look_into_node,
            _ObjectKind.FUNCTION: self._look_into_function,
            _ObjectKind.FRAME: self._look_into_frame,
            _ObjectKind.MODULE: self._look_into_module,
            _ObjectKind.OPTIMIZER: self._look_into_optimizer,
        }

    def _is_spent(self) -> bool:
        if len(self) > self._budget.objects or time.thread_time() > self._until:
            self.partial = True
        return self.partial

    # ------------------------------------------------------- what is looked into

    def _look_into_any(self, number: int, thing: Any) -> None:
        self._add(number, gc.get_referents(thing))

    def _look_into_tensor(self, number: int, tensor: Any) -> None:
        torch, words = self._torch, self._words
        self._note(number, storages.stored_by(torch, tensor))
        self._set_role(number, _role_of(torch, tensor))
        self._add(number, (*gc.get_referents(tensor), words.base(tensor)))
        if number not in self.stored:
            self._add(number, storages.tensors_within(torch, tensor))
        is_leaf = words.is_leaf(tensor)
        if is_leaf or words.retains_grad(tensor):
            self._look_into_gradient(number, words.grad(tensor))
        if not is_leaf:
            self._add(number, (words.grad_fn(tensor),))

    def _look_into_gradient(self, number: int, gradient: Any) -> None:
        """It is no object of Python's until somebody asks for it."""
        if gradient is not None:
            self._add(number, (gradient,))
            self._set_role(self.enter(gradient), Role.GRADIENT)

    def _look_into_storage(self, number: int, storage: Any) -> None:
        self._note(number, storages.stored_in(storage))

    def _look_into_node(self, number: int, node: Any) -> None:
        """A node of a graph, with what the user has put on it."""
        self.of_graph.add(number)
        self._add(number, gc.get_referents(node))
        words = self._kinds.words_of(type(node))
        if words is not None:
            kept = autograd_graph.kept_by(self._torch, node, words)
            self.hidden += kept.hidden
            self._add(number, kept.things)

    def _look_into_function(self, number: int, function: Any) -> None:
        """Its closure and defaults; not the names of the module that it is from."""
        names = function.__globals__, function.__builtins__
        self._add(number, _without(gc.get_referents(function), names))

    def _look_into_frame(self, number: int, frame: Any) -> None:
        """Its locals; `f_locals` is not read, since that would keep them alive."""
        names = frame.f_globals, frame.f_builtins
        self._add(number, _without(gc.get_referents(frame), names))

    def _look_into_module(self, number: int, module: Any) -> None:
        self._add(number, gc.get_referents(module))
        for buffer in _buffers_of(module):
            self._set_role(self.enter(buffer), Role.BUFFER)
        hooks = map(self.enter, _hooks_of(module))
        self.hooks += (each for each in hooks if each is not None)

    def _look_into_optimizer(self, number: int, optimizer: Any) -> None:
        self._add(number, gc.get_referents(optimizer))
        state = self.enter(_state_of(optimizer))
        if state is not None:
            self.states.append(state)

    # ------------------------------------------------------------ what is noted

    def _add(self, number: int, things: Iterable[Any]) -> None:
        children = self.children[number]
        for count, thing in enumerate(filter(gc.is_tracked, things), start=1):
            child = self.enter(thing)
            if child is not None:
                children.append(child)
            if count % _MANY == 0 and self._is_spent():
                return

    def _note(self, number: int, stored: Stored | None) -> None:
        if stored is not None:
            self.stored[number] = stored

    def _set_role(self, number: int | None, role: Role) -> None:
        if number is not None:
            self.roles[number] = min(role, self.roles.get(number, role))


def _without(things: list[Any], names: tuple[Any, ...]) -> Iterator[Any]:
    return (each for each in things if all(each is not one for one in names))


# ----------------------------------------------------- what kind of object something is


class _ObjectKind(enum.IntEnum):
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


class _Kinds:
    """The kinds of all classes that were met."""

    def __init__(self, torch: Any | None) -> None:
        self._torch_classes = () if torch is None else _classes_of(torch)
        # By id, because a metaclass may forbid to be hashed; the class is kept, so
        # that no other gets the same id.
        self._known: dict[int, tuple[_ObjectKind, type, NodeWords | None]] = {}

    def of(self, cls: type) -> _ObjectKind:
        """The kind of the objects of a class."""
        known = self._known.get(id(cls))
        return (known or self._learn(cls))[0]

    def words_of(self, cls: type) -> NodeWords | None:
        """How nodes of a graph are asked that are of this class."""
        known = self._known.get(id(cls))
        return (known or self._learn(cls))[2]

    def _learn(self, cls: type) -> tuple[_ObjectKind, type, NodeWords | None]:
        words = words_of(cls) if self._torch_classes else None
        kind = _ObjectKind.NODE if words is not None else self._kind(cls)
        self._known[id(cls)] = found = kind, cls, words
        return found

    def _kind(self, cls: type) -> _ObjectKind:
        if cls is FunctionType:
            return _ObjectKind.FUNCTION
        if cls is FrameType:
            return _ObjectKind.FRAME
        for base, kind in self._torch_classes:
            if issubclass(cls, base):
                return kind
        if issubclass(cls, _ENDS) or _package_of(cls) in _NOTEBOOK:
            return _ObjectKind.NOTHING
        return _ObjectKind.ANY


def _classes_of(torch: Any) -> tuple[tuple[type, _ObjectKind], ...]:
    return (
        (torch.Tensor, _ObjectKind.TENSOR),
        (torch.UntypedStorage, _ObjectKind.STORAGE),
        (torch.nn.Module, _ObjectKind.MODULE),
        (torch.optim.Optimizer, _ObjectKind.OPTIMIZER),
    )


def _package_of(cls: type) -> str:
    """The package that a class is from; a metaclass is not asked."""
    module = type.__getattribute__(cls, "__dict__").get("__module__")
    return module.partition(".")[0] if type(module) is str else ""


# ------------------------------------------------------------- what tensors are used as


class Role(enum.IntEnum):
    """The first that applies to memory is what its bytes are counted as."""

    PARAMETER = 0
    GRADIENT = 1
    BUFFER = 2
    OPTIMIZER_STATE = 3
    HOOK = 4
    OTHER = 5

    @property
    def words(self) -> str:
        """As it is shown."""
        return _WORDS[self]


_WORDS = {
    Role.PARAMETER: "parameters",
    Role.GRADIENT: "gradients",
    Role.BUFFER: "buffers",
    Role.OPTIMIZER_STATE: "optimizer state",
    Role.HOOK: "kept by hooks",
    Role.OTHER: "other tensors",
}


def _role_of(torch: Any, tensor: Any) -> Role:
    """What a tensor's class says of it."""
    is_parameter = issubclass(type(tensor), torch.nn.Parameter)
    return Role.PARAMETER if is_parameter else Role.OTHER


def _buffers_of(module: Any) -> list[Any]:
    """The buffers of a module, without those of the modules within it."""
    buffers: Any = (attributes_of(module) or {}).get("_buffers")
    return list(dict.values(buffers)) if issubclass(type(buffers), dict) else []


def _hooks_of(module: Any) -> Iterator[Any]:
    """What a module calls by itself, such as `_forward_hooks`."""
    for name, value in (attributes_of(module) or {}).items():
        if name.endswith("_hooks") and issubclass(type(value), dict) and len(value):
            yield value


def _state_of(optimizer: Any) -> Any:
    """What an optimizer remembers of its parameters."""
    return (attributes_of(optimizer) or {}).get("state")


def mark_roles(walk: Walk) -> None:
    """Tell the tensors that optimizers and hooks keep for themselves from others.

    The keys of an optimizer's memory are the parameters: these are not theirs.
    """
    _mark(walk, walk.states, Role.OPTIMIZER_STATE)
    _mark(walk, walk.hooks, Role.HOOK)


def _mark(walk: Walk, begins: Iterable[int], role: Role) -> None:
    """Up to the next tensors, and not through modules: these have tensors of theirs."""
    waiting = list(begins)
    seen = set(waiting)
    while waiting:
        for child in walk.children[waiting.pop()]:
            if child in seen:
                continue
            seen.add(child)
            if walk.is_tensor(child):
                walk.roles[child] = min(role, walk.roles.get(child, role))
            elif not walk.is_module(child):
                waiting.append(child)
