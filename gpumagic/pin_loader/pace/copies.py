"""The batch's own tensors copied to the device, in each of four ways, and pinned."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.records.rates import CopyMode
from gpumagic.pin_loader.records.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime

_WARM_UPS = 2
_ROUNDS, _FEWEST_ROUNDS = 20, 3
_MOST_KEPT = 2
_FRESH = 3  # each pins the batch anew, and all stay pinned until the last is done
_MOST_FRESH_BYTES = 512 << 20


def copy_modes(
    leaves: Sequence[Any], runtime: Runtime, device: int, *, budget_s: float
) -> tuple[CopyMode, ...]:
    """Copy them from pinned and from pageable memory, blocking and not, in turn.

    Both are copies of the batch, but for tensors that are pageable already. Where
    nothing can be pinned, one way is left.

    Args:
        leaves: Dense tensors on the host.

        runtime: The device's kind, started.

        device: Its number.

        budget_s: How long this may take. At least three copies in each way are
            timed, or one where making it once in each takes that long already.
    """
    import torch

    place = torch.device(runtime.kind, device)
    sources = {False: [_pageable(leaf, runtime) for leaf in leaves]}
    ways = [(False, True)]
    pinned_leaves = _pinned(leaves, runtime)
    if pinned_leaves is not None:
        sources[True] = pinned_leaves
        ways = [
            (pinned, blocks) for pinned in (False, True) for blocks in (True, False)
        ]
    timers = {way: _Timer(sources[way[0]], place, blocks=way[1]) for way in ways}
    for turn in turns(_ROUNDS, _WARM_UPS, budget_s):
        for timer in timers.values():
            timer.time(runtime, device, kept=turn >= 0)
    return tuple(
        CopyMode(pinned, blocks, *timers[pinned, blocks].samples())
        for pinned, blocks in ways
    )


def pin_copy(
    leaves: Sequence[Any], runtime: Runtime, *, budget_s: float
) -> Samples | None:
    """Copying the batch into pinned memory that is there, by one thread, as it is done.

    It is work of this machine's processor, simulated device or not.

    Returns:
        None where nothing can be pinned.
    """
    buffers = _pinned(leaves, runtime)
    if buffers is None:
        return None
    sources = [_pageable(leaf, runtime) for leaf in leaves]

    def copy() -> None:
        for buffer, source in zip(buffers, sources, strict=True):
            buffer.copy_(source)

    with one_thread():
        return Samples(tuple(_repeated(copy, perf_counter, budget_s)))


def fresh_pin(
    leaves: Sequence[Any], runtime: Runtime, *, budget_s: float
) -> Samples | None:
    """Pinning the batch in memory that has to be page-locked for it.

    On a simulated device locking takes the model's time, and copying this machine's.

    Returns:
        None where nothing can be pinned, or where that would pin too much.
    """
    import torch

    nbytes = sum(leaf.nbytes for leaf in leaves)
    if nbytes > _MOST_FRESH_BYTES or not runtime.can_pin():
        return None
    sources = [_pageable(leaf, runtime) for leaf in leaves]
    kept: list[Any] = []  # or torch would hand out the same memory again

    def pin() -> None:
        kept.append([runtime.pin(source) for source in sources])

    def now_s() -> float:
        modelled_s = runtime.now_ns() / 1e9 if runtime.simulated else 0.0
        return perf_counter() + modelled_s

    if not runtime.simulated:
        empty_host_cache(torch)  # or what was pinned a moment ago would be had again
    # A simulated machine cannot be told to give back: what it keeps is used up first.
    used = _MOST_KEPT if runtime.simulated else 0
    times = max(min(_FRESH, _MOST_FRESH_BYTES // max(nbytes, 1)), 1)
    try:
        with one_thread():
            return Samples(tuple(_repeated(pin, now_s, budget_s, times, warm_ups=used)))
    except DeviceError:  # no more memory can be locked
        return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread of the host, as in the thread that pins."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Timer:
    """One way to copy, timed again and again."""

    def __init__(self, sources: Sequence[Any], place: Any, *, blocks: bool) -> None:
        self._sources, self._place = sources, place
        self._non_blocking = not blocks
        self._host_s: list[float] = []
        self._device_s: list[float | None] = []

    def time(self, runtime: Runtime, device: int, *, kept: bool) -> None:
        runtime.synchronize()
        stream = runtime.current_stream(device)
        start, began_ns = runtime.record(stream), runtime.now_ns()
        there = [
            source.to(self._place, non_blocking=self._non_blocking)
            for source in self._sources
        ]
        ended_ns, end = runtime.now_ns(), runtime.record(stream)
        device_s = runtime.elapsed_s(start, end)
        runtime.synchronize()
        del there
        if kept:
            self._host_s.append((ended_ns - began_ns) / 1e9)
            self._device_s.append(device_s)

    def samples(self) -> tuple[Samples, Samples | None]:
        known = [each for each in self._device_s if each is not None]
        return Samples(tuple(self._host_s)), Samples(tuple(known)) if known else None


def _pinned(leaves: Sequence[Any], runtime: Runtime) -> list[Any] | None:
    if not runtime.can_pin():
        return None
    try:
        # A clone first: what is pinned already would be given back itself.
        return [runtime.pin(leaf.detach().clone()) for leaf in leaves]
    except DeviceError:
        return None


def _pageable(leaf: Any, runtime: Runtime) -> Any:
    leaf = leaf.detach()
    return leaf.clone() if runtime.is_pinned(leaf) else leaf


def turns(times: int, warm_ups: int, budget_s: float) -> Iterator[int]:
    """Number the turns of a measurement; those below 0 are to warm up.

    Three are made at least. Where the first of them all takes the time that there is,
    one more is made, which counts.

    Args:
        times: How many are wanted.

        warm_ups: How many come before them.

        budget_s: How long they may take.
    """
    began_s = perf_counter()
    if warm_ups:
        yield -warm_ups
    if perf_counter() - began_s > budget_s:
        yield 0
        return
    for turn in range(1 - warm_ups if warm_ups else 0, times):
        if turn >= _FEWEST_ROUNDS and perf_counter() - began_s > budget_s:
            return
        yield turn


def _repeated(
    action: Callable[[], None],
    now_s: Callable[[], float],
    budget_s: float,
    times: int = _ROUNDS,
    warm_ups: int = _WARM_UPS,
) -> Iterator[float]:
    for turn in turns(times, warm_ups, budget_s):
        started_s = now_s()
        action()
        took_s = now_s() - started_s
        if turn >= 0:
            yield took_s
