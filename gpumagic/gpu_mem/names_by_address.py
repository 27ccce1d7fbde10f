"""Which names lie at which address of a device: the balance's, block by block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gpumagic.devices.storages import stored_by, without_overrides
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.library_held import workspace_addresses
from gpumagic.gpu_mem.naming import WORKSPACES, element_name, graph_name
from gpumagic.gpu_mem.reaching import names_in, reached_memory
from gpumagic.gpu_mem.records.names import HolderKind
from gpumagic.gpu_mem.roots import roots_of
from gpumagic.gpu_mem.walk import Budget, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.devices.storages import Stored
    from gpumagic.gpu_mem.roots import Root, Sources

_CONTAINERS = (list, tuple, dict)
_DEEPEST = 3  # containers within each other
_MOST_ELEMENTS = 1000


def names_by_address(sources: Sources) -> dict[int, tuple[str, ...]]:
    """The names of all that lies in the memory of one kind of device.

    A tensor has the expression that leads to it: `xs[3]`, `model.0.weight.grad`. What
    has none has the name that reaches it, as in the balance: `optimizer`, `Out[3]`,
    `loss.grad_fn`. The answer holds numbers and names alone.

    Args:
        sources: Where to look.
    """
    workspaces = dict.fromkeys(workspace_addresses(sources.kind), (WORKSPACES,))
    roots = roots_of(sources)
    variables = {
        root.name: root.values[0] for root in roots if root.kind is HolderKind.VARIABLE
    }
    reached = _as_in_the_balance(sources, roots)
    return {**workspaces, **reached, **addresses_of(variables)}


def addresses_of(namespace: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Which names lie at which address of a device.

    Counted are tensors, also in lists, tuples and dicts, and the parameters, their
    gradients and the buffers of modules. The answer holds numbers and names alone and
    keeps nothing alive. Names that begin with an underscore come last.

    Args:
        namespace: The names, such as `globals()`.
    """
    torch = loaded_torch()
    if torch is None:
        return {}
    found: dict[int, list[str]] = {}
    with without_overrides(torch):
        for name in sorted(namespace, key=lambda name: str(name).startswith("_")):
            _note_tensors(torch, str(name), namespace[name], found)
    return {address: tuple(names) for address, names in found.items()}


# ------------------------------------------------------------------- expressions


def _note_tensors(
    torch: Any, name: str, thing: Any, found: dict[int, list[str]]
) -> None:
    for part, tensor in _tensors_of(torch, name, thing):
        address = _address_of(torch, tensor)
        if address and part not in found.setdefault(address, []):
            found[address].append(part)


def _tensors_of(
    torch: Any, name: str, thing: Any, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The tensors of a value, each with the expression that leads to it."""
    kind = type(thing)  # a proxy may lie about its class, not about its type
    if issubclass(kind, torch.Tensor):
        yield name, thing
    elif issubclass(kind, torch.nn.Module):
        yield from _tensors_of_module(name, thing)
    elif any(kind is each for each in _CONTAINERS) and depth < _DEEPEST:
        pairs = list(thing.items()) if kind is dict else enumerate(thing)
        for number, (key, element) in enumerate(pairs):
            if number == _MOST_ELEMENTS:
                return
            part = element_name(key)
            if part is not None:
                yield from _tensors_of(torch, f"{name}{part}", element, depth + 1)


def _tensors_of_module(name: str, module: Any) -> Iterator[tuple[str, Any]]:
    with contextlib.suppress(Exception):  # a module may define these itself
        for part, parameter in module.named_parameters():
            yield from _with_gradient(f"{name}.{part}", parameter)
        for part, buffer in module.named_buffers():
            yield f"{name}.{part}", buffer


def _with_gradient(name: str, parameter: Any) -> Iterator[tuple[str, Any]]:
    yield name, parameter
    if parameter.is_leaf and parameter.grad is not None:
        yield f"{name}.grad", parameter.grad


def _address_of(torch: Any, tensor: Any) -> int | None:
    """Where the memory of a tensor on a device begins."""
    stored = stored_by(torch, tensor)
    return None if stored is None or stored.key.kind == "cpu" else stored.key.address


# ------------------------------------------------------------------- the balance


def _as_in_the_balance(
    sources: Sources, roots: list[Root]
) -> dict[int, tuple[str, ...]]:
    walk = Walk(loaded_torch(), Budget(), sources.left_out())
    starts = [_entered(walk, root) for root in roots]
    walk.run()
    memory = reached_memory(walk, starts, _of_kind(sources.kind))
    found: dict[int, tuple[str, ...]] = {}
    for key, reached in memory.values():
        if key.address not in found:
            bits, is_graph = reached.direct or reached.every, not reached.direct
            found[key.address] = tuple(
                _called(walk, roots[n], starts[n], is_graph=is_graph)
                for n in names_in(bits)
            )
    return found


def _entered(walk: Walk, root: Root) -> list[int]:
    numbers = [walk.enter(value) for value in root.values]
    return [number for number in numbers if number is not None]


def _of_kind(kind: str) -> Callable[[Stored], Stored | None]:
    return lambda stored: stored if stored.key.kind == kind else None


def _called(walk: Walk, root: Root, start: list[int], *, is_graph: bool) -> str:
    if not is_graph:
        return root.name
    return graph_name(root.name, is_tensor=walk.is_tensor(start[0]))
