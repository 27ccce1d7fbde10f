"""Batches that lie on the device before they are asked for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.opening import best_device, import_torch
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch.adapter import is_wrapped, unwrapped
from gpumagic.pin_loader.batch.walker import to_device
from gpumagic.pin_loader.feeding.destination import current, known_device
from gpumagic.pin_loader.feeding.like_its_loader import LikeItsLoader
from gpumagic.pin_loader.feeding.looking_ahead import looking_ahead
from gpumagic.pin_loader.feeding.transport import Lane, Sent, why_no_stream
from gpumagic.pin_loader.trials import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRACE_S = 5.0  # for workers to end after an error, as torch itself allows one


class _UnderWay(NamedTuple):
    """A batch ahead, and the loader's state behind it."""

    sent: Sent
    state: Any


class DevicePrefetcher(LikeItsLoader):
    """A loader's batches on the device, each copied while the one before is used.

        for images, labels in DevicePrefetcher(loader):
            train(images, labels)  # as after .to(device), and sooner there

    The next batch is fetched, and its copy begun on a stream of its own, before one is
    handed out. For the copy to run beside the computation the loader has to give pinned
    memory (`pin_memory=True`). The price: the first batch comes after two have been
    loaded, and the dataset's random numbers for a batch are drawn before the step with
    the one before it, not after. On the device lie `depth` batches more than without;
    while one is fetched, that on which the loop still has a name counts as well.

    A batch may be treated like one that `.to(device)` has made on the stream that is
    current when it is handed out. An error of the loader is raised after the batches
    that come before it, and ends the iteration. Each iteration begins the loader anew
    and shares nothing with others. `len()` and whatever else is asked of it, or set,
    is the loader's own.

    On the CPU there is nothing to copy, and batches pass through. Apple's MPS has no
    streams: each batch is moved when it is asked for. `passes_through` says so. CUDA
    graphs read from fixed addresses, and every batch here has its own: copy it into the
    graph's input.

    Args:
        loader: What gives the batches: a DataLoader, or anything that can be iterated.

        device: Where to: "cuda", "cuda:1", a number, a `torch.device`. None is the
            current device of the best kind there is. It is first used when the first
            batch is asked for.

        depth: How many batches are under way beside the one in use. More than 1 helps
            only where loading takes now shorter, now longer than a step. 0 copies each
            batch when it is asked for, on the current stream.

        several_streams: Say True if batches are also used, or freed, by other threads
            than the one that iterates. Memory is then used again somewhat later.

    Raises:
        GpuMagicError: There is no such device, or the depth is not a number from 0 up.
    """

    kept_here = LikeItsLoader.kept_here | {
        "depth",
        "several_streams",
        "_asked",
        "_idle",
    }

    def __init__(
        self,
        loader: Any,
        device: Any = None,
        *,
        depth: int = 1,
        several_streams: bool = False,
    ) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
            raise GpuMagicError(
                f"{depth!r} is no depth of prefetching",
                "say how many batches to copy ahead: 1, or 0 for none",
            )
        super().__init__(loader)
        self._idle: dict[Any, list[Lane]] = {}  # by device: in no iteration now
        self._asked = None if device is None else known_device(device)
        self.depth = depth
        self.several_streams = several_streams

    # ------------------------------------------------------------ what it is

    @property
    def device(self) -> Any:
        """Where batches go, as a `torch.device`; without a number before the start."""
        return current(self._asked or best_device())

    @property
    def passes_through(self) -> str | None:
        """Why nothing is copied ahead on this kind of device; None where it is."""
        return why_no_stream(import_torch(), (self._asked or best_device()).type)

    def __repr__(self) -> str:
        ways = "passing through"
        if not self.passes_through:
            ways = f"{self.depth or 'none'} ahead"
        name, loader = type(self).__name__, self._loader_in_words()
        return f"{name}({loader}, {self.device}, {ways})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_idle": {}}

    # ---------------------------------------------------------------- batches

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        return self._batches(self._begun())

    def _begun(self) -> Iterator[Any]:
        """The loader's iterator; its pinning thread takes the device of this moment."""
        device = self._asked
        if device is None or device.index is None or self.passes_through:
            return iter(self.loader)
        with getattr(import_torch(), device.type).device(device):
            return iter(self.loader)

    def _batches(self, inner: Iterator[Any]) -> Iterator[Any]:
        """What one iteration of the loader gives, on the device."""
        try:
            yield from self._on_their_way(inner)
        except GeneratorExit:
            raise  # dropping the iterator, as a plain loop does, ends its workers
        except BaseException:
            # But the traceback of an error holds it, for as long as it is looked at.
            self._end_workers(inner)
            raise
        finally:
            del inner

    def _on_their_way(self, inner: Iterator[Any]) -> Iterator[Any]:
        device = self._asked or best_device()
        if device.type == "cpu":
            return map(unwrapped, inner)
        alone = self.passes_through is not None
        if alone or self.depth == 0:
            # On MPS a copy that is not waited for may read what is no longer there.
            move = functools.partial(_moved, device=device, non_blocking=not alone)
            return map(move, inner)
        return self._copied_ahead(inner, current(device, start=True))

    def _copied_ahead(self, inner: Iterator[Any], device: Any) -> Iterator[Any]:
        lane = self._lane_to(device)
        under_way = map(functools.partial(self._send, lane), inner)
        del inner
        try:
            yield from map(
                functools.partial(self._hand_over, lane),
                looking_ahead(under_way, self.depth),
            )
        finally:
            del under_way
            lane.end()
            self._idle.setdefault(device, []).append(lane)
        self._state = None  # from here on the loader's own is right

    def _send(self, lane: Lane, batch: Any) -> _UnderWay:
        return _UnderWay(
            lane.send(unwrapped(batch), objects=is_wrapped(batch)), self._state_now()
        )

    def _hand_over(self, lane: Lane, under_way: _UnderWay) -> Any:
        self._state = under_way.state
        return lane.hand_over(under_way.sent)

    def _lane_to(self, device: Any) -> Lane:
        """The lane of an earlier iteration, unless that is still going on."""
        lane = _usable(self._idle.get(device, [])) or Lane(import_torch(), device)
        lane.several_streams = self.several_streams
        lane.most_leaving = self.depth + 1
        return lane

    def _end_workers(self, inner: Iterator[Any]) -> None:
        kept = [each.iterator for each in leftovers.kept_iterators(self.loader)]
        if not any(each is inner for each in (self.loader, *kept)):
            leftovers.close([inner], set(), _GRACE_S)


def _usable(idle: list[Lane]) -> Lane | None:
    """Take out the last one that is not stale."""
    while True:
        try:
            lane = idle.pop()
        except IndexError:  # another thread may have taken the last one
            return None
        if not lane.is_stale():
            return lane


def _moved(batch: Any, *, device: Any, non_blocking: bool) -> Any:
    return to_device(
        unwrapped(batch), device, non_blocking=non_blocking, objects=is_wrapped(batch)
    )
