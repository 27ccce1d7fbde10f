"""Whether a loader fills memory again that is still being copied to the device.

A copy from pinned memory goes on while the loader works. torch hands out freed pinned
memory only when its copies are done; but a collate_fn that returns the same buffer
each time is asked by nobody. The same address in two batches is a hint. The proof is a
copy that is held up: if the loader changes what the copy has yet to read, or something
else arrives than was sent, training goes on with wrong data, and says nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.busy import Busy
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.batch import opened
from gpumagic.pin_loader.pinner import unwrapped
from gpumagic.pin_loader.report import Damaged, ReuseCheck
from gpumagic.pin_loader.trial import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.events import SeenRace

_DEEPEST = 20
_SHORTEST_DELAY_S, _LONGEST_DELAY_S = 0.02, 2.0
_TIMES_A_FETCH = 3.0  # so much longer than a fetch is the delay

_NO_STREAMS = "this kind of device has no streams on which a copy could be delayed"
_NOTHING_PINNED = "no tensor of its batches is pinned, so no copy goes on unwaited for"
_TOO_SLOW = "the loader is too slow: every delayed copy was done before the next batch"


class _Sent(NamedTuple):
    """A pinned tensor whose copy is held up, and what it was when it was sent."""

    path: str
    host: Any
    device: Any
    checksum: int


class _Flight(NamedTuple):
    """The tensors of one batch under way."""

    batch: int
    sent: list[_Sent]
    arrival: Any


def check(
    loader: Any, runtime: Runtime, *, device: int, batches: int = 8
) -> ReuseCheck:
    """Take some batches of a loader, and copy each behind a delay while it goes on.

    Args:
        loader: It is iterated: give a clone of the user's.

        runtime: The device's kind.

        device: Its number.

        batches: How many are taken at most.

    Returns:
        What was found. Host memory is looked at before and after, the device's after;
        a simulated machine tells of races besides.
    """
    stream = runtime.new_stream(device)
    if stream is None:
        return ReuseCheck(0, problem=_NO_STREAMS)
    watch = _Watch(runtime, device, stream)
    with collected_races(runtime) as races, batches_of(loader) as given:
        for count in range(batches):
            began_ns = runtime.now_ns()
            batch = next(given, None)
            if batch is None:
                break
            fetched_s = (runtime.now_ns() - began_ns) / 1e9
            watch.see(count, unwrapped(batch), fetched_s, races)
        # A loader that prepares ahead may fill a buffer when the next one is asked for.
        watch.end(races)
    return watch.found()


class _Watch:
    """Looks at batch after batch; the one before is kept, so that it is not freed."""

    def __init__(self, runtime: Runtime, device: int, stream: Any) -> None:
        self._runtime, self._device, self._stream = runtime, device, stream
        self._busy = Busy(runtime, device, name="delay")
        self._flight: _Flight | None = None
        self._held: list[tuple[str, Any]] = []
        self._batches = self._pinned = self._held_up = 0
        self._reused: dict[str, None] = {}
        self._damaged: dict[tuple[int, str], None] = {}

    def see(
        self, number: int, batch: Any, fetched_s: float, races: list[SeenRace]
    ) -> None:
        """A batch came, while the copy of the one before was held up."""
        self._batches = number + 1
        leaves = _pinned_leaves(batch, self._runtime)
        self._pinned += len(leaves)
        before, self._flight = self._flight, None
        self._compare_addresses(leaves)
        self._held = leaves
        if before is not None:
            self._judge(before, races)
        delay_s = _TIMES_A_FETCH * fetched_s
        if leaves and delay_s <= _LONGEST_DELAY_S:
            self._flight = self._send(number, leaves, max(delay_s, _SHORTEST_DELAY_S))

    def end(self, races: list[SeenRace]) -> None:
        """The last batch has nothing behind it: it only has to arrive."""
        before, self._flight = self._flight, None
        if before is not None:
            self._judge(before, races)
        self._runtime.synchronize()

    def found(self) -> ReuseCheck:
        """What it came to."""
        problem = None
        if not self._pinned:
            problem = _NOTHING_PINNED
        elif not self._held_up:
            problem = _TOO_SLOW
        damaged = tuple(Damaged(batch, path) for batch, path in self._damaged)
        known = damaged or (self._held_up and self._pinned)
        return ReuseCheck(
            batches=self._batches,
            reused=tuple(self._reused),
            damaged=damaged if known else None,
            problem=problem,
        )

    def _send(
        self, number: int, leaves: list[tuple[str, Any]], delay_s: float
    ) -> _Flight:
        import torch

        place = torch.device(self._runtime.kind, self._device)
        checksums = [_checksum(leaf) for _, leaf in leaves]
        with self._runtime.on_stream(self._stream):
            self._busy.submit(delay_s)
            there = [leaf.to(place, non_blocking=True) for _, leaf in leaves]
            arrival = self._runtime.record(self._stream)
        sent = [
            _Sent(path, leaf, target, checksum)
            for (path, leaf), target, checksum in zip(
                leaves, there, checksums, strict=True
            )
        ]
        return _Flight(number, sent, arrival)

    def _compare_addresses(self, leaves: list[tuple[str, Any]]) -> None:
        # The batch before is still held: torch cannot have freed its memory.
        held = {leaf.data_ptr() for _, leaf in self._held}
        for path, leaf in leaves:
            if leaf.data_ptr() in held:
                self._reused[path] = None

    def _judge(self, flight: _Flight, races: list[SeenRace]) -> None:
        """First the host, whose memory the copy has yet to read; then the device."""
        under_way = not self._runtime.reached(flight.arrival)
        changed = [
            sent for sent in flight.sent if _checksum(sent.host) != sent.checksum
        ]
        self._held_up += under_way
        self._runtime.wait(flight.arrival)
        with self._runtime.on_stream(self._stream):
            arrived = [(sent, _checksum(sent.device)) for sent in flight.sent]
        wrong = changed if under_way else []
        wrong += [sent for sent, checksum in arrived if checksum != sent.checksum]
        if races and not wrong:
            wrong = [sent for sent in flight.sent if sent.path in self._reused] or [
                *flight.sent
            ]
        races.clear()
        for sent in wrong:
            self._damaged[flight.batch, sent.path] = None


@contextlib.contextmanager
def collected_races(runtime: Runtime) -> Iterator[list[SeenRace]]:
    """The races of a simulated machine, without its warnings; elsewhere none."""
    watched: Any = contextlib.nullcontext([])
    if runtime.simulated:
        watched = runtime.watch_races()
    try:
        found = watched.__enter__()
    except DeviceError:  # it was told not to look for them
        yield []
        return
    try:
        yield found
    finally:
        watched.__exit__(None, None, None)


def _checksum(tensor: Any) -> int:
    """A sum over its bytes, by whatever device holds them."""
    import torch

    flat = tensor.detach().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    content = flat.view(torch.uint8)
    if content.storage_offset() % 8:
        content = content.clone()  # words begin at multiples of their size
    # They are summed up sixty times as fast; what would not fit wraps, here as there.
    end = content.numel() // 8 * 8
    words, rest = content[:end].view(torch.int64), content[end:]
    return int(words.sum()) + int(rest.sum(dtype=torch.int64))


def _pinned_leaves(batch: Any, runtime: Runtime) -> list[tuple[str, Any]]:
    """Tensors whose copies nobody waits for, with the way to each, each once."""
    import torch

    return [
        (path, leaf)
        for path, leaf in _named(batch, "batch", set(), torch.Tensor, _DEEPEST)
        if leaf.layout is torch.strided
        and leaf.device.type == "cpu"
        and leaf.nbytes
        and runtime.is_pinned(leaf)
    ]


def _named(
    thing: Any, path: str, seen: set[int], tensor_class: type, levels: int
) -> Iterator[tuple[str, Any]]:
    if id(thing) in seen or not levels:
        return
    seen.add(id(thing))
    if isinstance(thing, tensor_class):
        yield path, thing
        return
    parts = opened(thing, objects=True)
    if parts is None:
        return
    for key, value in zip(parts.keys, parts.values, strict=True):
        below = parts.path(path, key)
        yield from _named(value, below, seen, tensor_class, levels - 1)
