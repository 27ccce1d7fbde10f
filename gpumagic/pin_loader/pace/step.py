"""The compute step: the user's function, or a loop that stands in for it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpumagic.devices.busy import Busy
from gpumagic.pin_loader.records.rates import Step
from gpumagic.pin_loader.records.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records.rates import Rates

_WARM_UPS = 2
_SAMPLES, _FEWEST_SAMPLES = 10, 3
_IN_A_ROW = 4  # so that the host's work for one step hides behind the one before
_SIDES = (256, 512, 1024, 2048, 4096)  # of the matrices that are multiplied
_LARGER = 8  # times the work of the size before
_FEWEST_PRODUCTS = 8  # in one step, so that its length can be set within a few percent
_TRIED = 5

STAND_IN = "a loop of matrix products"


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


def measure(
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
    for _ in range(_WARM_UPS):
        _timed(lambda: function(batch), runtime)
    spent_s = perf_counter() - began_s
    affordable = spent_s * _IN_A_ROW * _FEWEST_SAMPLES / _WARM_UPS <= budget_s
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
