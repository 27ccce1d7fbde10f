"""Puts stand-ins in the place of torch's names: like them in all but what they do.

torch and the programs on it look at names as well as calling them: they ask whether
something is a class, read its `__wrapped__`, pickle it by its name. So whatever is
put in has the name, the module, the text, the signature and the kind of what it
stands for. Two kinds cannot be made in Python and become the nearest one that can: a
function of C becomes a plain one, an attribute of C a property that knows its name.

Where torch has kept a copy of what is replaced, the copy is exchanged as well; and so
is on the way out whatever was copied meanwhile, for much of torch is imported late.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ABSENT: Any = object()
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)
_ATTRIBUTES_OF_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CACHED = type(functools.cache(len))
_HIDING = {staticmethod, classmethod, _CACHED}  # what may hold a function inside
_TABLES = (dict, set, list)
_EMPTY = {str, int, bool, type(None), types.ModuleType, *_FUNCTIONS}  # hold none of it
_COMPILER = "torch._dynamo."
_REMEMBERING = ("torch._dynamo.variables.", "torch._dynamo.trace_rules")


class StandIns:
    """All that is put in at one time, and taken out together.

    Args:
        torch: The module.

        undo: Takes everything out again.

        beneath: Those among which these are put; they are taken out right behind
            these, which saves a look through all of torch.
    """

    def __init__(
        self,
        torch: Any,
        undo: contextlib.ExitStack,
        beneath: StandIns | None = None,
    ) -> None:
        self._torch = torch
        self._undo = undo
        self._beneath = beneath
        self._above: list[tuple[Any, Any]] = []  # pairs that are out, but for copies
        # By the original's id: both, so that no id is used again meanwhile.
        self._pairs: dict[int, tuple[Any, Any]] = {}
        undo.callback(self._forget)

    def put(self, target: Any, name: str, replacement: Any) -> None:
        """Put one into a module or a class; torch may have no such name."""
        original = _lying_in(target, name)
        if original is _ABSENT:  # a module may answer for others
            original = getattr(target, name, _ABSENT)
        if name in vars(target):
            self._undo.callback(setattr, target, name, original)
        else:
            self._undo.callback(delattr, target, name)
        setattr(target, name, self._stand_in(original, replacement, target, name))

    def put_known(self, target: Any, replacements: dict[str, Any]) -> None:
        """Put several in, as far as this torch has their names."""
        for name, replacement in replacements.items():
            if hasattr(target, name):
                self.put(target, name, replacement)

    def follow(self) -> None:
        """Exchange the copies that torch has kept, once everything is put in."""
        _exchange({key: pair[1] for key, pair in self._pairs.items()})

    def _stand_in(self, original: Any, replacement: Any, target: Any, name: str) -> Any:
        if original is _ABSENT:
            return replacement
        if id(original) in self._pairs:
            return self._pairs[id(original)][1]  # one name in several places
        made = like(original, replacement, target, name)
        if callable(original):
            self._pairs[id(original)] = original, made
            self._let_torch_know(original, made)
        return made

    def _let_torch_know(self, original: Any, made: Any) -> None:
        """What torch's tables say of one of its functions holds for its stand-in."""
        from torch.jit import _builtins
        from torch.utils import _device

        operator = _builtins._find_builtin(original)
        if operator is not None:
            table = _builtins._get_builtin_table()
            table[id(made)] = operator
            self._undo.callback(table.pop, id(made), None)
        known = _device._device_constructors()
        if type(original) in _FUNCTIONS and original in known:
            known.add(made)
            self._undo.callback(known.discard, made)

    def _forget(self) -> None:
        if self._beneath is not None:
            self._beneath._above += self._pairs.values()
        else:
            wanted = {id(made): original for original, made in self._pairs.values()}
            for original, made in self._above:
                wanted[id(made)] = wanted.get(id(original), original)
            _exchange(wanted)
        self._above.clear()
        self._pairs.clear()


def _lying_in(target: Any, name: str) -> Any:
    """What lies there under a name, bound to nothing; `_ABSENT` if nothing does."""
    if type(target) is types.ModuleType and name in vars(target):
        return vars(target)[name]
    if isinstance(target, type):
        for each in target.__mro__:
            if name in vars(each):
                return vars(each)[name]
    return inspect.getattr_static(target, name, _ABSENT)


# ---------------------------------------------------------------------- likeness


def like(original: Any, replacement: Any, target: Any, name: str) -> Any:
    """What does as the replacement does, and is otherwise as the original is."""
    if isinstance(original, (staticmethod, classmethod)):
        inner = getattr(replacement, "__func__", replacement)
        return type(original)(_function(original.__func__, inner, target, name))
    if isinstance(original, type) and isinstance(replacement, type):
        return _class(original, replacement)
    if isinstance(original, (property, *_ATTRIBUTES_OF_C)):
        return Attribute(original, replacement)
    if callable(original) and inspect.isroutine(replacement):
        return _function(original, replacement, target, name)
    return replacement


class Attribute(property):
    """A property in the place of an attribute, which it resembles."""

    def __init__(self, original: Any, replacement: property) -> None:
        super().__init__(replacement.fget, replacement.fset, replacement.fdel)
        for name in ("__name__", "__qualname__", "__objclass__", "__doc__"):
            value = getattr(original, name, _ABSENT)
            if value is not _ABSENT:
                setattr(self, name, value)

    def __reduce__(self) -> Any:
        known = vars(self)
        return getattr, (known["__objclass__"], known["__name__"])


def _class(original: type, replacement: type) -> type:
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(replacement, name, getattr(original, name))
    if isinstance(replacement, ClassOfBoth):
        replacement.original = original
    return replacement


class ClassOfBoth(type):
    """The class of one that stands in for its base: it owns the base's objects, too.

    torch has made some already, such as the CPU's source of random numbers.
    """

    original: type

    def __instancecheck__(cls, value: object) -> bool:
        return super().__instancecheck__(value) or (
            isinstance(value, vars(cls).get("original", ()))
        )

    def __subclasscheck__(cls, other: type) -> bool:
        return super().__subclasscheck__(other) or (
            issubclass(other, vars(cls).get("original", ()))
        )


def _function(
    original: Any, replacement: Callable[..., Any], target: Any, name: str
) -> Any:
    made: Any = _copy(replacement)
    for each in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(made, each, getattr(original, each, None))
    # What contextlib and functools have noted there, `__wrapped__` above all.
    vars(made).update(getattr(original, "__dict__", {}))
    if not isinstance(original, types.FunctionType) and "__wrapped__" not in vars(made):
        # Functions of C are pickled by the object they are bound to; ours by a name.
        is_class = isinstance(target, type)
        made.__module__ = target.__module__ if is_class else target.__name__
        made.__qualname__ = f"{target.__qualname__}.{name}" if is_class else name
    elif not hasattr(made, "__signature__"):
        made.__signature__ = _signature(original)
    if hasattr(original, "cache_clear"):
        # Nothing is remembered: what is asked for may change.
        made = functools.update_wrapper(functools.lru_cache(maxsize=0)(made), original)
        made.__wrapped__ = original.__wrapped__
    return made


@functools.lru_cache(maxsize=256)  # a hundred of torch's own; stand-ins come and go
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one's own, whose name can be changed; it costs no call."""
    if isinstance(function, types.FunctionType):
        copied = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied

    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        return function(*args, **options)

    return call


@contextlib.contextmanager
def saving_and_loading(
    torch: Any,
    priority: int,
    tag: Callable[[Any], str | None],
    restore: Callable[[Any, str], Any],
) -> Iterator[None]:
    """While this is entered, torch asks these two where a storage lies, and puts it."""
    serialization = torch.serialization
    serialization.register_package(priority, tag, restore)
    registry = serialization._package_registry
    entry = next(each for each in registry if each[2] is restore)
    try:
        yield
    finally:
        registry.remove(entry)


# ------------------------------------------------------------------------ copies


def _exchange(wanted: dict[int, Any]) -> None:
    """Exchange objects wherever torch's modules keep them, by their ids."""
    ids = frozenset(wanted)
    compiler = []
    for module in _modules():
        name, words = module.__name__, vars(module)
        if name.startswith(_COMPILER):
            compiler.append(module)
        if ids.isdisjoint(map(id, tuple(words.values()))):
            continue  # nearly all: they have a hundred thousand names
        in_c = name.startswith("torch._C")  # how others reach torch's C++
        for word, value in tuple(words.items()):
            if id(value) in ids and not (in_c and not isinstance(value, type)):
                setattr(module, word, wanted[id(value)])
    _exchange_in_compiler(compiler, wanted, ids)


def _exchange_in_compiler(
    modules: Iterable[Any], wanted: dict[int, Any], ids: frozenset[int]
) -> None:
    """It also keeps them in classes, tables and caches, which many modules import."""
    tables: dict[int, Any] = {}
    caches: dict[int, Any] = {}
    for module in modules:
        for value in tuple(vars(module).values()):
            kind = type(value)
            if kind in _EMPTY:
                continue
            if kind in _TABLES:
                tables[id(value)] = value
            elif kind is _CACHED:
                caches[id(value)] = value
            elif isinstance(value, type) and value.__module__ == module.__name__:
                _exchange_in_class(value, wanted, ids)
    for table in tables.values():
        _exchange_in_table(table, wanted, ids)
    for function in caches.values():
        _forget_what_was_found(function)


def _exchange_in_class(
    where: type, wanted: dict[int, Any], ids: frozenset[int]
) -> None:
    values = tuple(vars(where).values())
    if ids.isdisjoint(map(id, values)) and _HIDING.isdisjoint(map(type, values)):
        return
    for name, value in tuple(vars(where).items()):
        inner = getattr(value, "__func__", value)
        if id(value) in ids:
            setattr(where, name, wanted[id(value)])
        elif isinstance(value, staticmethod) and id(inner) in ids:
            setattr(where, name, staticmethod(wanted[id(inner)]))
        _forget_what_was_found(inner)


def _forget_what_was_found(function: Any) -> None:
    """The compiler's tables of torch's functions are made once, and kept by caches."""
    if type(function) is _CACHED and function.__module__.startswith(_REMEMBERING):
        function.cache_clear()


def _exchange_in_table(table: Any, wanted: dict[int, Any], ids: frozenset[int]) -> None:
    if ids.isdisjoint(map(id, table)):
        return
    exchanged = [wanted.get(id(each), each) for each in table]
    if isinstance(table, dict):
        exchanged = list(zip(exchanged, table.values(), strict=True))
    table.clear()
    (table.extend if isinstance(table, list) else table.update)(exchanged)


def _modules() -> Iterator[Any]:
    for name, module in tuple(sys.modules.items()):
        if name.startswith("torch.") and type(module) is types.ModuleType:
            yield module
