"""Reads the allocator's segments, and puts lines and names on their blocks.

Only torch's own allocator tells of them: CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.devices.memory_counters import allocator_backend
from gpumagic.devices.memory_history import users_spot
from gpumagic.devices.storages import stored_by, without_overrides
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.attribution import CountedMemory, names_in, search
from gpumagic.gpu_mem.counters import NATIVE
from gpumagic.gpu_mem.lines import places_beside
from gpumagic.gpu_mem.name_sources import element_name, graph_name, roots_of
from gpumagic.gpu_mem.records import Block, BlockState, HolderKind, Segment
from gpumagic.gpu_mem.workspaces import workspaces
from gpumagic.report.introspection import without_collecting
from gpumagic.report.places import line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.name_sources import Root, Sources
    from gpumagic.gpu_mem.walk import Walk
    from gpumagic.report.places import CodeLine, Places

Entry: TypeAlias = "Mapping[str, Any]"
LineOf: TypeAlias = "Callable[[Sequence[Entry]], CodeLine | None]"

_DEFAULT_POOL = (0, 0)
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # as older versions spell it
    "inactive": BlockState.FREE,
}
_CONTAINERS = (list, tuple, dict)
_DEEPEST = 3  # containers within each other
_MOST_ELEMENTS = 1000
_HINTS = {
    "cudaMallocAsync": "take PYTORCH_CUDA_ALLOC_CONF out of the environment and "
    "restart the kernel",
    "pluggable": "restart the kernel, and leave change_current_allocator out",
}


def segments_of(
    snapshot: Sequence[Entry],
    line_of: LineOf | None = None,
) -> tuple[Segment, ...]:
    """The segments of a memory snapshot of torch, by device and address."""
    streams = _small_numbers((s["device"], s.get("stream", 0)) for s in snapshot)
    pools = _small_numbers((0, pool) for pool in map(_pool_id, snapshot))
    if line_of is None:
        line_of = functools.partial(_line_of, places=places_beside(loaded_torch()))
    segments = (
        _segment(each, streams[each["device"], each.get("stream", 0)], pools, line_of)
        for each in snapshot
    )
    return tuple(sorted(segments, key=lambda each: (each.device, each.address)))


def named(
    segments: Iterable[Segment], addresses: Mapping[int, tuple[str, ...]]
) -> tuple[Segment, ...]:
    """The segments with the names of what lies in their blocks."""
    ordered = sorted(addresses)
    return tuple(
        dataclasses.replace(each, blocks=tuple(_with_names(each, ordered, addresses)))
        for each in segments
    )


# ------------------------------------------------------------- records of torch's


def _segment(
    entry: Entry,
    stream: int,
    pools: Mapping[tuple[int, Any], int],
    line_of: LineOf,
) -> Segment:
    pool = _pool_id(entry)
    blocks = entry.get("blocks", ())
    starts = itertools.accumulate((each["size"] for each in blocks), initial=0)
    return Segment(
        device=entry["device"],
        address=entry["address"],
        nbytes=entry["total_size"],
        stream=stream,
        pool=str(entry["segment_type"] if pool is _DEFAULT_POOL else pools[0, pool]),
        expandable=bool(entry.get("is_expandable", False)),
        blocks=tuple(
            _block(each, start, line_of)
            for each, start in zip(blocks, starts, strict=False)
        ),
    )


def _block(
    entry: Entry,
    start: int,
    line_of: LineOf,
) -> Block:
    state = _STATES[entry["state"]]
    if state is BlockState.FREE:  # size and line would be those of its last owner
        return Block(start, entry["size"], state)
    return Block(
        start,
        entry["size"],
        state,
        requested_bytes=entry.get("requested_size"),
        line=line_of(entry.get("frames") or ()),
    )


def _pool_id(entry: Entry) -> tuple[int, ...]:
    pool = tuple(entry.get("segment_pool_id") or _DEFAULT_POOL)
    return _DEFAULT_POOL if pool == _DEFAULT_POOL else pool


def _small_numbers(things: Iterable[tuple[int, Any]]) -> dict[tuple[int, Any], int]:
    """Numbers in each group; a default, which is all zeros, has 0 to itself."""
    numbers: dict[tuple[int, Any], int] = {}
    for _, group in itertools.groupby(sorted(set(things)), key=lambda each: each[0]):
        others = itertools.count(1)
        for each in group:
            is_default = each[1] in (0, _DEFAULT_POOL)
            numbers[each] = 0 if is_default else next(others)
    return numbers


# ------------------------------------------------------------------ lines and names


def _line_of(frames: Iterable[Entry], places: Places) -> CodeLine | None:
    """The user's line that asked for it, where torch has recorded the stack."""
    spot = users_spot(frames, places)
    return None if spot is None else line_in(spot.file, spot.line)


def _with_names(
    segment: Segment, ordered: list[int], addresses: Mapping[int, tuple[str, ...]]
) -> Iterator[Block]:
    for block in segment.blocks:
        start = segment.address + block.offset_bytes
        first = bisect_left(ordered, start)
        last = bisect_left(ordered, start + block.nbytes, first)
        inside = ordered[first:last] if block.state is not BlockState.FREE else []
        names = dict.fromkeys(name for each in inside for name in addresses[each])
        yield dataclasses.replace(block, names=tuple(names))


# --------------------------------------------------------------------- names by address


@without_collecting()
def names_by_address(
    sources: Sources, snapshot: Sequence[Entry]
) -> dict[int, tuple[str, ...]]:
    """The names of all that lies in the memory of one kind of device.

    A tensor has the expression that leads to it: `xs[3]`, `model.0.weight.grad`. What
    has none has the name that reaches it, as in the balance: `optimizer`, `Out[3]`,
    `loss.grad_fn`. The answer holds numbers and names alone.
    """
    roots = roots_of(sources)
    variables = {
        root.name: root.values[0]
        for root in roots
        if root.kind is HolderKind.VARIABLE and " in " not in root.name
    }
    reached = _as_in_the_balance(sources, roots)
    named = {(key.device, key.address) for key in reached}
    libraries = workspaces(sources.kind, named, None, lambda: snapshot)
    return {
        **{each.address: (each.name,) for each in libraries},
        **{key.address: names for key, names in reached.items()},
        **addresses_of(variables),
    }


def addresses_of(namespace: Mapping[str, Any]) -> dict[int, tuple[str, ...]]:
    """Which names lie at which address of a device.

    Counted are tensors, also in lists, tuples and dicts, and the parameters, their
    gradients and the buffers of modules. The answer holds numbers and names alone and
    keeps nothing alive. Names that begin with an underscore come last.
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
) -> dict[StorageKey, tuple[str, ...]]:
    counted = CountedMemory(sources.kind)
    walk, starts, memory = search(
        (root.values for root in roots), counted, left_out=sources.left_out()
    )
    names: dict[StorageKey, tuple[str, ...]] = {}
    for key, reached in memory.values():
        if key not in names:
            bits, is_graph = reached.direct or reached.every, not reached.direct
            names[key] = tuple(
                _called(walk, roots[n], starts[n], is_graph=is_graph)
                for n in names_in(bits)
            )
    return names


def _called(walk: Walk, root: Root, start: list[int], *, is_graph: bool) -> str:
    if not is_graph:
        return root.name
    return graph_name(root.name, is_tensor=walk.is_tensor(start[0]))


# ------------------------------------------------------------------- why there are none


class Untold(NamedTuple):
    """Why there is no list of blocks, and what to do."""

    problem: str
    hint: str | None


def why_untold(runtime: Runtime) -> Untold:
    """Why a device in use has no list of blocks."""
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return Untold(f"torch keeps no list of blocks for {runtime.kind}", None)
    return Untold(
        f"the allocator {backend} keeps no list of its blocks",
        _HINTS.get(str(backend)),
    )
