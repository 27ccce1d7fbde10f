"""How fast each part of a step is on its own: pinning, copies, the link, compute."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from gpumagic.devices.busy import Busy
from gpumagic.devices.memory_counters import allocator_figures, figure
from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import DeviceError, GpuMagicError, UsageProblem
from gpumagic.pin_loader import link
from gpumagic.pin_loader.batch import tensors_in, to_device
from gpumagic.pin_loader.report import Rates, Remark, Samples, Step
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.report import Loading

_PIN_SHARE, _FRESH_SHARE, _COPIES_SHARE, _STEP_SHARE = 0.15, 0.1, 0.3, 0.35
_FRESH_COPIES = 3  # of the batch, at least; a figure that can be done without
_ALL = 1.0
_UNSAFE = ("mps",)  # torch itself forces pinning off there
_NO_LEAVES = Remark(
    "the batch has no dense tensors on the host, so there is nothing to copy",
    "let the dataset, or the collate_fn, return tensors",
)
_STEP_WARM_UPS = 2
_SAMPLES, _FEWEST_SAMPLES = 10, 3
_IN_A_ROW = 4  # so that the host's work for one step hides behind the one before
_SIDES = (256, 512, 1024, 2048, 4096)  # of the matrices that are multiplied
_LARGER = 8  # times the work of the size before
_FEWEST_PRODUCTS = 8  # in one step, so that its length can be set within a few percent
_TRIED = 5
STAND_IN = "a loop of matrix products"


def measure(  # noqa: PLR0913 -- each is a part, or what it is measured with
    batch: Any,
    runtime: Runtime,
    *,
    device: int,
    load: Loading | None = None,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 2.0,
    driver: Driver | None = None,
    room_bytes: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Rates:
    """Measure what a batch costs on its way, part by part; it starts the device.

    Random numbers are not drawn, and memory that was taken for it is given back. On a
    simulated device copies to it and compute are the model's, work within the host is
    this machine's. On the CPU nothing is measured, and on MPS only the blocking copy.

    Args:
        batch: A real one, on the host; it is not changed.

        runtime: The device's kind.

        device: Its number.

        load: How fast the loader gives batches, if that was measured.

        step: What is done with a batch on the device, and is really called; None lets
            a loop stand in for it that is as long as the slowest other part.

        budget_s: About how long all of it may take, once the device has started.

        driver: Tells of the link.

        room_bytes: How much memory of the host is to spare.

        progress: Called with the share that is done.
    """
    leaves = [
        leaf for leaf in tensors_in(batch, objects=True) if _is_dense_on_host(leaf)
    ]
    found = Rates(load=load, nbytes=sum(leaf.nbytes for leaf in leaves))
    if runtime.kind == "cpu":
        return found
    tell = progress or (lambda _: None)
    with given_back(runtime, device):
        if leaves:
            found = _fed(found, leaves, runtime, device, driver, room_bytes, budget_s)
        else:
            found = dataclasses.replace(found, remarks=(_NO_LEAVES,))
        tell(_ALL - _STEP_SHARE)
        found = dataclasses.replace(
            found, step=step_of(found, batch, runtime, device, step, budget_s)
        )
    tell(_ALL)
    return found


def _fed(  # noqa: PLR0913, PLR0917 -- what `measure` was given
    found: Rates,
    leaves: list[Any],
    runtime: Runtime,
    device: int,
    driver: Driver | None,
    room_bytes: int | None,
    budget_s: float,
) -> Rates:
    """Everything on the way to the device."""
    with link.one_thread():
        modes = link.copy_modes(
            leaves, runtime, device, budget_s=budget_s * _COPIES_SHARE
        )
    if not runtime.can_pin():
        return dataclasses.replace(found, copies=modes)
    pin_copy = link.pin_copy(leaves, runtime, budget_s=budget_s * _PIN_SHARE)
    fresh_pin = None
    if pin_copy is None or pin_copy.median_s * _FRESH_COPIES <= budget_s:
        fresh_budget_s = budget_s * _FRESH_SHARE
        fresh_pin = link.fresh_pin(leaves, runtime, budget_s=fresh_budget_s)
    return dataclasses.replace(
        found,
        pin_copy=pin_copy,
        fresh_pin=fresh_pin,
        copies=modes,
        link=link.measure_link(runtime, device, driver, room_bytes=room_bytes),
    )


def step_of(  # noqa: PLR0913, PLR0917 -- what `measure` was given
    found: Rates,
    batch: Any,
    runtime: Runtime,
    device: int,
    function: Callable[[Any], object] | None,
    budget_s: float,
) -> Step | None:
    """The user's step, or one that is as long as the slowest of the parts found."""
    import torch

    budget_s *= _STEP_SHARE
    if function is not None:
        place = torch.device(runtime.kind, device)
        there = to_device(batch, place, non_blocking=False, objects=True)
        return measure_step(function, there, runtime, budget_s=budget_s)
    seconds = slowest_other_part_s(found)
    if seconds <= 0:
        return None
    stand_in = StandIn(runtime, device, seconds)
    return measure_step(stand_in, None, runtime, budget_s=budget_s, synthetic=True)


def _is_dense_on_host(leaf: Any) -> bool:
    import torch

    return (
        leaf.device.type == "cpu" and leaf.layout is torch.strided and leaf.nbytes > 0
    )


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


class StandIn:
    """Takes about as long as was asked for, and does nothing with the batch.

    On a simulated device it is one piece of work of exactly that length; elsewhere a
    loop of matrix products, which are timed when it is made.

    Args:
        runtime: The device's kind; the device is started.

        device: Its number.

        seconds: How long a call is to keep the device busy.
    """

    name = STAND_IN

    def __init__(self, runtime: Runtime, device: int, seconds: float) -> None:
        self._seconds = max(seconds, 0.0)
        self._busy: Busy | None = None
        if runtime.simulated:
            self._busy = Busy(runtime, device, name="stand-in for compute")
            return
        import torch

        self._torch = torch
        self._place = torch.device(runtime.kind, device)
        self._matrices, each_s = self._fitting(runtime)
        self._times = round(self._seconds / each_s) if each_s > 0 else 0

    def __call__(self, batch: object) -> None:
        """Keep the device busy; the batch only has to be there."""
        del batch
        if self._busy is not None:
            self._busy.submit(self._seconds)
        else:
            self._multiply(self._times)

    def _multiply(self, times: int) -> None:
        left, right, product = self._matrices
        with self._torch.no_grad():
            for _ in range(times):
                self._torch.mm(left, right, out=product)

    def _fitting(self, runtime: Runtime) -> tuple[tuple[Any, Any, Any], float]:
        """The largest matrices of which several products fit into the time."""
        each_s = 0.0
        for side in _SIDES:
            if each_s * _LARGER * _FEWEST_PRODUCTS > self._seconds:
                break
            shape = side, side
            self._matrices = tuple(
                self._torch.zeros(shape, device=self._place) for _ in range(3)
            )
            self._multiply(_TRIED)
            each_s = _timed(lambda: self._multiply(_TRIED), runtime) / _TRIED
        return self._matrices, each_s


def measure_step(
    function: Callable[[Any], object],
    batch: Any,
    runtime: Runtime,
    *,
    budget_s: float,
    synthetic: bool = False,
) -> Step:
    """How long a step takes when its batch is on the device already.

    The function is really called, some ten to fifty times with the same batch: what it
    changes (weights, gradients, counters) is changed afterwards.

    Args:
        function: Takes a batch on the device.

        batch: Such a batch.

        runtime: Whose devices are waited for, and whose clock is read.

        budget_s: How long this may take; at least three samples are taken.

        synthetic: Whether the function stands in for the user's.
    """
    began_s = perf_counter()
    for _ in range(_STEP_WARM_UPS):
        _timed(lambda: function(batch), runtime)
    spent_s = perf_counter() - began_s
    affordable = spent_s * _IN_A_ROW * _FEWEST_SAMPLES / _STEP_WARM_UPS <= budget_s
    in_a_row = _IN_A_ROW if affordable else 1

    def several() -> None:
        for _ in range(in_a_row):
            function(batch)

    samples = [_timed(several, runtime) / in_a_row]
    while len(samples) < _SAMPLES:
        if len(samples) >= _FEWEST_SAMPLES and perf_counter() - began_s > budget_s:
            break
        samples.append(_timed(several, runtime) / in_a_row)
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    return Step(
        str(name or type(function).__name__), Samples(tuple(samples)), synthetic
    )


def slowest_other_part_s(rates: Rates) -> float:
    """What a stand-in should take: as long as the slowest part beside compute.

    A shorter step leaves less to hide behind, a longer one hides anything. So the gain
    that is found with it is the most that feeding can give to any step.
    """
    copy = rates.copy(pinned=True, blocking=False) or rates.copy(
        pinned=False, blocking=True
    )
    on_device = None if copy is None else copy.device or copy.host
    between = None if rates.load is None else rates.load.between
    parts = (between, rates.pin_copy, on_device)
    return max((part.median_s for part in parts if part is not None), default=0.0)


def _timed(action: Callable[[], object], runtime: Runtime) -> float:
    runtime.synchronize()
    began_ns = runtime.now_ns()
    action()
    runtime.synchronize()
    return (runtime.now_ns() - began_ns) / 1e9


class CountedStep:
    """Calls a function with a batch, and counts.

    Attributes:
        calls: How often it was called.

    Args:
        function: The user's.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self.calls = 0
        self._function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    @classmethod
    def of(cls, function: Callable[[Any], object] | None) -> Self | None:
        """The function counted, if there is one.

        Raises:
            UsageProblem: It does not take one batch.
        """
        if function is None:
            return None
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            name = getattr(function, "__name__", "step")
            typed = name if name.isidentifier() else "step"
            raise UsageProblem(
                f"{name} does not take one argument, and is called with one: the batch",
                f"def {typed}(batch): x, y = batch ...",
            ) from None
        except ValueError:  # it does not tell what it takes
            pass
        return cls(function)

    def __call__(self, batch: Any) -> object:
        """Call it with a batch."""
        self.calls += 1
        return self._function(batch)

    def remarks(self, *, simulated: bool) -> list[Remark]:
        """What a reader has to know of these calls."""
        found = [
            Remark(
                f"{self.__name__} was called {count_text(self.calls, 'time')}: what it "
                "changes has changed, as weights and an optimizer have",
                "measure with a copy of the model, or make both anew",
            )
        ]
        if simulated:
            found.append(
                Remark(
                    "what the step does on the host takes no time on the simulated "
                    "device's clock: only its work on the device counts"
                )
            )
        return found
