"""Work that keeps a stream of a device busy for a while, and touches no memory.

It is what a copy is delayed by, so that the host comes first for certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime

_CALIBRATION_CYCLES = 10_000_000
_PRODUCT = 512  # the side of the matrices where nothing else keeps a device busy
_PRODUCTS = 20
_LAUNCH_NS = 10_000


class Busy:
    """Keeps the current stream of a device busy for as long as is said."""

    def __init__(self, runtime: Runtime, device: int, *, name: str = "busy") -> None:
        self._runtime, self._device, self._name = runtime, device, name
        self._matrices: Any = None
        self._rate = 0.0  # cycles or products in a second
        if runtime.simulated:
            return
        # `_sleep` is private, but as old as torch.cuda; AMD's build has it as well.
        self._spin = getattr(_module(runtime), "_sleep", None)
        if self._spin is None:
            self._matrices = _matrices(runtime, device)
        self._calibrate()

    def submit(self, seconds: float) -> None:
        """Keep the current stream busy; the host goes on."""
        if self._runtime.simulated:
            self._submit_simulated(seconds)
        else:
            self._run(max(round(seconds * self._rate), 1))

    def _run(self, amount: int) -> None:
        if self._spin is not None:
            with _module(self._runtime).device(self._device):
                self._spin(amount)
            return
        torch, left, right, product = self._matrices
        with torch.no_grad():
            for _ in range(amount):
                torch.mm(left, right, out=product)

    def _calibrate(self) -> None:
        amount = _PRODUCTS if self._spin is None else _CALIBRATION_CYCLES
        runtime = self._runtime
        stream = runtime.current_stream(self._device)
        # From the idle clock to the full one; and the device still does it while the
        # host sends what is measured.
        self._run(amount)
        start = runtime.record(stream)
        if start is None:  # this kind of device has no events
            runtime.synchronize()
        began_ns = runtime.now_ns()
        self._run(amount)
        took_s = runtime.elapsed_s(start, runtime.record(stream))
        if took_s is None:
            runtime.synchronize()
            took_s = (runtime.now_ns() - began_ns) / 1e9
        self._rate = amount / max(took_s, 1e-9)

    def _submit_simulated(self, seconds: float) -> None:
        from gpumagic.simulator.scheduler import FULL_SHARE, Engine

        box = simulated_box()
        stream = self._runtime.current_stream(self._device)
        if box is None or stream is None:
            return
        simulated = stream._simulated  # noqa: SLF001 -- the engine's own stream
        simulated.gpu.start()
        box.machine.scheduler.launch(
            simulated.queue,
            Engine.COMPUTE,
            round(seconds * 1e9),
            FULL_SHARE,
            _LAUNCH_NS,
            self._name,
        )


def _module(runtime: Runtime) -> Any:
    import torch

    return getattr(torch, runtime.kind)


def _matrices(runtime: Runtime, device: int) -> tuple[Any, Any, Any, Any]:
    import torch

    shape, place = (_PRODUCT, _PRODUCT), torch.device(runtime.kind, device)
    left, right, product = (torch.zeros(shape, device=place) for _ in range(3))
    return torch, left, right, product
