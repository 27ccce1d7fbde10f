"""Reads the allocator's segments, and puts lines and names on their blocks.

Only torch's own allocator tells of them: CUDA's pools, and an allocator that was
plugged in, answer the question with an error.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_counters import allocator_backend
from gpumagic.devices.memory_history import users_spot
from gpumagic.devices.storages import TensorWords, stored_by, without_overrides
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.balance import (
    CountedMemory,
    blocks_of,
    names_in,
    search,
    workspaces,
)
from gpumagic.gpu_mem.counters import NATIVE
from gpumagic.gpu_mem.lines import places_beside
from gpumagic.gpu_mem.names import element_name, graph_name, roots_of
from gpumagic.gpu_mem.records import Block, BlockState, HolderKind, Segment
from gpumagic.report.introspection import attributes_of, is_truly, without_collecting
from gpumagic.report.places import line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.names import Root, Sources
    from gpumagic.report.places import CodeLine

    Entry = Mapping[str, Any]
    LineOf = Callable[[Sequence[Entry]], CodeLine | None]

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
_OTHER_ALLOCATOR = (
    "restart the kernel without PYTORCH_CUDA_ALLOC_CONF, and without "
    "change_current_allocator"
)


@without_collecting()
def segments_with_names(
    runtime: Runtime, sources: Sources
) -> tuple[Segment, ...] | None:
    """What lies where now; None where the allocator does not tell of it."""
    snapshot = runtime.memory_snapshot()
    if snapshot is None:
        return None
    return named(segments_of(snapshot), names_by_address(sources, snapshot))


def segments_of(
    snapshot: Sequence[Entry], line_of: LineOf | None = None
) -> tuple[Segment, ...]:
    """The segments of a memory snapshot of torch, by device and address."""
    streams = _small_numbers((s["device"], s.get("stream", 0)) for s in snapshot)
    pools = _small_numbers((0, _pool_id(each)) for each in snapshot)
    if line_of is None:
        places = places_beside(loaded_torch())

        def line_of(frames: Sequence[Entry]) -> CodeLine | None:
            spot = users_spot(frames, places)
            return None if spot is None else line_in(spot.file, spot.line)

    segments = []
    for each in snapshot:
        pool = _pool_id(each)
        is_default = pool == _DEFAULT_POOL
        segments.append(
            Segment(
                device=each["device"],
                address=each["address"],
                nbytes=each["total_size"],
                stream=streams[each["device"], each.get("stream", 0)],
                pool=str(each["segment_type"] if is_default else pools[0, pool]),
                expandable=bool(each.get("is_expandable", False)),
                blocks=tuple(
                    _block(block, start - each["address"], line_of)
                    for start, block in blocks_of(each)
                ),
            )
        )
    return tuple(sorted(segments, key=lambda each: (each.device, each.address)))


def _block(entry: Entry, offset: int, line_of: LineOf) -> Block:
    state, nbytes = _STATES[entry["state"]], entry["size"]
    if state is BlockState.FREE:  # size and line would be those of its last owner
        return Block(offset, nbytes, state)
    line = line_of(entry.get("frames") or ())
    return Block(offset, nbytes, state, entry.get("requested_size"), line=line)


def _pool_id(entry: Entry) -> tuple[int, ...]:
    return tuple(entry.get("segment_pool_id") or _DEFAULT_POOL)


def _small_numbers(things: Iterable[tuple[int, Any]]) -> dict[tuple[int, Any], int]:
    """Numbers in each group; a default, which is all zeros, has 0 to itself."""
    numbers: dict[tuple[int, Any], int] = {}
    for _, group in itertools.groupby(sorted(set(things)), key=lambda each: each[0]):
        others = itertools.count(1)
        for each in group:
            is_default = each[1] in (0, _DEFAULT_POOL)
            numbers[each] = 0 if is_default else next(others)
    return numbers


def named(
    segments: Iterable[Segment], addresses: Mapping[int, tuple[str, ...]]
) -> tuple[Segment, ...]:
    """The segments with the names of what lies in their blocks."""
    ordered = sorted(addresses)

    def names_in_block(start: int, nbytes: int) -> tuple[str, ...]:
        first = bisect_left(ordered, start)
        inside = ordered[first : bisect_left(ordered, start + nbytes, first)]
        return tuple(dict.fromkeys(name for at in inside for name in addresses[at]))

    return tuple(
        dataclasses.replace(
            segment,
            blocks=tuple(
                block
                if block.state is BlockState.FREE
                else dataclasses.replace(
                    block,
                    names=names_in_block(
                        segment.address + block.offset_bytes, block.nbytes
                    ),
                )
                for block in segment.blocks
            ),
        )
        for segment in segments
    )


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
    keys = {(key.device, key.address) for key in reached}
    libraries = workspaces(sources.kind, keys, None, lambda: snapshot)
    return {
        **{each.address: (each.name,) for each in libraries},
        **{key.address: names for key, names in reached.items()},
        **addresses_of(variables),
    }


def _as_in_the_balance(
    sources: Sources, roots: list[Root]
) -> dict[StorageKey, tuple[str, ...]]:
    values = (root.values for root in roots)
    counted = CountedMemory(sources.kind)
    walk, starts, memory = search(values, counted, left_out=sources.left_out())

    def called(number: int, *, is_graph: bool) -> str:
        name = roots[number].name
        is_tensor = walk.is_tensor(starts[number][0])
        return graph_name(name, is_tensor=is_tensor) if is_graph else name

    return {
        key: tuple(
            called(number, is_graph=not each.direct)
            for number in names_in(each.direct or each.every)
        )
        for key, each in memory.items()
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
    with without_overrides(torch):
        found = _addresses(torch, namespace)
    return {address: tuple(names) for address, names in found.items()}


def _addresses(torch: Any, namespace: Mapping[str, Any]) -> dict[int, dict[str, None]]:
    found: dict[int, dict[str, None]] = {}
    words = TensorWords(torch)
    for name in sorted(namespace, key=lambda name: name.startswith("_")):
        for part, tensor in _tensors_of(torch, words, name, namespace[name]):
            stored = stored_by(torch, tensor)
            if stored is not None and stored.key.kind != "cpu":
                found.setdefault(stored.key.address, {})[part] = None
    return found


def _tensors_of(
    torch: Any, words: TensorWords, name: str, thing: Any, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The tensors of a value, each with the expression that leads to it."""
    if is_truly(thing, torch.Tensor):
        yield name, thing
    elif is_truly(thing, torch.nn.Module):
        yield from _tensors_of_module(words, name, thing, set())
    elif any(type(thing) is each for each in _CONTAINERS) and depth < _DEEPEST:
        pairs = list(thing.items()) if type(thing) is dict else enumerate(thing)
        for key, element in itertools.islice(pairs, _MOST_ELEMENTS):
            part = element_name(key)
            if part is not None:
                inner = f"{name}{part}"
                yield from _tensors_of(torch, words, inner, element, depth + 1)


def _tensors_of_module(
    words: TensorWords, name: str, module: Any, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Its parameters, gradients and buffers; nothing that a module defines is run."""
    if id(module) in seen:
        return
    seen.add(id(module))
    for kind in ("_parameters", "_buffers", "_modules"):
        held = (attributes_of(module) or {}).get(kind)
        for part, each in list(held.items()) if type(held) is dict else ():
            if type(part) is not str or each is None:
                continue
            inner = f"{name}.{part}"
            if kind == "_modules":
                yield from _tensors_of_module(words, inner, each, seen)
                continue
            yield inner, each
            if kind == "_parameters" and words.is_leaf(each):
                gradient = words.grad(each)
                if gradient is not None:
                    yield f"{inner}.grad", gradient


# ------------------------------------------------------------------- why there are none


def why_unavailable(runtime: Runtime) -> tuple[str, str | None]:
    """Why a device in use has no list of blocks, and what to do."""
    backend = allocator_backend(runtime.kind)
    if backend in (None, NATIVE):
        return f"torch keeps no list of blocks for {runtime.kind}", None
    return f"the allocator {backend} keeps no list of its blocks", _OTHER_ALLOCATOR
