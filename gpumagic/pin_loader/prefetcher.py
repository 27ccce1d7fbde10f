"""The prefetcher copies batches to the device before they are asked for.

It has a stream of its own for that. A batch that comes by there may be treated like one
that was made on the stream it is handed out to, by `.to(device)`. Three things see to
that:

- That stream waits for the event behind the batch's copy, and for nothing younger.
- The memory of a batch belongs to the copy stream, so freeing it does not wait for
  those who used it. They are waited for before any memory of that stream is used
  again: in front of each copy, and once more when an iteration ends. What is still
  alive then tells the allocator its user, for it is freed when nobody looks.
- The host's memory stays until the device has read it. torch sees to that for what it
  has pinned itself, and for nothing else; on XPU not even for pageable memory.

What a loader that pins has passed through, since its class has no `pin_memory()`, is
pinned here, before it is sent.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from gpumagic.devices.opening import best_device, import_torch, open_runtime
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.storages import tensors_within
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader import trial
from gpumagic.pin_loader.batch import mapped, tensors_in, to_device

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRACE_S = 5.0  # for workers to end after an error, as torch itself allows one

# torch hands out the streams of a pool in turn, the 33rd is the first again. Few ask
# for urgent ones, and a copy is not served any sooner for it.
_PRIORITY = -1

_WORDS = ("Stream", "Event", "stream", "current_stream")  # Apple's MPS lacks some

T = TypeVar("T")


_KEPT_HERE = frozenset({"loader", "depth", "_asked", "_idle"})  # else the loader's
_AHEAD = ("state_dict", "load_state_dict")  # by as many batches as are under way


class DevicePrefetcher:
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
    and shares nothing with others. Other threads than the one that iterates may use a
    batch if they say so by `record_stream`. `len()` and whatever else is asked of it,
    or set, is the loader's own, but for `state_dict`, which would be a batch ahead.

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

    Raises:
        GpuMagicError: There is no such device, or the depth is not a number from 0 up.
    """

    def __init__(self, loader: Any, device: Any = None, *, depth: int = 1) -> None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
            raise GpuMagicError(
                f"{depth!r} is no depth of prefetching",
                "say how many batches to copy ahead: 1, or 0 for none",
            )
        self.loader = loader
        self.depth = depth
        self._idle: dict[Any, list[Lane]] = {}  # by device: in no iteration now
        self._asked = None if device is None else known_device(device)

    @property
    def device(self) -> Any:
        """Where batches go, as a `torch.device`; without a number before the start."""
        return current(self._asked or best_device())

    @property
    def passes_through(self) -> str:
        """Why nothing is copied ahead on this kind of device; empty where it is."""
        return why_no_stream(import_torch(), (self._asked or best_device()).type)

    def __repr__(self) -> str:
        ways = "passing through"
        if not self.passes_through:
            ways = f"{self.depth or 'none'} ahead"
        inside = f"{type(self.loader).__name__}, {self.device}, {ways}"
        return f"{type(self).__name__}({inside})"

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        # A copy that is not filled yet would ask itself for its loader.
        if name.startswith("__") or name in _AHEAD or "loader" not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _KEPT_HERE or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:  # kept here, it would silently mean nothing
            setattr(self.loader, name, value)

    def __iter__(self) -> Iterator[Any]:
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
            kept = [iterator for *_, iterator in trial.kept_iterators(self.loader)]
            if not any(each is inner for each in (self.loader, *kept)):
                trial.close([inner], set(), _GRACE_S)
            raise
        finally:
            del inner

    def _on_their_way(self, inner: Iterator[Any]) -> Iterator[Any]:
        device = self._asked or best_device()
        if device.type == "cpu":
            return inner
        alone = bool(self.passes_through)
        if alone or self.depth == 0:
            # On MPS a copy that is not waited for may read what is no longer there.
            move = functools.partial(to_device, device=device, non_blocking=not alone)
            return map(move, inner)
        return self._copied_ahead(inner, current(device, start=True))

    def _copied_ahead(self, inner: Iterator[Any], device: Any) -> Iterator[Any]:
        idle = self._idle.setdefault(device, [])
        lane = _usable(idle) or Lane(import_torch(), device)
        lane.most_leaving = self.depth + 1
        under_way = map(lane.send, map(Pinning(self.loader), inner))
        del inner
        try:
            yield from map(lane.hand_over, looking_ahead(under_way, self.depth))
        finally:
            del under_way
            lane.end()
            idle.append(lane)


def _usable(idle: list[Lane]) -> Lane | None:
    """Take out the last one that is not of a machine that was switched off."""
    while True:
        try:
            lane = idle.pop()
        except IndexError:  # another thread may have taken the last one
            return None
        if lane.box is simulated_box():
            return lane


class Pinning:
    """Pins what a loader that pins has passed through; its first batch decides.

    A loader that was not asked to pin is taken at its word: to pin each batch in the
    thread of the loop costs as much as a copy from pageable memory.
    """

    def __init__(self, loader: Any) -> None:
        self._pins = bool(getattr(loader, "pin_memory", False))
        self._is_first = True

    def __call__(self, batch: Any) -> Any:
        """The batch, with all its tensors pinned where that is wanted."""
        if self._pins and self._is_first:
            self._pins = any(map(_could_be_pinned, tensors_in(batch)))
        self._is_first = False
        return mapped(batch, _pinned) if self._pins else batch


def _could_be_pinned(tensor: Any) -> bool:
    import torch

    dense = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return dense and tensor.nbytes > 0 and not tensor.is_pinned()


def _pinned(tensor: Any) -> Any:
    return tensor.pin_memory() if _could_be_pinned(tensor) else tensor


def known_device(asked: Any) -> Any:
    """What the user calls a device, as a `torch.device` that can be used here."""
    torch = import_torch()
    if isinstance(asked, int):
        return torch.device(best_device().type, asked)
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(
            f"{asked!r} is no device", 'say "cuda", "cuda:1" or the like'
        ) from error
    open_runtime(device.type)  # says why it cannot be used, if so
    return device


def current(device: Any, *, start: bool = False) -> Any:
    """The device with its number: where work of its kind goes by default.

    `start`: it may be started for it; one that has not been has no number yet.
    """
    torch = import_torch()
    if device.index is not None or device.type == "cpu":
        return device
    if start:
        return torch.device(device.type, getattr(torch, device.type).current_device())
    index = None
    with contextlib.suppress(GpuMagicError):  # a simulated one was switched off
        index = open_runtime(device.type).current_device()
    return device if index is None else torch.device(device.type, index)


def looking_ahead(items: Iterator[T], ahead: int) -> Iterator[T]:
    """Hand out an iterator's items in order, each when some after it have been taken.

    An error that is met ahead is raised when the items before it have been handed
    out, and no more is taken after it. An interrupt is not put off.
    """
    waiting: deque[T] = deque()
    failures: list[Exception] = []
    more = True
    while True:
        while more and len(waiting) <= ahead:
            try:
                waiting.append(next(items))
            except StopIteration:
                more = False
            except Exception as error:  # noqa: BLE001 -- raised in its turn, below
                failures, more = [error], False
        if not waiting:
            break
        # No name is given to it here: what it takes on the device is the caller's.
        yield waiting.popleft()
    if failures:
        raise failures.pop()  # a name for it would keep the error and this frame alive


def why_no_stream(torch: Any, kind: str) -> str:
    """Why batches for this kind of device cannot be copied ahead; empty if they can.

    Nothing is started to find out.
    """
    if kind == "cpu":
        return "batches are on the CPU already"
    module = getattr(torch, kind, None)
    if not all(hasattr(module, word) for word in _WORDS):
        return f"{kind} has no streams that could copy beside the computation"
    return ""


Sent = tuple[Any, Any]  # a batch on its way, and the event that it has arrived with


class Lane:
    """One copy stream of a device, for one iteration at a time.

    Making one starts the device.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self.most_leaving = 2  # batches of the host that may be on their way at once
        self._leaving: deque[tuple[Any, Any]] = deque()  # what the host has to keep
        self._module = getattr(torch, device.type)
        self.box = simulated_box()
        self.device = device
        self.stream = self._module.Stream(device=device, priority=_PRIORITY)
        self._used = self._module.Event()  # recorded anew for each wait
        self._consumers: dict[Any, None] = {}
        # What was handed out and is still alive, without keeping it so: a plain weak
        # reference can give a tensor that only C++ still holds.
        self._handed_out: list[tuple[Any, Any]] = []
        self._enough = 64  # then those that are gone are left out

    def send(self, batch: Any) -> Sent:
        """Begin to copy a batch; what is on the device already stays as it is."""
        while self._leaving and self._leaving[0][0].query():
            self._leaving.popleft()
        # Without a bound, a host that runs ahead would fill its memory with batches.
        # The wait costs nothing: the device has as many steps before it.
        self._wait_for_the_oldest(self.most_leaving)
        # What lies on a device already was made on the stream that is current now.
        self._consumers.setdefault(self._module.current_stream(self.device))
        self._wait_for_consumers()
        arrival = self._module.Event()
        if all(leaf.device == self.device for leaf in tensors_in(batch)):
            arrival.record(self.stream)
            return batch, arrival
        with self._module.stream(self.stream):
            try:
                there = to_device(batch, self.device)
            finally:  # an error may come when some of it is already on its way
                arrival.record(self.stream)
                self._leaving.append((arrival, batch))
        return there, arrival

    def hand_over(self, sent: Sent) -> Any:
        """The batch, for what the caller does from now on on the current stream."""
        from torch.utils.weak import TensorWeakRef

        batch, arrival = sent
        consumer = self._module.current_stream(self.device)
        consumer.wait_event(arrival)
        self._consumers.setdefault(consumer)
        leaves = map(TensorWeakRef, tensors_in(batch))
        self._handed_out += [(leaf, consumer) for leaf in leaves]
        if len(self._handed_out) > self._enough:
            alive = [each for each in self._handed_out if each[0]() is not None]
            self._handed_out, self._enough = alive, 2 * len(alive) + 64
        return batch

    def end(self) -> None:
        """An iteration ends: whoever uses memory of this stream next may do so.

        That need not be this lane: its stream comes from a pool of torch's.
        """
        with contextlib.suppress(RuntimeError, GpuMagicError):
            # The device may have failed, or be switched off: an iteration ends all
            # the same, and what has happened is told by the code that it happened to.
            self._wait_for_consumers()
            self._tell_the_allocator()
        self._handed_out.clear()
        self._consumers.clear()

    def _tell_the_allocator(self) -> None:
        """What is alive may be freed at any time from now on."""
        for reference, consumer in self._handed_out:
            leaf = reference()
            if leaf is not None:
                used_by(leaf, consumer)

    def _wait_for_consumers(self) -> None:
        for consumer in self._consumers:
            self._used.record(consumer)
            self.stream.wait_event(self._used)

    def _wait_for_the_oldest(self, most: int) -> None:
        """Until so many are left."""
        while len(self._leaving) > most:
            self._leaving.popleft()[0].synchronize()

    def __del__(self) -> None:
        # Whatever goes wrong this late: it must not come up in somebody else's code.
        with contextlib.suppress(Exception):
            self._wait_for_the_oldest(0)


def used_by(tensor: Any, stream: Any) -> None:
    """Tell the allocator that a stream uses a tensor, whatever it consists of."""
    for part in list(tensors_within(import_torch(), tensor)) or [tensor]:
        if part is not None and part.device.type != "cpu":
            part.record_stream(stream)
