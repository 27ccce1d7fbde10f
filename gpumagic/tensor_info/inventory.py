"""Walks what holds tensors: modules, optimizers, state dicts, lists and dicts.

Each tensor is read once, without an operation on it; what is kept of it are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import attributes_of, class_name, is_truly, spelled
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.objects import is_tensor, items_of, kind_of_container, read
from gpumagic.tensor_info.tensors import Memory, Reading, geometry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOKED_AT_MOST = 200_000
_DEEPEST = 60
_PLAIN = (int, float, str, bool, bytes, type(None))  # what most of a list may be

# A dict with a dot in a key is one of a module's: its keys are paths.
_DOT = "."


@dataclass
class Leaf:
    """A tensor that was found. What it has said of itself; not the tensor."""

    name: str
    path: str  # how to get at it from the whole, as code behind its name
    role: str  # "parameter", "buffer", "attribute", "state" or "tensor"
    reading: Reading
    identity: int | None  # tells apart what has no memory to be told apart by
    nan_count: int | None = None
    inf_count: int | None = None
    unread: str = ""  # why its values could not be read, where that was tried


@dataclass
class Branch:
    """A module or a container, with what lies in it in its order."""

    name: str
    kind: str
    within: list[Branch | Leaf] = field(default_factory=list)
    same_as: str = ""


def holds_tensors(thing: Any) -> str:
    """The word for what it is, if it is something that tensors are held in."""
    torch = torch_private.torch_if_imported()
    if torch is not None and is_truly(thing, torch.nn.Module):
        return f"module ({class_name(thing)})"
    if _is_optimizer(thing):
        return f"optimizer ({class_name(thing)})"
    word = kind_of_container(thing)
    if word == "dict" and _is_state_dict(thing):
        return "state dict"
    return word


def _is_optimizer(thing: Any) -> bool:
    kind = torch_private.optimizer_class()
    return kind is not None and is_truly(thing, kind)


def _is_state_dict(thing: Any) -> bool:
    items = list(dict.items(thing))
    named = all(type(key) is str for key, _ in items)
    dotted = any(type(key) is str and _DOT in key for key, _ in items)
    return named and dotted and any(is_tensor(value) for _, value in items)


class Walk:
    """One walk through all that something holds.

    Args:
        look: What to do with each tensor besides reading it, such as counting its
            NaNs; it may set the fields of the leaf.

    Attributes:
        leaves: The tensors, in the order in which they were found.

        complete: Whether all was looked at.
    """

    def __init__(self, look: Callable[[Any, Leaf], None] | None = None) -> None:
        self._torch = torch_private.torch_if_imported()
        self._look = look
        self._seen: dict[int, str] = {}
        self._left = _LOOKED_AT_MOST
        self.leaves: list[Leaf] = []
        self.complete = True
        self.remarks: list[str] = []

    def through(self, thing: Any, name: str) -> Branch:
        """All that lies in something, as a tree."""
        if self._torch is None:
            return self._branch(thing, name, "", 0)
        with torch_private.without_overrides(self._torch):
            return self._branch(thing, name, "", 0)

    def _branch(self, thing: Any, name: str, path: str, level: int) -> Branch:
        branch = Branch(name, self._kind(thing))
        if id(thing) in self._seen:
            branch.same_as = self._seen[id(thing)]
            return branch
        # What was made for this walk dies with it, and its number is given out again.
        if not isinstance(thing, _Made):
            self._seen[id(thing)] = path
        if level >= _DEEPEST:
            self.complete = False
            return branch
        for part, place, role, value in self._parts(thing):
            self._left -= 1
            if self._left < 0:
                self.complete = False
                break
            self._add(branch, (part, f"{path}{place}", role), value, level)
        return branch

    def _add(
        self, branch: Branch, where: tuple[str, str, str], value: Any, level: int
    ) -> None:
        part, path, role = where
        if type(value) in _PLAIN:
            return
        if is_tensor(value):
            leaf = self._leaf(part, path, role, value)
            _home(branch, part, role).within.append(leaf)
        elif role != "attribute" and holds_tensors(value):
            inner = self._branch(value, part, path, level + 1)
            if inner.within or inner.same_as or role == "module":
                branch.within.append(inner)

    def _leaf(self, name: str, path: str, role: str, value: Any) -> Leaf:
        reading = self._glance(value)
        leaf = Leaf(
            name.rpartition(_DOT)[2] if role == "entry" else name,
            path,
            "tensor" if role == "entry" else role,
            reading,
            torch_private.identity(value) if reading.memory is None else None,
        )
        if self._look is not None:
            self._look(value, leaf)
        self.leaves.append(leaf)
        return leaf

    def _glance(self, value: Any) -> Reading:
        """A plain tensor in a few look-ups; any other as it is always read."""
        torch = self._torch
        if torch is not None and type(value) in _plain_types(torch):
            try:
                found = _plain_reading(torch, value)
            except Exception:  # noqa: BLE001 - the other way says why, as a remark
                found = None
            if found is not None:
                return found
        return read(value, "x")

    def _kind(self, thing: Any) -> str:
        if isinstance(thing, _Made):
            return ""
        return kind_of_container(thing) or class_name(thing)

    def _parts(self, thing: Any) -> Iterator[tuple[str, str, str, Any]]:
        """Each part: its name, the code for it, its role, itself."""
        torch = self._torch
        if torch is not None and is_truly(thing, torch.nn.Module):
            yield from self._of_module(thing)
        elif _is_optimizer(thing):
            yield from _of_optimizer(thing)
        elif isinstance(thing, _Made):
            for number, (name, value) in enumerate(thing.items()):
                yield name, f"[{number}]", thing.role, value
        elif is_truly(thing, dict) and _is_state_dict(thing):
            for key, value in list(dict.items(thing)):
                yield str(key), f"[{spelled(key)}]", "entry", value
        else:
            for place, value in items_of(thing):
                yield place, place, "tensor", value

    def _of_module(self, module: Any) -> Iterator[tuple[str, str, str, Any]]:
        """Parameters, buffers, modules; then tensors that are none of these."""
        held = attributes_of(module) or {}
        for role, attribute in (
            ("parameter", "_parameters"),
            ("buffer", "_buffers"),
            ("module", "_modules"),
        ):
            for name, value in self._registered(module, held, attribute):
                if value is not None:
                    yield name, f".{name}", role, value
        tensors = (self._torch.Tensor,)
        for name, value in list(held.items()):
            if is_truly(value, tensors) and type(name) is str:
                yield name, f".{name}", "attribute", value

    def _registered(
        self, module: Any, held: dict[str, Any], attribute: str
    ) -> list[tuple[str, Any]]:
        try:
            found = held[attribute] if attribute in held else getattr(module, attribute)
            return [(str(name), value) for name, value in found.items()]
        except Exception:  # noqa: BLE001 - not yet set up, or the user's own
            self.remarks.append(f"a {class_name(module)} does not tell its {attribute}")
            return []


class _Made(dict[str, Any]):
    """Tensors that an optimizer holds in one role."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Its groups of parameters, then what it remembers of them, by what it is."""
    groups = list(getattr(optimizer, "param_groups", ()))
    names: dict[int, str] = {}
    for number, group in enumerate(groups):
        values = list(group.get("params", ()))
        found = group.get("param_names") or range(len(values))
        held = _Made("parameter")
        held.update(
            {str(name): each for name, each in zip(found, values, strict=False)}
        )
        names |= {id(each): name for name, each in held.items()}
        yield f"group {number}", f".param_groups[{number}]['params']", "group", held
    remembered: dict[str, _Made] = {}
    for of, state in list(getattr(optimizer, "state", {}).items()):
        name = names.get(id(of), str(len(names)))
        for key, value in list(state.items()) if is_truly(state, dict) else ():
            remembered.setdefault(str(key), _Made("state"))[name] = value
    for key, of_each in remembered.items():
        yield key, f".state[...][{key!r}]", "state", of_each


def _home(branch: Branch, key: str, role: str) -> Branch:
    """Where an entry of a state dict belongs: its key is a path of modules."""
    if role != "entry":
        return branch
    for part in key.split(_DOT)[:-1]:
        last = branch.within[-1] if branch.within else None
        if not (isinstance(last, Branch) and last.name == part):
            last = _named(branch, part)
        branch = last
    return branch


def _named(branch: Branch, part: str) -> Branch:
    for each in branch.within:
        if isinstance(each, Branch) and each.name == part:
            return each
    made = Branch(part, "")
    branch.within.append(made)
    return made


def _plain_types(torch: Any) -> tuple[type, ...]:
    return torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)


def _plain_reading(torch: Any, tensor: Any) -> Reading | None:
    """What an ordinary tensor says of itself; None where it is none after all."""
    device, kind = tensor.device, type(tensor)
    if tensor.layout is not torch.strided or tensor.is_nested or device.type == "meta":
        return None
    if torch_private.is_wrapped(torch, tensor):
        return None
    storage = torch.Tensor.untyped_storage(tensor)
    start = torch_private.storage_address(torch, tensor)
    size_bytes = int(storage.nbytes())
    if start is None or (tensor.numel() and not (start and size_bytes)):
        return None
    simulated, address = torch_private.simulated_memory(storage)
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    itemsize, offset = tensor.element_size(), tensor.storage_offset()
    where = str(device)
    memory = None
    if start and size_bytes:
        memory = Memory(where, start, size_bytes, address if simulated else start)
    return Reading(
        kind="parameter" if kind is torch.nn.Parameter else "tensor",
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=where,
        itemsize=itemsize,
        size=size,
        stride=stride,
        storage_offset=offset,
        geometry=geometry_of(size, stride, offset, itemsize),
        has_layout=True,
        memory=memory,
        storage_bytes=size_bytes,
        requires_grad=bool(tensor.requires_grad),
        on_accelerator=device.type != "cpu",
        simulated=simulated,
    )
