"""How fast each part of a step is on its own: pinning, the link, copies, compute."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_counters import allocator_figures, figure
from gpumagic.devices.torch_private import empty_host_cache
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch.walker import tensors_in, to_device
from gpumagic.pin_loader.current_device import unusable
from gpumagic.pin_loader.pace import copies, link_rate, step
from gpumagic.pin_loader.records.rates import Rates
from gpumagic.pin_loader.records.remark import Remark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.records.rates import Loading, Step

_PIN_SHARE, _FRESH_SHARE, _COPIES_SHARE, _STEP_SHARE = 0.15, 0.1, 0.3, 0.35
_FRESH_COPIES = 3  # of the batch, at least; a figure that can be done without
_ALL = 1.0
_UNSAFE = ("mps",)  # torch itself forces pinning off there
_NO_LEAVES = Remark(
    "the batch has no dense tensors on the host, so there is nothing to copy",
    "let the dataset, or the collate_fn, return tensors",
)


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
    with copies.one_thread():
        modes = copies.copy_modes(
            leaves, runtime, device, budget_s=budget_s * _COPIES_SHARE
        )
    if not runtime.can_pin():
        return dataclasses.replace(found, copies=modes)
    pin_copy = copies.pin_copy(leaves, runtime, budget_s=budget_s * _PIN_SHARE)
    fresh_pin = None
    if pin_copy is None or pin_copy.median_s * _FRESH_COPIES <= budget_s:
        fresh_budget_s = budget_s * _FRESH_SHARE
        fresh_pin = copies.fresh_pin(leaves, runtime, budget_s=fresh_budget_s)
    return dataclasses.replace(
        found,
        pin_copy=pin_copy,
        fresh_pin=fresh_pin,
        copies=modes,
        link=link_rate.measure(runtime, device, driver, room_bytes=room_bytes),
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
        return step.measure(function, there, runtime, budget_s=budget_s)
    seconds = step.slowest_other_part_s(found)
    if seconds <= 0:
        return None
    stand_in = step.StandIn(runtime, device, seconds)
    return step.measure(stand_in, None, runtime, budget_s=budget_s, synthetic=True)


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


def _reserved_bytes(runtime: Runtime, device: int) -> int:
    """What torch keeps; 0 of an allocator that was plugged in, and need not count."""
    figures = allocator_figures(runtime, device) or {}
    return figure(figures, "reserved_bytes.all.current") or 0
