"""How fast a batch comes to the device, in four ways, and what the link allows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.in_use import link_in_use
from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.report import CopyMode, Link, Remark, Samples
from gpumagic.report import robust
from gpumagic.report.units import share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gpumagic.devices.protocols import Driver, GpuLink, Runtime

_WARM_UPS = 2
_ROUNDS, _FEWEST_ROUNDS = 20, 3
_MOST_KEPT = 2
_FRESH = 3  # each pins the batch anew, and all stay pinned until the last is done
_MOST_FRESH_BYTES = 512 << 20
_LARGEST_BYTES, _SMALLEST_BYTES = 256 << 20, 4 << 20
_SIMULATED_BYTES = 16 << 20  # the model is linear, and the bytes are really moved
_SHARE_OF_ROOM = 8
_LINK_WARM_UPS, _LINK_COPIES = 3, 12
_WATCHED_S = 0.1  # the link is read while copies run for so long
# One way, of one lane, after the encoding of the bytes.
_LANE_BYTES_PER_S = {
    1: 0.25e9,
    2: 0.5e9,
    3: 0.985e9,
    4: 1.969e9,
    5: 3.938e9,
    6: 7.563e9,
}
_C2C_BYTES_PER_S = 450e9
_LEAST_SHARE = 0.7  # sound links reach 77 to 91 %
_NODES = Path("/sys/devices/system/node")


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


class Buffers(NamedTuple):
    """Pinned memory of the host and as much of the device."""

    host: Any
    device: Any


def measure_link(
    runtime: Runtime,
    device: int,
    driver: Driver | None,
    *,
    room_bytes: int | None = None,
) -> Link:
    """Copy one large pinned buffer again and again, and read the link meanwhile.

    Args:
        runtime: The device's kind, started, for which memory can be pinned.

        device: Its number.

        driver: Tells of the link; None knows nothing.

        room_bytes: How much memory of the host is to spare; an eighth is used at most.
    """
    buffers = _buffers(runtime, device, room_bytes)
    if buffers is None:
        told = None if driver is None else link_in_use(driver, runtime, device)
        return described(told)
    rate = _rate(buffers, runtime, device)

    def during() -> None:
        for _ in range(1 if runtime.simulated else _so_many(buffers, rate)):
            buffers.device.copy_(buffers.host, non_blocking=True)

    told = None if driver is None else link_of(driver, runtime, device, during)
    return described(told, rate, own_nodes=own_nodes())


def _so_many(buffers: Buffers, rate: float | None) -> int:
    """Copies that take long enough for somebody to look at the link meanwhile."""
    return max(round(_WATCHED_S * rate / buffers.host.nbytes), 1) if rate else 1


def _buffers(runtime: Runtime, device: int, room_bytes: int | None) -> Buffers | None:
    """As large as there is room for; None if not even a small one can be had."""
    import torch

    place = torch.device(runtime.kind, device)
    for nbytes in _sizes(runtime, device, room_bytes):
        with contextlib.suppress(DeviceError, RuntimeError, MemoryError):
            host = runtime.pin(torch.empty(nbytes, dtype=torch.uint8))
            return Buffers(host, torch.empty(nbytes, dtype=torch.uint8, device=place))
    return None


def _sizes(runtime: Runtime, device: int, room_bytes: int | None) -> Iterator[int]:
    nbytes = _SIMULATED_BYTES if runtime.simulated else _LARGEST_BYTES
    free = runtime.memory_bytes(device)
    rooms = [room_bytes, None if free is None else free[0]]
    most = min(
        (room // _SHARE_OF_ROOM for room in rooms if room is not None), default=0
    )
    while nbytes >= _SMALLEST_BYTES:
        if not most or nbytes <= most:
            yield nbytes
        nbytes //= 2


def _rate(buffers: Buffers, runtime: Runtime, device: int) -> float | None:
    """Bytes in a second, by the device's own clock."""
    stream = runtime.current_stream(device)
    seconds = []
    for turn in range(_LINK_WARM_UPS + _LINK_COPIES):
        start = runtime.record(stream)
        buffers.device.copy_(buffers.host, non_blocking=True)
        took_s = runtime.elapsed_s(start, runtime.record(stream))
        if turn >= _LINK_WARM_UPS and took_s:
            seconds.append(took_s)
    return buffers.host.nbytes / robust.median(seconds) if seconds else None


def link_of(
    driver: Driver, runtime: Runtime, device: int, during: Callable[[], object]
) -> GpuLink | None:
    """What the driver tells of a link at work: an idle one goes down to the first.

    Args:
        driver: Is asked.

        runtime: The device's kind.

        device: Its number.

        during: Submits copies that are still under way when it returns.
    """
    runtime.synchronize()
    during()
    try:
        return link_in_use(driver, runtime, device)
    finally:
        runtime.synchronize()


def described(
    told: GpuLink | None,
    ceiling_bytes_per_s: float | None = None,
    *,
    own_nodes: Collection[int] | None = None,
) -> Link:
    """A link with what a reader has to know of it.

    Args:
        told: By the driver, while copies ran.

        ceiling_bytes_per_s: What one large pinned copy reached.

        own_nodes: The memory nodes whose processors this process may use.
    """
    if told is None:
        return Link(ceiling_bytes_per_s=ceiling_bytes_per_s)
    name, theory = name_and_theory(told)
    return Link(
        name=name,
        theory_bytes_per_s=theory,
        ceiling_bytes_per_s=ceiling_bytes_per_s,
        generation=told.generation,
        width=told.width,
        most_generation=told.most_generation,
        most_width=told.most_width,
        numa_node=told.numa_node,
        remarks=(
            *(() if told.c2c else _downgrades(told)),
            *_far_away(told, own_nodes),
            *_slow(name, theory, ceiling_bytes_per_s),
        ),
    )


def name_and_theory(told: GpuLink) -> tuple[str | None, float | None]:
    """What a link is called, and how many bytes it may carry in a second, one way."""
    if told.c2c:
        return "NVLink-C2C", _C2C_BYTES_PER_S
    if told.generation is None:
        return None, None
    lane = _LANE_BYTES_PER_S.get(told.generation)
    if told.width is None:
        return f"PCIe Gen{told.generation}", None
    name = f"PCIe Gen{told.generation} x{told.width}"
    return name, None if lane is None else lane * told.width


def own_nodes(nodes: Path = _NODES) -> frozenset[int] | None:
    """The memory nodes whose processors this process may use; None where unknown.

    Args:
        nodes: The folder where Linux lists them.
    """
    try:
        allowed = os.sched_getaffinity(0)
        return frozenset(_nodes_with(allowed, nodes)) or None
    except (OSError, ValueError, AttributeError):  # another system than Linux
        return None


def _nodes_with(processors: set[int], nodes: Path) -> Iterator[int]:
    for folder in sorted(nodes.glob("node[0-9]*")):
        if processors & set(_numbers((folder / "cpulist").read_text())):
            yield int(folder.name.removeprefix("node"))


def _numbers(text: str) -> Iterator[int]:
    """What `0-3,8` lists."""
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


# ------------------------------------------------------------------- remarks


def _downgrades(told: GpuLink) -> Iterator[Remark]:
    if told.width and told.most_width and told.width < told.most_width:
        yield Remark(
            f"the link uses {told.width} of {told.most_width} lanes",
            "move the card to another slot or seat it anew: a riser, or a second card "
            "on the same lanes, can take them",
        )
    now, most = told.generation, told.most_generation
    if now and most and now < most:
        yield Remark(
            f"the link runs at Gen{now} while copying, and could run at Gen{most}",
            "look at the speed of the slot in the BIOS, and at `nvidia-smi -q` for "
            "what holds the link down",
        )


def _far_away(told: GpuLink, own: Collection[int] | None) -> Iterator[Remark]:
    node = told.numa_node
    if node is None or own is None or node in own:
        return
    where = ", ".join(map(str, sorted(own)))
    yield Remark(
        f"this process runs on memory node {where}, and the GPU is attached to {node}",
        f"start Jupyter with numactl --cpunodebind={node} --membind={node}",
    )


def _slow(
    name: str | None, theory: float | None, ceiling: float | None
) -> Iterator[Remark]:
    if theory is None or ceiling is None or ceiling >= _LEAST_SHARE * theory:
        return
    share = share_text(ceiling / theory)
    yield Remark(
        f"one large pinned copy reaches {ceiling / 1e9:.3g} GB/s, {share} of what "
        f"{name} allows",
        "77 to 91 % is usual: look for other work on the same link, for a far memory "
        "node, and for limits of a virtual machine",
    )
