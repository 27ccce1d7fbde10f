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
from contextlib import nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any

from gpumagic.devices import storages
from gpumagic.devices.storages import TensorWords, words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from contextlib import AbstractContextManager

    from gpumagic.devices.storages import NodeWords, Stored

_CLOCK_EVERY = 64  # objects
_LEFT_OUT, _NEW = -1, -2  # in place of an object's number
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


IN_A_CELL = Budget()
ON_DEMAND = Budget(objects=1_000_000, seconds=1.0)  # it may take a while


class _Kind(enum.IntEnum):
    """How an object is looked into."""

    ANY = 0
    NOTHING = 1  # it is not
    TENSOR = 2
    STORAGE = 3
    NODE = 4  # of autograd's graph
    FUNCTION = 5
    FRAME = 6


class Walk:
    """Everything that was found, each object once, by number.

    It holds the objects themselves: let go of it before memory is looked at. The ids in
    `leave_out` are of objects that are not to be entered, such as the namespace itself.
    """

    def __init__(
        self,
        torch: Any | None,
        budget: Budget,
        leave_out: Collection[int] = (),
    ) -> None:
        self.children: list[list[int]] = []  # what each object refers to
        self.stored: dict[int, Stored] = {}  # the memory of those that have some
        self.of_graph: set[int] = set()  # the nodes of autograd's graphs
        self.partial = False  # whether the budget was spent too early
        self.hidden = 0  # how many saved tensors could not be looked at
        self._torch = torch
        self._budget = budget
        self._torch_classes: tuple[tuple[type, _Kind], ...] = ()
        self._tensors: Any = None
        self._nodes: dict[int, NodeWords] = {}  # by the id of their class
        self._quiet: AbstractContextManager[Any] = nullcontext()
        if torch is not None:
            self._tensors = TensorWords(torch)
            self._quiet = storages.without_overrides(torch)
            self._torch_classes = (
                (torch.Tensor, _Kind.TENSOR),
                (torch.UntypedStorage, _Kind.STORAGE),
            )
        # By id, because a metaclass may forbid to be hashed; the class is kept, so
        # that no other gets the same id.
        self._kinds: dict[int, tuple[_Kind, type]] = {}
        self._numbers = dict.fromkeys(leave_out, _LEFT_OUT)
        self._objects: list[Any] = []
        self._kind_of: list[_Kind] = []
        self._soon: deque[int] = deque()
        self._later: deque[int] = deque()
        self._until = 0.0

    def enter(self, thing: Any) -> int:
        """The number of an object; negative where nothing can come of it."""
        cls = type(thing)
        if id(thing) in self._numbers:
            return self._numbers[id(thing)]
        if id(cls) not in self._kinds:
            self._kinds[id(cls)] = self._kind(cls), cls
        kind, _ = self._kinds[id(cls)]
        size = len(thing) if id(cls) in _CONTAINERS else 1
        if kind is _Kind.NOTHING or not size:
            return _LEFT_OUT
        number = self._numbers[id(thing)] = len(self._objects)
        self._objects.append(thing)
        self._kind_of.append(kind)
        self.children.append([])
        (self._later if size > _MANY else self._soon).append(number)
        return number

    def run(self) -> None:
        """Look into all that was entered, and into all that is found by it.

        What lies near to the names comes first, so that one of them does not use up
        what was meant for all.
        """
        with self._quiet:
            self._run()

    def _run(self) -> None:
        self._until = time.thread_time() + self._budget.seconds
        looked_into = 0
        while self._soon or self._later:
            if looked_into % _CLOCK_EVERY == 0 and self._is_spent():
                return
            looked_into += 1
            number = (self._soon or self._later).popleft()
            thing = self._objects[number]
            match self._kind_of[number]:
                case _Kind.ANY:
                    self._add(number, gc.get_referents(thing))
                case _Kind.TENSOR:
                    self._look_into_tensor(number, thing)
                case _Kind.STORAGE:
                    if stored := storages.stored_in(thing):
                        self.stored[number] = stored
                case _Kind.NODE:
                    self._look_into_node(number, thing)
                case _Kind.FUNCTION:  # not the names of the module that it is from
                    self._add_all_but(number, thing.__globals__, thing.__builtins__)
                case _Kind.FRAME:  # reading `f_locals` would keep the locals alive
                    self._add_all_but(number, thing.f_globals, thing.f_builtins)

    def is_tensor(self, number: int) -> bool:
        """Whether it is a tensor."""
        return self._kind_of[number] is _Kind.TENSOR

    def _is_spent(self) -> bool:
        if (
            len(self._objects) > self._budget.objects
            or time.thread_time() > self._until
        ):
            self.partial = True
        return self.partial

    # ------------------------------------------------------- what is looked into

    def _look_into_tensor(self, number: int, tensor: Any) -> None:
        torch, words = self._torch, self._tensors
        self._add(number, (*gc.get_referents(tensor), words.base(tensor)))
        if stored := storages.stored_by(torch, tensor):
            self.stored[number] = stored
        else:
            self._add(number, storages.tensors_within(torch, tensor))
        is_leaf = words.is_leaf(tensor)
        if is_leaf or words.retains_grad(tensor):
            # It is no object of Python's until somebody asks for it.
            self._add(number, (words.grad(tensor),))
        if not is_leaf:
            self._add(number, (words.grad_fn(tensor),))

    def _look_into_node(self, number: int, node: Any) -> None:
        """A node of a graph, with what the user has put on it."""
        self.of_graph.add(number)
        self._add(number, gc.get_referents(node))
        kept = storages.kept_by(self._torch, node, self._nodes[id(type(node))])
        self.hidden += kept.hidden
        self._add(number, kept.things)

    # ------------------------------------------------------------ what is noted

    def _add(self, number: int, things: Iterable[Any]) -> None:
        children, known = self.children[number], self._numbers
        for count, thing in enumerate(filter(gc.is_tracked, things), start=1):
            child = known.get(id(thing), _NEW)
            if child == _NEW:
                child = self.enter(thing)
            if child >= 0:
                children.append(child)
            if count % _MANY == 0 and self._is_spent():
                return

    def _add_all_but(self, number: int, *names: Any) -> None:
        things = gc.get_referents(self._objects[number])
        ids = {*map(id, names)}
        self._add(number, [each for each in things if id(each) not in ids])

    # -------------------------------------------------- what kind of object it is

    def _kind(self, cls: type) -> _Kind:
        if cls is FunctionType:
            return _Kind.FUNCTION
        if cls is FrameType:
            return _Kind.FRAME
        for base, kind in self._torch_classes:
            if issubclass(cls, base):
                return kind
        if self._torch_classes and (words := words_of(cls)):
            self._nodes[id(cls)] = words
            return _Kind.NODE
        module = type.__getattribute__(cls, "__dict__").get("__module__")
        package = module.partition(".")[0] if type(module) is str else ""
        is_end = issubclass(cls, _ENDS) or package in _NOTEBOOK
        return _Kind.NOTHING if is_end else _Kind.ANY
