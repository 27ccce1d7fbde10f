"""Pinned memory: CPU tensors whose storage carries a mark, and copies of them.

torch offers no way to supply an allocator of pinned memory from Python. But the
operators that pin, and that ask for it, are ordinary ones: kernels for them on the
CPU key are in force in every thread, and gone when they are taken back. Nothing is
really page-locked; the mark is what the model of a copy needs to know.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.simulator.accesses import Accesses
from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.report.places import PlaceMark
    from gpumagic.simulator.accesses import Operand
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.races import Bytes

# The factories that can be asked for pinned memory.
_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)
# And the methods of a tensor that can.
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")


class PinnedBuffer:
    """The mark on a pinned storage, and who uses its memory.

    Attributes:
        accesses: By operations of the device.

        storage: Where it is.

        flights: The copies under way, in their order.

        aliases: The tensors on it that are known, by their identity.

        unexplained: How many more there are that Python knows nothing of.
    """

    __slots__ = (
        "__weakref__",
        "accesses",
        "aliases",
        "flights",
        "storage",
        "unexplained",
    )

    def __init__(self, storage: Any) -> None:
        self.accesses = Accesses(storage.nbytes())
        self.storage = weakref.ref(storage)
        self.flights: list[Flight] = []
        self.aliases: dict[int, weakref.ref[Any]] = {}
        self.unexplained = 0

    def operand(self, tensor: Any) -> Operand:
        """The bytes of a tensor on this storage, as the tracker wants them."""
        return operand_of(tensor, self)[0]


class PinningTime(threading.local):
    """How long pinning has really taken in a thread, which stands for no real time.

    Every pinned tensor lies in new memory here, and filling that is slow; torch uses
    pinned memory again.
    """

    spent_ns = 0


class Life(weakref.ref[Any]):
    """Dies with a pinned buffer, and knows how large that was."""

    __slots__ = ("size",)

    size: int


def pinned_buffer(tensor: Any) -> PinnedBuffer | None:
    """The mark on a host tensor's storage; None where it is pageable."""
    return getattr(tensor.untyped_storage(), "_gpumagic_pinned", None)


class Pinning:
    """The kernels on the CPU key, while the simulator is on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._torch = simulation.torch
        aten = simulation.torch.ops.aten
        self._empty_strided = aten.empty_strided.default._op
        self._copy = aten.copy_.default._op
        # By size: blocks that torch would keep for the next one that wants as much.
        self._kept: Counter[int] = Counter()
        self._lives: set[Life] = set()
        # A death is noted by a C function: an interrupt that fell into bytecode of
        # ours would be swallowed, for nobody can be told of it there.
        self._died: deque[Any] = deque()

    def is_pinned(self, tensor: Any, device: Any = None) -> bool:  # noqa: ARG002
        """`tensor.is_pinned()`."""
        return pinned_buffer(tensor) is not None

    def pin(self, tensor: Any, device: Any = None) -> Any:  # noqa: ARG002
        """`tensor.pin_memory()` of one that is not: a marked copy."""
        began_ns = perf_counter_ns()
        pinned = self._empty_strided(
            tensor.size(),
            _dense_strides(tensor),
            dtype=tensor.dtype,
        )
        self._copy_into(pinned, tensor)
        self._simulation.pinning_time.spent_ns += perf_counter_ns() - began_ns
        machine = self._simulation.machine
        # A thread that pins does it beside the program, which the clock is of.
        if machine.gpus and threading.current_thread() is threading.main_thread():
            costs = machine.gpus[0].costs
            machine.scheduler.elapse(costs.host_copy_ns(pinned.nbytes))
        return self._mark(pinned)

    def _copy_into(self, pinned: Any, tensor: Any) -> None:
        self._copy(pinned, tensor)

    def _mark(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        buffer = storage._gpumagic_pinned = PinnedBuffer(storage)
        life = Life(buffer, self._died.append)
        life.size = _rounded(storage.nbytes())
        self._lives.add(life)
        self._lock(life.size)
        return tensor

    def _lock(self, size: int) -> None:
        """Take time for memory that is new; what was pinned once is used again."""
        self._take_back()
        if self._kept[size]:
            self._kept[size] -= 1
            return
        machine = self._simulation.machine
        if machine.gpus:
            machine.scheduler.elapse(machine.gpus[0].costs.host_alloc_ns(size))

    def _take_back(self) -> None:
        while self._died:
            life = self._died.popleft()
            self._lives.discard(life)
            self._kept[life.size] += 1


def _rounded(nbytes: int) -> int:
    """Pinned memory is taken in powers of two, and kept by size."""
    return 1 << max(nbytes - 1, 0).bit_length()


def _dense_strides(tensor: Any) -> tuple[int, ...]:
    """Those of a copy that keeps the order of dimensions, as torch's own does."""
    if tensor.is_contiguous() or _is_dense(tensor):
        return (*tensor.stride(),)
    return contiguous_strides(tensor.size())


def _is_dense(tensor: Any) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def contiguous_strides(size: Any) -> tuple[int, ...]:
    """Strides of elements in the order of a plain array."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(1, length)
    return (*reversed(strides),)


def pinning_factories(
    torch: Any, others: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Factories that pin what they make if they are asked to, by name.

    torch's own ask C++ for an allocator that cannot be supplied. Replacing the
    kernels beneath them would cost every CPU operation that needs new memory several
    microseconds; this costs a factory that is called from Python a fifth of one.
    """
    return {
        name: _pinning(others.get(name) or getattr(torch, name)) for name in _FACTORIES
    }


def pinning_methods(torch: Any) -> dict[str, Callable[..., Any]]:
    """Likewise the methods of a tensor that make another, by name."""
    return {name: _pinning(getattr(torch.Tensor, name)) for name in _METHODS}


def _pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        __tracebackhide__ = True
        made = original(*args, **options)
        return made.pin_memory() if pin_memory else made

    return make


class Stretch(NamedTuple):
    """The geometry of a tensor, to be laid over a storage again."""

    dtype: Any
    offset: int
    size: Any
    stride: Any

    @classmethod
    def of(cls, tensor: Any) -> Stretch:
        """That of this tensor."""
        return cls(
            tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def on(self, storage: Any, torch: Any) -> Any:
        """A tensor of this geometry on a storage of the CPU."""
        empty = torch.empty(0, dtype=self.dtype, device="cpu")
        return empty.set_(storage, self.offset, self.size, self.stride)


class Flight:
    """One copy under way; it lives as long as the pinned memory does.

    Attributes:
        order: The stream that carries it out, in the tracker.

        mark: Where it stands in that stream.

        place: Where the user asked for it.

        span: Its bytes of the pinned memory.

        stretch: Its geometry there.

        arriving: What will be in the pinned memory once it has come, where readers
            that come too early are given poison.

        arrives: Whether it writes the pinned memory.

        expected: What is there as long as the host leaves it alone; None where
            there was no room to remember it, or enough is known.

        told: Whether its user knows that it is not waited for.

        target: The device's storage that it is sent to, and the geometry there.

        arrays: The numpy arrays of it that were made meanwhile, and where.
    """

    __slots__ = (
        "arrays",
        "arrives",
        "arriving",
        "expected",
        "mark",
        "order",
        "place",
        "span",
        "stretch",
        "target",
        "told",
    )

    def __init__(
        self,
        order: int,
        mark: Mark,
        place: PlaceMark | None,
        span: Bytes,
        stretch: Stretch,
        *,
        arrives: bool,
    ) -> None:
        self.order = order
        self.mark = mark
        self.place = place
        self.span = span
        self.stretch = stretch
        self.arrives = arrives
        self.arriving: Any = None
        self.expected: Any = None
        self.told = False
        self.target: tuple[weakref.ref[Any], Stretch] | None = None
        self.arrays: list[tuple[weakref.ref[Any], PlaceMark | None]] = []

    def meets(self, span: Bytes) -> bool:
        """Whether it has a byte in common with these."""
        return (
            self.span[0] < span[1]
            and span[0] < self.span[1]
            and overlap(self.span, span)
        )

    def race(
        self, place: PlaceMark | None, span: Bytes, *, writes: bool, found: bool = False
    ) -> Race:
        """What it is to touch its memory before it is done."""
        kind = Kind.WRITE_AFTER_READ
        if found:
            kind = Kind.CHANGED_UNSEEN
        elif self.arrives:
            kind = Kind.WRITE_AFTER_WRITE if writes else Kind.READ_AFTER_WRITE
        return Race(
            kind=kind,
            earlier_stream=self.order,
            earlier_place=self.place,
            earlier_writes=self.arrives,
            later_stream=HOST,
            later_place=place,
            later_writes=writes,
            low=max(self.span[0], span[0]),
            high=min(self.span[1], span[1]),
        )


def span_of(tensor: Any, buffer: PinnedBuffer) -> Bytes:
    """The bytes of a tensor on pinned memory."""
    return operand_of(tensor, buffer)[0][1:]


def read_as_arrays(flight: Flight) -> Iterator[Race]:
    """Reads by arrays that were made and let go before anything was there."""
    places = [place for reference, place in flight.arrays if reference() is None]
    for place in places[:1]:
        yield flight.race(place, flight.span, writes=False)


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors of one type and shape have the same bytes."""
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    integer = integers[one.element_size()]
    if _in_eights(one) and _in_eights(other):  # three times as fast as bytes
        one, other, integer = one.view(-1), other.view(-1), torch.int64
    return bool(torch.equal(one.view(integer), other.view(integer)))


def _in_eights(tensor: Any) -> bool:
    """Whether a tensor's bytes come in whole eights, one behind the other."""
    item = tensor.element_size()
    begin, end = tensor.storage_offset() * item, tensor.numel() * item
    return bool(tensor.is_contiguous() and begin % 8 == end % 8 == 0)
