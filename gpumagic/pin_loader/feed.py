"""Times what a batch costs on its way: pinning, copies to the device, the user's step.

On a simulated device copies to it and compute are the model's; work within the host is
this machine's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.devices.accelerator import Busy
from gpumagic.devices.memory_counters import allocator_figures, figure
from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import DeviceError, GpuMagicError, UsageProblem, error_line
from gpumagic.pin_loader.batch import tensors_in, to_device
from gpumagic.pin_loader.records import (
    NOT_LOADED,
    CopyMode,
    Rates,
    Remark,
    Samples,
    Step,
)
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records import Loading

_PIN_SHARE, _COPIES_SHARE, _STEP_SHARE = 0.15, 0.35, 0.35
_WARM_UPS, _TURNS, _FEWEST_TURNS = 2, 20, 3
_IN_A_ROW = 4  # so that the host's work for one step hides behind the one before
_SAMPLES = 10
_UNSAFE = ("mps",)  # torch itself forces pinning off there


def measure_feed(  # noqa: PLR0913 -- what is measured, and with what
    batch: Any,
    runtime: Runtime,
    device: int,
    *,
    load: Loading = NOT_LOADED,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 2.0,
) -> Rates:
    """Measure what a batch costs on its way, part by part; it starts the device.

    Random numbers are not drawn, and memory that was taken for it is given back.
    """
    import torch

    leaves = [
        each.detach()
        for each in tensors_in(batch)
        if each.device.type == "cpu" and each.layout is torch.strided and each.nbytes
    ]
    found = Rates(load=load, nbytes=sum(leaf.nbytes for leaf in leaves))
    with given_back(runtime, device):
        if leaves:
            found = _copied(found, leaves, runtime, device, budget_s)
        step = step or stand_in_for(found, runtime, device)
        there = None
        if not isinstance(step, StandIn):
            place = torch.device(runtime.kind, device)
            there = to_device(batch, place, non_blocking=False)
        timed = measure_step(step, there, runtime, budget_s=budget_s * _STEP_SHARE)
    return dataclasses.replace(found, step=timed)


def _copied(
    found: Rates, leaves: Sequence[Any], runtime: Runtime, device: int, budget_s: float
) -> Rates:
    """With the copies; what was pinned for them is gone when it returns.

    From pageable memory, and from pinned, blocking and not, in turn. Where nothing can
    be pinned, one way is left.
    """
    import torch

    place = torch.device(runtime.kind, device)
    pageable = [each.clone() if runtime.is_pinned(each) else each for each in leaves]
    pinned, took = _pinned(leaves, runtime), Samples()
    ways = [(False, True, pageable)]
    if pinned:
        ways += [(True, True, pinned), (True, False, pinned)]

    def each_way() -> list[tuple[float, float]]:
        return [_one_copy(of, place, runtime, blocks=blocks) for _, blocks, of in ways]

    with _one_thread():
        share_s = 0.0 if runtime.simulated else budget_s * _COPIES_SHARE
        turns = _repeated(each_way, share_s)
        if pinned:
            pin = functools.partial(_pin_copy, pageable, pinned)
            took = Samples(tuple(_repeated(pin, budget_s * _PIN_SHARE)))
    copies = []
    for (is_pinned, blocks, _), pairs in zip(
        ways, zip(*turns, strict=True), strict=True
    ):
        held_s, took_s = zip(*pairs, strict=True)
        copies.append(CopyMode(is_pinned, blocks, Samples(held_s), Samples(took_s)))
    return dataclasses.replace(found, copies=tuple(copies), pin_copy=took)


def _one_copy(
    sources: Sequence[Any], place: Any, runtime: Runtime, *, blocks: bool
) -> tuple[float, float]:
    """How long the host was held, and how long it took on the device.

    A device without events leaves the second to the first.
    """
    runtime.synchronize()
    stream = runtime.current_stream(place.index)
    start, began_ns = runtime.record(stream), runtime.now_ns()
    there = [source.to(place, non_blocking=not blocks) for source in sources]
    held_s, end = (runtime.now_ns() - began_ns) / 1e9, runtime.record(stream)
    took_s = runtime.elapsed_s(start, end)
    runtime.synchronize()
    del there
    return held_s, took_s or held_s


def _pin_copy(sources: Sequence[Any], buffers: Sequence[Any]) -> float:
    """Into pinned memory that is there, by one thread, as it is done for each batch."""
    began_s = perf_counter()
    for buffer, source in zip(buffers, sources, strict=True):
        buffer.copy_(source)
    return perf_counter() - began_s


def _repeated(measure: Callable[[], Any], budget_s: float) -> list[Any]:
    """What a measurement gives again and again, once it is warm.

    Three are made at least. Where the first of them all takes the time that there is,
    one more is made, which counts.
    """
    began_s = perf_counter()
    measure()
    if perf_counter() - began_s > budget_s:
        return [measure()]
    measure()
    found: list[Any] = []
    while len(found) < _FEWEST_TURNS or (
        len(found) < _TURNS and perf_counter() - began_s <= budget_s
    ):
        found.append(measure())
    return found


def _pinned(leaves: Sequence[Any], runtime: Runtime) -> list[Any]:
    """Copies in pinned memory, where anything can be pinned."""
    if runtime.can_pin():
        with contextlib.suppress(DeviceError):
            # A clone first: what is pinned already would be given back itself.
            return [runtime.pin(leaf.clone()) for leaf in leaves]
    return []


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread of the host, as in the thread that pins."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def given_back(runtime: Runtime, device: int) -> Iterator[None]:
    """Start the device, and leave no more memory with torch than it had before."""
    import torch

    place = torch.device(runtime.kind, device)
    try:
        torch.empty(1, device=place)
    except RuntimeError as error:
        raise unusable(place, error) from error
    before = _reserved_bytes(runtime, device)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError, GpuMagicError):
            runtime.synchronize()
            if _reserved_bytes(runtime, device) > before:
                getattr(torch, runtime.kind).empty_cache()
            if runtime.kind not in _UNSAFE and not runtime.simulated:
                empty_host_cache(torch)


def unusable(place: object, error: RuntimeError) -> DeviceError:
    """What torch says of a device that it cannot start."""
    reason = " ".join(str(error).split())
    return DeviceError(
        f"{place} cannot be used: {reason}", "%gpu_select shows what is there"
    )


def _reserved_bytes(runtime: Runtime, device: int) -> int:
    """What torch keeps; 0 of an allocator that was plugged in, and need not count."""
    figures = allocator_figures(runtime, device) or {}
    return figure(figures, "reserved_bytes.all.current") or 0


class CountedStep:
    """Calls the user's function with a batch, and counts how often."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.calls = 0
        self._function = function
        name = getattr(function, "__name__", type(function).__name__)
        self.__name__ = str(name)
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise UsageProblem(
                f"{name} does not take one argument, and is called with one: the batch",
                f"def {name if name.isidentifier() else 'step'}(batch): x, y = batch",
            ) from None
        except ValueError:  # it does not tell what it takes
            pass

    def __call__(self, batch: Any) -> object:
        """Call it with a batch; its error holds none of the frames that have it."""
        self.calls += 1
        try:
            return self._function(batch)
        except GpuMagicError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
            said = error_line(error)
        raise GpuMagicError(
            f"{self.__name__} failed with a batch: {said}",
            f"batch = next(iter(loader)), then {self.__name__}(batch), shows where",
        )

    def remark(self) -> Remark:
        """What a reader has to know of these calls."""
        return Remark(
            f"{self.__name__} was called {count_text(self.calls, 'time')}: what it "
            "changes has changed, as weights and an optimizer have",
            "measure with a copy of the model, or make both anew",
        )


class StandIn:
    """Keeps the device busy for as long as was asked, and does nothing with a batch."""

    __name__ = "a stand-in"

    def __init__(self, runtime: Runtime, device: int, seconds: float) -> None:
        self._busy = Busy(runtime, device, name="stand-in for compute")
        self.seconds = seconds

    def __call__(self, batch: object) -> None:
        """The batch only has to be there."""
        del batch
        self._busy.submit(self.seconds)


def stand_in_for(found: Rates, runtime: Runtime, device: int) -> StandIn:
    """As long as the slowest part beside compute.

    A shorter step leaves less to hide behind, a longer one hides anything. So the gain
    that is found with it is the most that feeding can give to any step.
    """
    fastest = [each.device for each in found.copies[-1:]]  # pinned, where that can be
    parts = found.load.between, found.pin_copy, *fastest
    return StandIn(runtime, device, max(part.median_s for part in parts))


def measure_step(
    function: Callable[[Any], object], batch: Any, runtime: Runtime, *, budget_s: float
) -> Step:
    """How long a step takes when its batch is on the device already.

    The function is really called, some ten to fifty times with the same batch: what it
    changes (weights, gradients, counters) is changed afterwards.
    """
    began_s = perf_counter()
    for _ in range(_WARM_UPS):
        _timed(function, batch, runtime, 1)
    spent_s = perf_counter() - began_s
    affordable = spent_s * _IN_A_ROW * _FEWEST_TURNS / _WARM_UPS <= budget_s
    in_a_row = _IN_A_ROW if affordable else 1
    samples: list[float] = []
    while len(samples) < _FEWEST_TURNS or (
        len(samples) < _SAMPLES and perf_counter() - began_s <= budget_s
    ):
        samples.append(_timed(function, batch, runtime, in_a_row))
    name = getattr(function, "__name__", None) or type(function).__name__
    stands_in = isinstance(function, StandIn)
    return Step(str(name), Samples(tuple(samples)), synthetic=stands_in)


def _timed(
    function: Callable[[Any], object], batch: Any, runtime: Runtime, times: int
) -> float:
    runtime.synchronize()
    began_ns = runtime.now_ns()
    for _ in range(times):
        function(batch)
    runtime.synchronize()
    return (runtime.now_ns() - began_ns) / 1e9 / times
