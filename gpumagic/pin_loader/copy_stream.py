"""Copies to a device on a stream of their own, and the order round them.

A batch that comes by here may be treated like one that was made on the stream it is
handed out to, by `.to(device)`. Four things see to that:

- That stream waits for the event behind the batch's copy, and for nothing younger.
- The memory of a batch belongs to the copy stream, so freeing it does not wait for
  those who used it. They are waited for before any memory of that stream is used
  again: in front of each copy, and once more when an iteration ends. What is still
  alive then tells the allocator its user, for it is freed when nobody looks.
- The host's memory stays until the device has read it. torch sees to that for what it
  has pinned itself, and for nothing else; on XPU not even for pageable memory.
- Where `several_streams` says that others use or free a batch, a wait in front of the
  copy is too early: each batch tells the allocator its user when it is handed out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch import tensors_in, to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# torch hands out the streams of a pool in turn, the 33rd is the first again. Few ask
# for urgent ones, and a copy is not served any sooner for it.
_PRIORITY = -1

_WORDS = ("Stream", "Event", "stream", "current_stream")  # Apple's MPS lacks some

# A batch of another layout than torch.strided consists of several tensors, and only
# these can be told who uses them.
_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
    "torch.jagged": ("values", "offsets", "lengths"),
}


def why_no_stream(torch: Any, kind: str) -> str | None:
    """Why batches for this kind of device cannot be copied ahead; None if they can.

    Nothing is started to find out.
    """
    if kind == "cpu":
        return "batches are on the CPU already"
    module = getattr(torch, kind, None)
    if not all(hasattr(module, word) for word in _WORDS):
        return f"{kind} has no streams that could copy beside the computation"
    return None


class Sent(NamedTuple):
    """A batch on its way to the device, and the event that it has arrived with."""

    batch: Any
    arrival: Any
    objects: bool  # whether there may be tensors in objects of any class


class Lane:
    """One copy stream of a device, for one iteration at a time.

    Making one starts the device.

    Args:
        torch: The torch module itself.

        device: A `torch.device` with its number.

    Attributes:
        several_streams: Whether others than the thread that iterates use a batch, or
            free it.

        most_leaving: How many batches of the host may be on their way at once.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self.several_streams = False
        self.most_leaving = 2
        self._leaving: deque[tuple[Any, Any]] = deque()  # what the host has to keep
        self._module = getattr(torch, device.type)
        self._box = simulated_box()
        self.device = device
        self.stream = self._module.Stream(device=device, priority=_PRIORITY)
        self._used = self._module.Event()  # recorded anew for each wait
        self._consumers: dict[Any, None] = {}
        self._handed_out = HandedOut()

    def is_stale(self) -> bool:
        """Whether the simulated machine that it was made on has been switched off."""
        return self._box is not simulated_box()

    def send(self, batch: Any, *, objects: bool = False) -> Sent:
        """Begin to copy a batch; what is on the device already stays as it is."""
        self._let_go_of_what_has_left()
        leaves = tensors_in(batch, objects=objects)
        consumer = self._module.current_stream(self.device)
        if not self.several_streams or any(
            leaf.device.type != "cpu" for leaf in leaves
        ):
            # The second reason: what lies on a device was made on this stream.
            self._consumers.setdefault(consumer)
            self._wait_for_consumers()
        arrival = self._module.Event()
        if all(leaf.device == self.device for leaf in leaves):
            arrival.record(self.stream)
            return Sent(batch, arrival, objects)
        with self._module.stream(self.stream):
            try:
                there = to_device(batch, self.device, objects=objects)
            finally:  # an error may come when some of it is already on its way
                arrival.record(self.stream)
                self._leaving.append((arrival, batch))
        return Sent(there, arrival, objects)

    def hand_over(self, sent: Sent) -> Any:
        """The batch, for what the caller does from now on on the current stream."""
        consumer = self._module.current_stream(self.device)
        consumer.wait_event(sent.arrival)
        leaves = tensors_in(sent.batch, objects=sent.objects)
        if self.several_streams:
            for leaf in leaves:
                used_by(leaf, consumer)
        else:
            self._consumers.setdefault(consumer)
            self._handed_out.note(leaves, consumer)
        return sent.batch

    def end(self) -> None:
        """An iteration ends: whoever uses memory of this stream next may do so.

        That need not be this lane: its stream comes from a pool of torch's.
        """
        with contextlib.suppress(RuntimeError, GpuMagicError):
            # The device may have failed, or be switched off: an iteration ends all
            # the same, and what has happened is told by the code that it happened to.
            self._wait_for_consumers()
            self._handed_out.tell_the_allocator()
        self._consumers.clear()

    def _wait_for_consumers(self) -> None:
        for consumer in self._consumers:
            self._used.record(consumer)
            self.stream.wait_event(self._used)

    def _let_go_of_what_has_left(self) -> None:
        """Without a bound, a host that runs ahead would fill its memory with batches.

        Waiting for the oldest costs nothing: the device has as many steps before it.
        """
        while self._leaving and self._leaving[0][0].query():
            self._leaving.popleft()
        self._wait_for_the_oldest(self.most_leaving)

    def _wait_for_the_oldest(self, most: int) -> None:
        """Until so many are left."""
        while len(self._leaving) > most:
            self._leaving.popleft()[0].synchronize()

    def __del__(self) -> None:
        # Whatever goes wrong this late: it must not come up in somebody else's code.
        with contextlib.suppress(Exception):
            self._wait_for_the_oldest(0)


class HandedOut:
    """The tensors that were handed out and are still alive, without keeping them so."""

    def __init__(self) -> None:
        # A plain weak reference can give a tensor that only C++ still holds.
        from torch.utils.weak import TensorWeakRef

        self._reference = TensorWeakRef
        self._known: list[tuple[Any, Any]] = []
        self._enough = 64  # then those that are gone are left out

    def note(self, leaves: Sequence[Any], consumer: Any) -> None:
        """Tensors go to this stream."""
        self._known += [(self._reference(leaf), consumer) for leaf in leaves]
        if len(self._known) > self._enough:
            self._known = [each for each in self._known if each[0]() is not None]
            self._enough = 2 * len(self._known) + 64

    def tell_the_allocator(self) -> None:
        """Those that are alive may be freed at any time from now on."""
        known, self._known = self._known, []
        for reference, consumer in known:
            leaf = reference()
            if leaf is not None:
                used_by(leaf, consumer)


def used_by(tensor: Any, stream: Any) -> None:
    """Tell the allocator that a stream uses a tensor, whatever it consists of."""
    for part in _parts(tensor):
        if part.device.type != "cpu":
            part.record_stream(stream)


def _parts(tensor: Any) -> Iterator[Any] | Sequence[Any]:
    names = _PARTS.get(str(tensor.layout))
    if names is None:
        return (tensor,)
    parts = (getattr(tensor, name)() for name in names)
    return (part for part in parts if part is not None)  # most have no lengths
